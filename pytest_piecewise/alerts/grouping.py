"""Changes -> alerts: what changed between the same two commits is one alert, with the counts that changed there too."""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import pairwise

from pytest_piecewise.alerts.acknowledged import Acknowledgement
from pytest_piecewise.alerts.rules import Change, State, Update, Verdict, judge
from pytest_piecewise.history.series import Series, Trace, order_of
from pytest_piecewise.records import Run


class Kind(enum.StrEnum):
    """What an alert is, worst first."""

    REGRESSION = "REGRESSION"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    RETURNED = "RETURNED"
    IMPROVEMENT = "IMPROVEMENT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recount:
    """A count that changed from one run to the next."""

    series: Series
    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What changed after one commit and up to another, largest first, and why it may be left as it is."""

    kind: Kind
    last_before: Run
    first_after: Run
    changes: tuple[Change, ...]
    counts: tuple[Recount, ...] = ()
    reason: str = ""

    @property
    def place(self) -> str:
        """The commit that it began with, or the run where no commit is known: what an acknowledgement names."""
        return place_of(self.first_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that is known of a history."""

    alerts: tuple[Alert, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    updates: tuple[Update, ...] = ()
    unused: tuple[Acknowledgement, ...] = field(default=())

    def of(self, kind: Kind) -> list[Alert]:
        """The alerts of one kind."""
        return [alert for alert in self.alerts if alert.kind is kind]

    def series(self, state: State) -> list[Verdict]:
        """The series in one state."""
        return [verdict for verdict in self.verdicts if verdict.state is state]


def place_of(run: Run) -> str:
    """How a run is named in an acknowledgement."""
    return run.commit or run.id


def find_alerts(traces: Sequence[Trace], now: datetime, known: Sequence[Acknowledgement] = ()) -> Findings:
    """All alerts of these series, regressions first and the largest first."""
    verdicts, updates = judge(traces, now)
    changes = [change for verdict in verdicts for change in verdict.changes]
    used: set[Acknowledgement] = set()
    alerts = [alert for group in _grouped(changes) for alert in _alerts(group, verdicts, known, used, now.date())]
    order = list(Kind)
    alerts.sort(key=lambda alert: (order.index(alert.kind), -alert.changes[0].step.size))
    return Findings(
        alerts=tuple(alerts),
        verdicts=tuple(verdicts),
        updates=tuple(updates),
        unused=tuple(item for item in known if item not in used),
    )


def _grouped(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Changes whose ranges of runs overlap."""
    group: list[Change] = []
    for change in sorted(changes, key=lambda item: order_of(item.first_after)):
        if group and order_of(change.last_before) >= max(order_of(item.first_after) for item in group):
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _alerts(
    group: Sequence[Change],
    verdicts: Sequence[Verdict],
    known: Sequence[Acknowledgement],
    used: set[Acknowledgement],
    today: date,
) -> Iterator[Alert]:
    """A group as an alert for each kind that it has: what got worse is not hidden among what got better."""
    by_kind: dict[Kind, list[Change]] = {}
    reasons: list[str] = []
    for change in group:
        fitting = [item for item in known if fits(item, change, today)]
        used.update(fitting)
        kind = _kind(change, bool(fitting))
        by_kind.setdefault(kind, []).append(change)
        if kind is Kind.ACKNOWLEDGED:
            reasons += [item.reason for item in fitting]
    start = max((change.last_before for change in group), key=order_of)
    end = min((change.first_after for change in group), key=order_of)
    if order_of(start) >= order_of(end):  # ranges that only touch each other in a chain have no common part
        start = min((change.last_before for change in group), key=order_of)
    counts = tuple(_recounts(verdicts, start, end))
    for kind, changes in by_kind.items():
        yield Alert(
            kind=kind,
            last_before=start,
            first_after=end,
            changes=tuple(sorted(changes, key=lambda change: -change.step.size)),
            counts=counts,
            reason="; ".join(dict.fromkeys(reasons)) if kind is Kind.ACKNOWLEDGED else "",
        )


def _kind(change: Change, acknowledged: bool) -> Kind:
    if not change.worse:
        return Kind.IMPROVEMENT
    if not change.stands:
        return Kind.RETURNED
    return Kind.ACKNOWLEDGED if acknowledged else Kind.REGRESSION


def fits(item: Acknowledgement, change: Change, today: date) -> bool:
    """Whether an acknowledgement is of this change, and still holds."""
    named = place_of(change.first_after).startswith(item.at)
    return named and fnmatch.fnmatch(change.series.name, item.series) and (item.until is None or today <= item.until)


def _recounts(verdicts: Sequence[Verdict], start: Run, end: Run) -> Iterator[Recount]:
    for verdict in verdicts:
        if verdict.series.kind != "count":
            continue
        for first, second in pairwise(verdict.points):
            if first.value != second.value and order_of(start) <= order_of(first.run) < order_of(
                second.run
            ) <= order_of(end):
                yield Recount(series=verdict.series, before=first.value, after=second.value)
