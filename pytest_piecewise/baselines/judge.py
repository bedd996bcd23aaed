"""A case's result against its baseline: one finding for exact counts, one for costs."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_piecewise.baselines.attribution import reasons
from pytest_piecewise.baselines.entries import Entry, Measured, Verdict, verdict
from pytest_piecewise.baselines.files import FIX, TRIM, UPDATE, Baseline, load, path_of
from pytest_piecewise.errors import BaselineError
from pytest_piecewise.ratios import noise
from pytest_piecewise.records import COST_LEVELS, CaseResult, Change, Costs, Finding, Ratio, Status

CHECK_OF_GATE = {"exact": "baseline", "observe": "baseline", "work": "cost", "budget": "cost", "ratio": "cost"}
GATE_OF_KIND = {"count": "exact", "work": "work", "graph_pool": "budget", "artifacts": "budget"}
"""The gate of a metric by its kind or, for bytes, by its name. What has none is for the history alone."""

ARTIFACT_SLACK = 0.1
"""Share by which the bytes of artefacts may grow: compilers pad and name things as they like."""


def measured(result: CaseResult) -> dict[str, Measured]:
    """What a baseline can hold of a result, by `variant.metric`."""
    found: dict[str, Measured] = {}
    for build in result.builds:
        for metric in build.metrics:
            gate = GATE_OF_KIND.get(metric.name if metric.kind == "bytes" else metric.kind)
            if gate:
                slack = int(metric.value * ARTIFACT_SLACK) if metric.name == "artifacts" else None
                found[f"{build.variant}.{metric.name}"] = Measured(gate=gate, value=int(metric.value), slack=slack)
        if build.kernels:
            found[f"{build.variant}.kernel_set"] = Measured(gate="exact", value=_hash(build.kernels))
    return found | _measured_costs(result)


def _measured_costs(result: CaseResult) -> dict[str, Measured]:
    """What was measured in builds of its own. Work is named after the versions that it depends on."""
    version = _version(result)
    found: dict[str, Measured] = {}
    for metric in result.costs.metrics:
        if metric.kind == "work":
            prefix = f"{metric.name} in "
            parts: dict[str, float] = {
                m.name.removeprefix(prefix): int(m.value) for m in result.costs.metrics if m.name.startswith(prefix)
            }
            found[metric.name + version] = Measured(gate="work", value=int(metric.value), parts=parts)
        elif metric.kind == "count":
            found[metric.name] = Measured(gate="exact", value=int(metric.value))
    for item in result.costs.ratios:
        found[item.name] = Measured(
            gate="ratio",
            value=item.value,
            low=item.low,
            high=item.high,
            noise=noise(item),
            sides=(item.over, item.under),
            parts=item.parts,
        )
    return found


def _version(result: CaseResult) -> str:
    torch, python = (result.environment.get(name, "") for name in ("torch", "python"))
    return f"[torch{torch.partition('+')[0]}-py{'.'.join(python.split('.')[:2])}]"


def is_doubtful(result: CaseResult, directory: Path, ratio: Ratio) -> bool:
    """Whether a ratio, as it is, would fail or be called better, so that it has to be measured once more."""
    path = path_of(directory, result.platform, result.case)
    try:
        stored = load_own(result, path)
    except BaselineError:
        return False  # of which the judgement will speak
    entry = stored.metrics.get(ratio.name) if stored is not None and stored.revision == result.revision else None
    now = _measured_costs(dataclasses.replace(result, costs=Costs(ratios=(ratio,))))[ratio.name]
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return entry is not None and verdict(ratio.name, entry, now, today).status in (Status.FAIL, Status.STALE)


def kernels_of(result: CaseResult) -> dict[str, int]:
    """The kernels of all variants: `variant name`, and how many there are of it."""
    return dict(Counter(f"{build.variant} {name}" for build in result.builds for name in build.kernels))


def _hash(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:12]


def judge(result: CaseResult, directory: Path) -> tuple[Finding, ...]:
    """A result against what is stored: equal PASS, worse FAIL, better STALE, nothing stored NEW or SKIP."""
    if not measured(result):
        return (Finding(check="baseline", status=Status.SKIP, summary="nothing was counted"),)
    if not (directory / result.platform).is_dir():
        reason = f"no baselines for platform {result.platform} in {directory}; to make some: {UPDATE}"
        return (Finding(check="baseline", status=Status.SKIP, summary=reason),)
    path = path_of(directory, result.platform, result.case)
    try:
        stored = load_own(result, path)
    except BaselineError as error:
        return (Finding(check="baseline_file", status=Status.FAIL, summary=str(error)),)
    if stored is None:
        return (Finding(check="baseline", status=Status.NEW, summary=f"no baseline {path}", action=UPDATE),)
    return judge_stored(result, stored, path)


def load_own(result: CaseResult, path: Path) -> Baseline | None:
    """The stored baseline of a case, None where there is no file; that of another case is an error."""
    if not path.exists():
        return None
    stored = load(path)
    if stored.case != result.case.id:
        raise BaselineError(
            f"{path}: expected case {result.case.id}, found {stored.case}; restore it, or delete it and run {UPDATE}"
        )
    return stored


def judge_stored(result: CaseResult, stored: Baseline, path: Path) -> tuple[Finding, ...]:
    """A result against one baseline, which may be one that is not yet written."""
    if stored.revision != result.revision:
        summary = f"{path} is of revision {stored.revision} of the case, which is now {result.revision}"
        return (Finding(check="baseline", status=Status.NEW, summary=summary, action=UPDATE),)
    verdicts, now = verdicts_of(result, stored.metrics), measured(result)
    found, moved = [], [item.name for item in verdicts if _moved(item)]
    for check in ("baseline", "cost"):
        if mine := [item for item in verdicts if CHECK_OF_GATE[item.gate] == check]:
            why = reasons(result, stored, now, [item.name for item in mine if _moved(item)], moved)
            found.append(_finding(check, mine, why, path))
    return tuple(found)


def _moved(item: Verdict) -> bool:
    return item.status in (Status.FAIL, Status.STALE)


def verdicts_of(result: CaseResult, stored: Mapping[str, Entry]) -> list[Verdict]:
    """One verdict per metric that is stored or measured, by name; without those that this run left out."""
    now, today = measured(result), datetime.datetime.now(tz=datetime.UTC).date()
    names = sorted(name for name in stored.keys() | now.keys() if name in now or not _is_left_out(name, stored, result))
    return [verdict(name, stored.get(name), now.get(name), today) for name in names]


def _is_left_out(name: str, stored: Mapping[str, Entry], result: CaseResult) -> bool:
    """Whether a stored metric belongs to what this run was not to measure: that it is missing says nothing then."""
    level = COST_LEVELS.index(result.costs.level)
    if stored[name].gate == "ratio" or "/" in name:
        return level < COST_LEVELS.index("ratios")
    if stored[name].gate == "work" and not name.endswith(_version(result)):
        return True
    return level < COST_LEVELS.index("work") and (stored[name].gate == "work" or ".warm_" in name)


def _finding(check: str, verdicts: Sequence[Verdict], why: Sequence[str], path: Path) -> Finding:
    status = next(
        status
        for status in (Status.FAIL, Status.NEW, Status.STALE, Status.PASS, Status.SKIP)
        if any(item.status is status for item in verdicts)
    )
    told = [item.line for item in verdicts if item.status is not Status.PASS]
    told += why if status in (Status.FAIL, Status.STALE) else []
    worst = [item.line for item in verdicts if item.status is status and status not in (Status.PASS, Status.SKIP)]
    held = sum(item.status is Status.PASS for item in verdicts)
    what = "counts equal" if check == "baseline" else "costs are within"
    summary = "; ".join(worst) or f"{held} {what} {path}"
    changes = tuple(
        Change(metric=item.name, gate=item.gate, status=item.status, stored=item.stored, found=item.found)
        for item in verdicts
        if item.status is not Status.PASS
    )
    action = _ACTIONS.get(status, "")
    return Finding(check=check, status=status, summary=summary, detail="\n".join(told), action=action, changes=changes)


_ACTIONS = {Status.FAIL: f"if this is intended: {FIX}", Status.NEW: UPDATE, Status.STALE: TRIM}
