"""Records -> the start-up table: what it took to get ready to serve, engines and variants of a shape side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_piecewise.records import BuildRecord, CaseResult

ROWS: tuple[tuple[str, str, float, str], ...] = (
    ("compile", "compile s", 1.0, ".2f"),
    ("compile_dynamo", "  of it Dynamo s", 1.0, ".2f"),
    ("compile_inductor", "  of it Inductor s", 1.0, ".2f"),
    ("memory_profiling", "memory profiling s", 1.0, ".2f"),
    ("capture", "capture s", 1.0, ".2f"),
    ("captures", "captures", 1.0, ".0f"),
    ("graph_pool", "graph pool GiB", 2.0**30, ".3f"),
    ("kv_cache", "KV cache GiB", 2.0**30, ".2f"),
    ("kv_cache_tokens", "KV cache tokens", 1.0, ".0f"),
    ("kv_cache_blocks", "KV cache blocks", 1.0, ".0f"),
    ("startup", "start-up s", 1.0, ".2f"),
)
"""Metric, its row, its unit, its format. What no variant has reported gets no row."""
OVER = ("piecewise", "full")
"""The ratio that ends each engine's columns."""
ABSENT = "-"
DYNAMO, INDUCTOR = (
    "compile_trace",
    tuple(f"compile_{phase}" for phase in ("aot_autograd", "inductor", "codegen", "compilers", "load")),
)
"""The phases of the native engine's compilations that vLLM reports under its two names."""
RECORDED = "recorded graphs"
"""What stands in for CUDA graphs on a CPU: its number is none of captures."""


@dataclass(frozen=True, slots=True)
class _Column:
    """One variant of one engine; without a variant, the ratio of two of them."""

    engine: str
    variant: str
    values: Mapping[str, float]


def startup_tables(results: Sequence[CaseResult]) -> list[str]:
    """One table for all cases of the nightly tier that have the name, dtype and device of one shape in common."""
    shapes: dict[tuple[str, str, str], list[CaseResult]] = {}
    for result in results:
        if result.case.tier == "nightly":
            shapes.setdefault((result.case.name, result.case.dtype, result.case.device), []).append(result)
    return [line for same in shapes.values() for line in startup_table(same)]


def startup_table(results: Sequence[CaseResult]) -> Iterator[str]:
    """The table of one shape; `-` is what a variant has not reported, and the findings say why. Empty if none has."""
    ordered = sorted(results, key=lambda result: result.case.engine)  # native before vLLM, in whatever order they ran
    columns = [column for result in ordered for column in _columns(result)]
    rows = [_row(row, columns) for row in ROWS if any(row[0] in column.values for column in columns)]
    if not rows:
        return
    case = results[0].case
    engines = [
        column.engine if index == 0 or columns[index - 1].engine != column.engine else ""
        for index, column in enumerate(columns)
    ]
    rows.insert(0, [f"start-up of {case.name}, {case.dtype} on {case.device}", *engines])
    rows.insert(1, ["", *(column.variant or "/".join(OVER) for column in columns)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([row[0].ljust(len(first)), *others]).rstrip()


def _columns(result: CaseResult) -> list[_Column]:
    """The variants that report anything of the table, and their ratio."""
    names = {name for name, *_ in ROWS}
    found = {build.variant: _values(build) for build in result.builds}
    columns = [
        _Column(result.case.engine, variant, values) for variant, values in found.items() if names & values.keys()
    ]
    upper, lower = (found.get(variant, {}) for variant in OVER)
    ratios = {name: upper[name] / lower[name] for name in upper if lower.get(name)}
    return [*columns, _Column(result.case.engine, "", ratios)] if columns else []


def _values(build: BuildRecord) -> dict[str, float]:
    values = {metric.name: metric.value for metric in build.metrics}
    if build.graph_kind in ("", RECORDED):
        values.pop("captures", None)
    if DYNAMO in values:
        values["compile_dynamo"] = values[DYNAMO]
        values["compile_inductor"] = sum(values.get(phase, 0.0) for phase in INDUCTOR)
    return values


def _row(row: tuple[str, str, float, str], columns: Sequence[_Column]) -> list[str]:
    name, label, unit, form = row
    cells = []
    for column in columns:
        value = column.values.get(name)
        shown, scale = (form, unit) if column.variant else (".2f", 1.0)
        cells.append(ABSENT if value is None else format(value / scale, shown))
    return [label, *cells]
