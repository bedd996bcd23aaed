"""What an update of baselines would store: `new` what has no value yet, `fix` what got worse, `trim` what got better."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_piecewise.baselines import judge
from pytest_piecewise.baselines.entries import LOWER_IS_BETTER, Entry, Measured, Value
from pytest_piecewise.baselines.files import Baseline, path_of
from pytest_piecewise.records import CaseResult, Status

KINDS = ("new", "fix", "trim")
KIND_OF = {Status.NEW: "new", Status.FAIL: "fix", Status.STALE: "trim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line of a baseline that an update changes; None for the side on which there is none."""

    case: str
    metric: str
    kind: str
    before: Value | None
    after: Value | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The baseline of a case after an update, and what the update changes in it."""

    path: Path
    baseline: Baseline
    changes: tuple[Change, ...]


def plan(
    result: CaseResult, directory: Path, kinds: Collection[str], reason: str = "", root: Path | None = None
) -> Plan | None:
    """What an update of these kinds makes of a case's baseline; None where there is nothing to store.

    `reason` goes onto the lines that `fix` changes. A line's gate, margin and slack stay as they are, also where the
    case has another revision and all of its values are new.
    """
    now = judge.measured(result)
    if not now or not result.platform:
        return None
    path = path_of(directory, result.platform, result.case)
    stored = judge.load_own(result, path)
    if stored is None or stored.revision != result.revision:
        if "new" not in kinds:
            return None
        return _renewed(result, path, stored, _source(result, root))
    metrics, changes = dict(stored.metrics), []
    for item in judge.verdicts_of(result, stored.metrics):
        kind = KIND_OF.get(item.status, "")
        if kind not in kinds:
            continue
        before, after = metrics.pop(item.name, None), now.get(item.name)
        if after is not None:
            ended = before is not None and before.gate == "observe"  # of a quarantine that has ended nothing stays
            metrics[item.name] = _line(None if ended else before, after, reason if kind == "fix" else "")
        changes.append(_change(result, item.name, kind, before, after))
    if not changes:
        return Plan(path=path, baseline=stored, changes=())
    kernels = judge.kernels_of(result) if _kernels_changed(changes) else stored.kernels
    source = _source(result, root) or stored.source
    made = dataclasses.replace(stored, source=source, metrics=metrics, kernels=kernels)
    return Plan(path=path, baseline=made, changes=tuple(changes))


def _renewed(result: CaseResult, path: Path, stored: Baseline | None, source: str) -> Plan:
    before: Mapping[str, Entry] = stored.metrics if stored else {}
    now = judge.measured(result)
    metrics = {name: _line(before.get(name), value, "") for name, value in now.items()}
    made = Baseline(
        case=result.case.id,
        revision=result.revision,
        source=source,
        metrics=metrics,
        kernels=judge.kernels_of(result),
    )
    names = sorted(before.keys() | now.keys())
    return Plan(
        path=path,
        baseline=made,
        changes=tuple(_change(result, name, "new", before.get(name), now.get(name)) for name in names),
    )


def _source(result: CaseResult, root: Path | None) -> str:
    file = Path(result.case.file)
    if root is None or not result.case.file or not file.is_relative_to(root):
        return ""
    return file.relative_to(root).as_posix()


def _line(before: Entry | None, now: Measured, reason: str) -> Entry:
    value = float(f"{now.value:.3g}") if now.gate == "ratio" else now.value
    sides = tuple(float(f"{side:.3g}") for side in now.sides)
    parts = {name: float(f"{part:.3g}") if now.gate == "ratio" else part for name, part in now.parts.items()}
    if before is None:
        return Entry(gate=now.gate, value=value, slack=now.slack, sides=sides, parts=parts, reason=reason)
    told: dict[str, Any] = {"sides": sides, "parts": parts} if before.gate == now.gate else {}
    return dataclasses.replace(before, value=value, reason=reason, **told)


def is_better(name: str, before: Entry, value: Value) -> bool:
    """Whether a value would be an improvement on a stored one, whatever its size."""
    if isinstance(value, str) or isinstance(before.value, str):
        return False
    return value < before.value and (before.gate != "exact" or name.partition(".")[2] in LOWER_IS_BETTER)


def _change(result: CaseResult, name: str, kind: str, before: Entry | None, now: Measured | None) -> Change:
    return Change(
        case=result.case.id,
        metric=name,
        kind=kind,
        before=before.value if before else None,
        after=now.value if now else None,
    )


def _kernels_changed(changes: list[Change]) -> bool:
    return any(change.metric.endswith(".kernel_set") for change in changes)
