"""Records -> rows of text that several kinds of report share: the variants of a case side by side, figures in few digits."""

from __future__ import annotations

import dataclasses
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pytest_piecewise.records import BuildRecord, CaseResult, Finding, Report, Status
from pytest_piecewise.reports.startup import ROWS

ORDER = (Status.FAIL, Status.NEW, Status.STALE, Status.PASS, Status.SKIP)
"""Worst first."""
COUNTS = (
    "graphs",
    "pieces",
    "distinct_pieces",
    "compiles",
    "kernels",
    "splitting_ops",
    "captures",
    "replays",
)
TEXT_LIMIT = 8000
R = TypeVar("R")
UNITS: dict[str, tuple[float, str]] = {
    "seconds": (1.0, "s"),
    "cpu_seconds": (1.0, "CPU s"),
    "bytes": (2.0**20, "MiB"),
    "count": (1.0, ""),
    "ratio": (1.0, "x"),
    "capacity": (1.0, ""),
}


def worst_first(results: Sequence[CaseResult]) -> list[CaseResult]:
    """Cases by verdict, then by name."""
    return sorted(results, key=lambda item: (ORDER.index(item.status), item.case.id, item.case.device))


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Findings, failures first."""
    return sorted(findings, key=lambda item: ORDER.index(item.status))


def variants(result: CaseResult) -> list[BuildRecord]:
    """The builds of a case that are compared."""
    return [build for build in result.builds if build.variant not in ("reference", "comparison")]


def quantity(value: float, kind: str) -> str:
    """A measurement with its unit, in four digits."""
    unit, name = UNITS.get(kind, (1.0, ""))
    shown = f"{value:.0f}" if kind == "count" else f"{value / unit:.4g}"
    return f"{shown} {name}".rstrip()


def side_by_side(result: CaseResult) -> Iterator[tuple[str, list[str], str]]:
    """Rows of `(what, one cell per variant, piecewise over full)`: the start-up table, then counts and other metrics."""
    builds = variants(result)
    values = [{metric.name: metric.value for metric in build.metrics} for build in builds]
    kinds = {metric.name: metric.kind for build in builds for metric in build.metrics}
    named = {
        name: (label, lambda value, unit=unit, form=form: format(value / unit, form))
        for name, label, unit, form in ROWS
    }
    for name in COUNTS:
        counted = [None if build.variant == "eager" else float(getattr(build.counts, name)) for build in builds]
        if any(counted):
            yield _row(name.replace("_", " "), counted, builds, lambda value: f"{value:.0f}")
    for name in dict.fromkeys((*named, *kinds)):
        if name in kinds and name not in COUNTS:
            label, show = named.get(name, (name.replace("_", " "), _quantities(kinds[name])))
            yield _row(label.strip(), [found.get(name) for found in values], builds, show)


def _quantities(kind: str) -> Callable[[float], str]:
    return lambda value: quantity(value, kind)


def _row(
    label: str, values: Sequence[float | None], builds: Sequence[BuildRecord], show: Callable[[float], str]
) -> tuple[str, list[str], str]:
    by_variant = {build.variant: value for build, value in zip(builds, values, strict=True)}
    upper, lower = by_variant.get("piecewise"), by_variant.get("full")
    ratio = f"{upper / lower:.2f}" if upper is not None and lower else ""
    return label, ["" if value is None else show(value) for value in values], ratio


def worst_ratio(result: CaseResult, variant: str) -> float | None:
    """The largest error over budget of a variant; None where nothing was judged."""
    found = [item.ratio for item in result.comparisons if item.variant == variant and item.check == "equivalence"]
    return max(found, default=None)


def headline(results: Sequence[CaseResult]) -> str:
    """The verdict in a few words."""
    found = Counter(result.status for result in results)
    words = {
        Status.FAIL: "failed",
        Status.NEW: "new",
        Status.STALE: "stale",
        Status.PASS: "passed",
        Status.SKIP: "skipped",
    }
    said = [f"{found[status]} {word}" for status, word in words.items() if found[status]]
    return ", ".join(said) or "no case was run"


def facts(report: Report) -> list[tuple[str, str]]:
    """What the run was of."""
    run = report.run
    commit = run.commit[:12] + (" and local changes" if run.dirty else "")
    known = [
        ("tier", report.tier),
        ("commit", commit),
        ("branch", run.branch),
        ("started", run.started),
        ("build", run.url),
    ]
    known += [(name, report.environment.get(name, "")) for name in ("torch", "accelerator", "cpu")]
    return [(name, value) for name, value in known if value]


def bounded(record: R) -> R:
    """A record in which no text is longer than what any report would show of it."""
    if isinstance(record, str):
        # The value of an enumeration is a text, too, and stays what it is.
        return typing.cast(R, cut(record, TEXT_LIMIT) if len(record) > TEXT_LIMIT else record)
    if isinstance(record, tuple):
        return typing.cast(R, tuple(bounded(item) for item in record))
    if isinstance(record, dict):
        return typing.cast(R, {bounded(key): bounded(value) for key, value in record.items()})
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        fields = {field.name: bounded(getattr(record, field.name)) for field in dataclasses.fields(record)}
        return dataclasses.replace(record, **fields)
    return record


def cut(text: str, limit: int) -> str:
    """Text of bounded length, which says how much is missing."""
    return text if len(text) <= limit else f"{text[:limit]} \u2026 ({len(text) - limit} more characters)"
