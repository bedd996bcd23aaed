"""The measurements of a report in their history: what its page draws."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pytest_piecewise.alerts.rules import LEAST_POINTS, changes_of, difference, measurements
from pytest_piecewise.alerts.texts import percentage
from pytest_piecewise.history.series import Series, Trace, order_of, samples
from pytest_piecewise.history.store import History
from pytest_piecewise.records import Mark, Report, Trend

SHOWN = 60
"""Most values of a trend."""
LOOKED_AT = 250
"""Most points of a series in which steps are looked for."""


def with_trends(report: Report, history: History) -> Report:
    """The report with a trend for each of its measurements that has changed or is no count."""
    lines = {sample.series.line for sample in samples(report)}
    found: dict[tuple[object, ...], list[Trace]] = defaultdict(list)
    for trace in history.traces(lambda series: series.line in lines, last=LOOKED_AT):
        found[trace.series.line].append(Trace(trace.series, measurements(trace.points)))
    made = (trend_of(traces) for traces in found.values())
    return dataclasses.replace(report, trends=tuple(trend for trend in made if trend is not None))


def trend_of(traces: Sequence[Trace]) -> Trend | None:
    """The series of one line, one after the other; None if there is nothing to see."""
    parts = sorted((trace for trace in traces if trace.points), key=lambda trace: order_of(trace.points[0].run))
    points = [(part.series, point) for part in parts for point in part.points]
    points.sort(key=lambda item: order_of(item[1].run))
    points = points[-SHOWN:]
    values = tuple(float(f"{point.value:.5g}") for _, point in points)
    if len(values) < 2 or (points[-1][0].kind == "count" and len(set(values)) == 1):
        return None
    series = points[-1][0]
    marks = [*_updates([one for one, _ in points]), *(mark for part in parts for mark in _steps(part, points))]
    return Trend(
        case=series.case,
        device=dict(series.environment).get("device", ""),
        variant=series.variant,
        metric=series.metric,
        kind=series.kind,
        began=points[0][1].run.started,
        ended=points[-1][1].run.started,
        values=values,
        marks=tuple(sorted(marks, key=lambda mark: mark.index)),
    )


def _updates(series: Sequence[Series]) -> Iterator[Mark]:
    for index, (first, second) in enumerate(pairwise(series), 1):
        if first != second:
            yield Mark(index=index, text=difference(first, second))


def _steps(part: Trace, shown: Sequence[tuple[Series, object]]) -> Iterator[Mark]:
    if len(part.points) < LEAST_POINTS:
        return
    places = {id(point): index for index, (_, point) in enumerate(shown)}
    for change in changes_of(part.series, part.points):
        index = places.get(id(part.points[change.step.index]))
        if index:
            place = change.first_after.commit[:12] or change.first_after.started[:10]
            step = change.step.change
            text = f"{percentage(step)} at {place}" + (" (back since)" if change.worse and not change.stands else "")
            yield Mark(index=index, text=text, change=step, worse=change.worse and change.stands)
