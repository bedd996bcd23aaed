"""Series -> changes: which level has changed, whether for the worse, whether it still stands; which series went silent."""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from pytest_piecewise.alerts.steps import LEAST_CHANGE, Step, find_steps
from pytest_piecewise.history.series import VERSIONS, Point, Series, Trace, in_order, order_of
from pytest_piecewise.records import Run

LEAST_POINTS = 10
"""A series with fewer is LEARNING: nothing is concluded from it."""
LOWER_IS_BETTER = (
    "graphs",
    "distinct_pieces",
    "compiles",
    "kernels",
    "recompiles",
    "graph_breaks",
    "copied_inputs",
    "moved_inputs",
)
"""Counts of which fewer is better. Any change of another count is for the worse until a person has looked."""
SILENT_RUNS, SILENT_DAYS, SILENT_INTERVALS, EXPECTED_SHARE, LOOK_BACK = 3, 3.0, 3, 0.8, 10
"""A series is MISSING after 3 runs of its machine without it, where it was in at least 80 % of the 10 before; or after three
times as long as was usual between its points, and at least 3 days."""


class State(enum.StrEnum):
    """What is said of a series as a whole."""

    STEADY = "STEADY"
    CHANGED = "CHANGED"
    LEARNING = "LEARNING"
    MISSING = "MISSING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A step of one series, between two runs. `stands`: the newest level is still worse than the one before the step."""

    series: Series
    step: Step
    last_before: Run
    first_after: Run
    worse: bool
    stands: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one series: its points that were looked at, and its changes."""

    series: Series
    state: State
    points: tuple[Point, ...]
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A series went on under other versions: nothing is compared across, this only says what it did to the level."""

    series: Series
    run: Run
    what: str
    before: float
    after: float


def judge(traces: Iterable[Trace], now: datetime) -> tuple[list[Verdict], list[Update]]:
    """Every series that is still measured or should be, and the updates by which series went on as others."""
    lines: dict[tuple[object, ...], list[Trace]] = defaultdict(list)
    for trace in traces:
        clean = Trace(trace.series, measurements(trace.points))
        if clean.points:
            lines[clean.series.line].append(clean)
    runs = _runs_by_machine(trace for group in lines.values() for trace in group)
    verdicts, updates = [], []
    for group in lines.values():
        group.sort(key=lambda trace: order_of(trace.points[0].run))
        live = [trace for trace in group if not _is_superseded(trace, group)]
        verdicts += [_verdict(trace, runs[trace.series.machine], now) for trace in live]
        updates += [_update(first, second) for first, second in pairwise(group) if _is_superseded(first, [second])]
    return verdicts, updates


def measurements(points: Sequence[Point]) -> tuple[Point, ...]:
    """Finite values that are not negative, one per run, in order. Of a run that has several, their median."""
    by_run: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        if math.isfinite(point.value) and point.value >= 0:
            by_run[point.run.id].append(point)
    return in_order([Point(found[0].run, median(point.value for point in found)) for found in by_run.values()])


def direction(series: Series) -> int:
    """1 where more is worse, -1 where less is, 0 where every change is."""
    if series.kind == "count":
        return 1 if series.metric in LOWER_IS_BETTER else 0
    return -1 if series.kind in ("capacity", "rate") else 1


def changes_of(series: Series, points: Sequence[Point]) -> tuple[Change, ...]:
    """The steps of a series, oldest first."""
    steps = find_steps([point.value for point in points])
    newest = steps[-1].after if steps else 0.0
    sense = direction(series)
    return tuple(
        Change(
            series=series,
            step=step,
            last_before=points[step.index - 1].run,
            first_after=points[step.index].run,
            worse=_is_worse(sense, step.before, step.after),
            stands=_is_worse(sense, step.before, newest),
        )
        for step in steps
    )


def _is_worse(sense: int, before: float, after: float) -> bool:
    if min(before, after) <= 0:
        moved = math.copysign(math.inf, after - before) if before != after else 0.0
    else:
        moved = math.log(after / before)
    return moved * sense > LEAST_CHANGE / 2 or (not sense and abs(moved) > LEAST_CHANGE / 2)


def _verdict(trace: Trace, runs: Sequence[Run], now: datetime) -> Verdict:
    series, points = trace.series, trace.points
    if len(points) < LEAST_POINTS:
        return Verdict(series=series, state=State.LEARNING, points=points)
    changes = changes_of(series, points)
    if _is_silent(points, runs, now):
        return Verdict(series=series, state=State.MISSING, points=points, changes=changes)
    return Verdict(series=series, state=State.CHANGED if changes else State.STEADY, points=points, changes=changes)


def _runs_by_machine(traces: Iterable[Trace]) -> Mapping[object, list[Run]]:
    """The runs of every machine, by the time they were made."""
    found: dict[object, dict[str, Run]] = defaultdict(dict)
    for trace in traces:
        found[trace.series.machine] |= {point.run.id: point.run for point in trace.points}
    return {machine: sorted(runs.values(), key=lambda run: run.started) for machine, runs in found.items()}


def _is_silent(points: Sequence[Point], runs: Sequence[Run], now: datetime) -> bool:
    mine = {point.run.id for point in points}
    times = sorted(moment(point.run) for point in points)
    newest = max(point.run.started for point in points)
    later = [run for run in runs if run.started > newest]
    until = [run for run in runs if run.started <= newest][-LOOK_BACK:]
    if len(later) >= SILENT_RUNS and sum(run.id in mine for run in until) >= EXPECTED_SHARE * len(until):
        return True
    usual = median((second - first).total_seconds() for first, second in pairwise(times))
    return now - times[-1] > max(timedelta(seconds=SILENT_INTERVALS * usual), timedelta(days=SILENT_DAYS))


def moment(run: Run) -> datetime:
    """When a run was made."""
    return datetime.fromisoformat(run.started)


def _is_superseded(trace: Trace, group: Sequence[Trace]) -> bool:
    """Whether another version took over: it began after this one's last point."""
    end = max(point.run.started for point in trace.points)
    return any(min(point.run.started for point in other.points) > end for other in group if other is not trace)


def _update(first: Trace, second: Trace) -> Update:
    return Update(
        series=second.series,
        run=second.points[0].run,
        what=difference(first.series, second.series),
        before=median(point.value for point in first.points[-LEAST_POINTS:]),
        after=median(point.value for point in second.points[:LEAST_POINTS]),
    )


def difference(first: Series, second: Series) -> str:
    """`torch 2.12.0, now 2.13.0` for each version that differs."""
    before, after = dict(first.environment), dict(second.environment)
    changed = [name for name in VERSIONS if before.get(name) != after.get(name)]
    return "; ".join(f"{name} {before.get(name, 'none')}, now {after.get(name, 'none')}" for name in changed)
