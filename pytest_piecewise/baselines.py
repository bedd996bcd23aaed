"""Stored counts: `<directory>/<platform>/<case>.json`. Find, judge, update; plain files, one metric per line.

A baseline is compared with nothing but the same case on the same platform. A platform without a directory is skipped,
a case without a file is NEW; only `write` writes, and never where `CI` is set.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_piecewise.errors import BaselineError
from pytest_piecewise.records import Case, CaseResult, Finding, Status

SCHEMA = 1
LOWER_IS_BETTER = frozenset({"graphs", "distinct_pieces", "compiles", "kernels"})
"""Counts of which fewer is an improvement. Of the others any change is for the worse until a person has looked."""

UPDATE = "pytest --piecewise --piecewise-update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What is stored for one case: exact counts by `variant.metric`."""

    case: str
    revision: str
    metrics: dict[str, int]


def path_of(directory: Path, platform: str, case: Case) -> Path:
    """Where the baseline of a case lies."""
    return directory / platform / f"{case.id}.json"


def measured(result: CaseResult) -> dict[str, int]:
    """The counts of a result that a baseline holds, by `variant.metric`."""
    return {
        f"{build.variant}.{metric.name}": int(metric.value)
        for build in result.builds
        for metric in build.metrics
        if metric.kind == "count"
    }


def load(path: Path) -> Baseline:
    """Reads a baseline file; whatever is wrong with it is named with the line and the remedy."""
    try:
        data = json.loads(path.read_text(), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise BaselineError(f"{path}: expected text, found {error.reason}; restore it from git") from error
    except json.JSONDecodeError as error:
        raise BaselineError(f"{path}:{error.lineno}: expected JSON, found {error.msg}; restore it from git") from error
    except _DuplicateKeyError as error:
        raise BaselineError(
            f"{path}: expected every name once, found {error} twice; remove one of the lines"
        ) from error
    problem = _problem_with(data)
    if problem:
        raise BaselineError(f"{path}: {problem}; restore it from git, or delete it and run {UPDATE}")
    return Baseline(
        case=data["case"],
        revision=data["revision"],
        metrics={name: entry["value"] for name, entry in data["metrics"].items()},
    )


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKeyError(repr(key))
        found[key] = value
    return found


def _problem_with(data: Any) -> str:
    if not isinstance(data, Mapping) or set(data) != {"schema", "case", "revision", "metrics"}:
        return "expected the keys schema, case, revision and metrics"
    if data["schema"] != SCHEMA:
        return f"expected schema {SCHEMA}, found {data['schema']!r}"
    if not isinstance(data["metrics"], Mapping):
        return f"expected metrics by name, found {data['metrics']!r}"
    for name, entry in data["metrics"].items():
        if not isinstance(entry, Mapping) or entry.get("gate") != "exact" or type(entry.get("value")) is not int:
            return f"expected metric {name!r} as {{'gate': 'exact', 'value': integer}}, found {entry!r}"
    return ""


def judge(result: CaseResult, directory: Path) -> Finding:
    """The counts of a result against its baseline: equal PASS, worse FAIL, better STALE, none NEW or SKIP."""
    counts = measured(result)
    if not counts:
        return Finding(check="baseline", status=Status.SKIP, summary="nothing was counted")
    if not (directory / result.platform).is_dir():
        reason = f"no baselines for platform {result.platform} in {directory}; to make some: {UPDATE}"
        return Finding(check="baseline", status=Status.SKIP, summary=reason)
    path = path_of(directory, result.platform, result.case)
    if not path.exists():
        return Finding(check="baseline", status=Status.NEW, summary=f"no baseline {path}", action=UPDATE)
    stored = load(path)
    if stored.case != result.case.id:
        raise BaselineError(
            f"{path}: expected case {result.case.id}, found {stored.case}; restore it, or delete it and run {UPDATE}"
        )
    if stored.revision != result.revision:
        summary = f"{path} is of revision {stored.revision} of the case, which is now {result.revision}"
        return Finding(check="baseline", status=Status.NEW, summary=summary, action=UPDATE)
    return _compare(stored.metrics, counts, path)


def _compare(stored: Mapping[str, int], counts: Mapping[str, int], path: Path) -> Finding:
    lines, status = [], Status.PASS
    for name in sorted(stored.keys() | counts.keys()):
        before, now = stored.get(name), counts.get(name)
        if before == now:
            continue
        lines.append(f"{name}: stored {before}, now {now}")
        better = before is not None and now is not None and now < before and name.partition(".")[2] in LOWER_IS_BETTER
        if not better:
            status = Status.FAIL
        elif status is Status.PASS:
            status = Status.STALE
    summary = "; ".join(lines) or f"{len(counts)} counts equal {path}"
    action = "" if status is Status.PASS else f"if this is intended: {UPDATE}"
    return Finding(check="baseline", status=status, summary=summary, detail="\n".join(lines), action=action)


def write(result: CaseResult, directory: Path) -> Path | None:
    """Stores the counts of a result. Returns the path if its content changed. Refused where `CI` is set."""
    if os.environ.get("CI"):
        raise BaselineError("baselines are never written where CI is set; run it outside CI, or unset CI")
    counts = measured(result)
    if not counts or not result.platform:
        return None
    path = path_of(directory, result.platform, result.case)
    text = dump(Baseline(case=result.case.id, revision=result.revision, metrics=counts))
    if path.exists() and path.read_text() == text:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, suffix=".part") as part:
        part.write(text)
    Path(part.name).chmod(0o644)
    Path(part.name).rename(path)
    return path


def dump(baseline: Baseline) -> str:
    """The canonical text: sorted, one metric per line, nothing that changes by itself."""
    metrics = ",\n".join(
        f'    {json.dumps(name)}: {{"gate": "exact", "value": {value}}}'
        for name, value in sorted(baseline.metrics.items())
    )
    head = f'  "schema": {SCHEMA},\n  "case": {json.dumps(baseline.case)},\n  "revision": {json.dumps(baseline.revision)},\n'
    return "{\n" + head + '  "metrics": {\n' + metrics + "\n  }\n}\n"
