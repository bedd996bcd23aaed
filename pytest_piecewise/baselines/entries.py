"""One stored metric with its gate, and the verdict on a measured one. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_piecewise.records import Status

Value = int | float | str

GATES: Mapping[str, tuple[str, ...]] = {
    "exact": (),
    "work": ("margin", "parts"),
    "budget": ("slack",),
    "ratio": ("margin", "noise", "sides", "parts"),
    "observe": ("until", "issue"),
}
"""Every gate, with what its line may say beside `gate`, `value` and `reason`."""

MARGINS = {"work": 0.01, "ratio": 0.25}
"""Relative change that is tolerated unless the line has a `margin` of its own."""
SLACK_BYTES, SLACK_SHARE = 2 * 2**20, 0.01
"""A budget without a `slack` of its own tolerates this many bytes, or this share of its value if that is more."""
NOISE_FACTOR = 3
"""A ratio's margin must be at least so many times its noise."""

LOWER_IS_BETTER = frozenset({"graphs", "distinct_pieces", "compiles", "kernels", "recompiles", "cache_misses"})
"""Counts of which fewer is an improvement. Of the others any change is for the worse until a person has looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A number as this run found it. `gate` is the one that its kind gets where none is stored.

    Of a ratio, `low` and `high` are the one-sided 95 % bounds, `noise` the standard error of its logarithm, `sides` what
    stands over and under the line, `parts` the phases of both; of work, `parts` says in which packages; of bytes, `slack` is
    what a new line gets.
    """

    gate: str
    value: Value
    low: float = 0.0
    high: float = 0.0
    noise: float = 0.0
    sides: tuple[float, ...] = ()
    slack: int | None = None
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a baseline. `None` and empty are what the line does not say; `observe` keeps the value for people."""

    gate: str
    value: Value
    margin: float | None = None
    slack: int | None = None
    noise: float | None = None
    sides: tuple[float, ...] = ()
    parts: dict[str, float] = field(default_factory=dict)
    until: str = ""
    issue: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one metric's gate says: PASS, FAIL, STALE, NEW, or SKIP for one that is only observed."""

    name: str
    status: Status
    line: str
    gate: str
    stored: str = ""
    found: str = ""


def margin_of(entry: Entry) -> float:
    """The relative change that a `work` or `ratio` line tolerates."""
    return MARGINS[entry.gate] if entry.margin is None else entry.margin


def slack_of(entry: Entry) -> int:
    """The bytes that a `budget` line tolerates."""
    return max(SLACK_BYTES, int(float(entry.value) * SLACK_SHARE)) if entry.slack is None else entry.slack


def verdict(name: str, entry: Entry | None, now: Measured | None, today: datetime.date) -> Verdict:
    """Holds a measured number to its line. One of the two may be missing, not both."""
    judged = _verdict(name, entry, now, today)
    stored, found = "" if entry is None else _shown(entry.value), "" if now is None else _shown(now.value)
    return dataclasses.replace(judged, stored=stored, found=found)


def _verdict(name: str, entry: Entry | None, now: Measured | None, today: datetime.date) -> Verdict:
    if entry is None:
        assert now is not None
        line = f"{name}: no stored value, now {_shown(now.value)}"
        return Verdict(name=name, status=Status.NEW, line=line, gate=now.gate)
    if entry.gate == "observe" and datetime.date.fromisoformat(entry.until) >= today:
        shown = _shown(now.value) if now else "not measured"
        line = f"{name}: only observed until {entry.until} ({entry.issue}); stored {entry.value}, now {shown}"
        return Verdict(name=name, status=Status.SKIP, line=line, gate="observe")
    if now is None:
        line = f"{name}: stored {entry.value}, no longer measured"
        return Verdict(name=name, status=Status.FAIL, line=line, gate=entry.gate)
    gate = now.gate if entry.gate == "observe" else entry.gate
    expired = f"; its quarantine ({entry.issue}) has ended on {entry.until}" if entry.gate == "observe" else ""
    held = Entry(gate=gate, value=entry.value) if expired else entry
    status, line = _RULES[gate](name, held, now)
    return Verdict(name=name, status=status, line=line + (expired if status is not Status.PASS else ""), gate=gate)


def _shown(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _exact(name: str, entry: Entry, now: Measured) -> tuple[Status, str]:
    line = f"{name}: stored {entry.value}, now {now.value}"
    if now.value == entry.value:
        return Status.PASS, line
    numbers = isinstance(now.value, int) and isinstance(entry.value, int)
    better = numbers and now.value < entry.value and name.partition(".")[2] in LOWER_IS_BETTER  # type: ignore[operator]
    return Status.STALE if better else Status.FAIL, line


def _work(name: str, entry: Entry, now: Measured) -> tuple[Status, str]:
    base, margin = float(entry.value), margin_of(entry)
    change = float(now.value) - base
    line = f"{name}: stored {entry.value}, now {now.value} ({change / base:+.2%}, {margin:.2%} is tolerated)"
    return _sided(change, margin * base), line


def _budget(name: str, entry: Entry, now: Measured) -> tuple[Status, str]:
    change, slack = float(now.value) - float(entry.value), slack_of(entry)
    line = f"{name}: stored {entry.value}, now {now.value} ({change:+.0f}, {slack} is tolerated)"
    return _sided(change, slack), line


def _sided(change: float, tolerated: float) -> Status:
    if abs(change) <= tolerated:
        return Status.PASS
    return Status.FAIL if change > 0 else Status.STALE


def _ratio(name: str, entry: Entry, now: Measured) -> tuple[Status, str]:
    """Worse only if the point lies beyond the margin and the interval beyond half of it; better likewise."""
    margin, base, value = margin_of(entry), float(entry.value), float(now.value)
    line = f"{name}: stored {base:.3g}, now {value:.3g} [{now.low:.3g}, {now.high:.3g}] ({value / base - 1:+.0%}, "
    line += f"{margin:.0%} is tolerated)"
    if value > base * (1 + margin) and now.low > base * (1 + margin / 2):
        return Status.FAIL, line
    if value < base / (1 + margin) and now.high < base / (1 + margin / 2):
        return Status.STALE, line
    return Status.PASS, line


_RULES = {"exact": _exact, "work": _work, "budget": _budget, "ratio": _ratio}
