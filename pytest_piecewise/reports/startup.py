"""Records -> the start-up table: what it took to get ready to serve, the variants of a case side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
"""The ratio of the last column."""
ABSENT = "-"


def startup_tables(results: Sequence[CaseResult]) -> list[str]:
    """One table per case of the nightly tier."""
    return [line for result in results if result.case.tier == "nightly" for line in startup_table(result)]


def startup_table(result: CaseResult) -> Iterator[str]:
    """The table of one case; `-` is what a variant has not reported, and the findings say why. Empty if none has."""
    builds = [build for build in result.builds if build.variant not in ("reference", "comparison")]
    values = {build.variant: _values(build) for build in builds}
    rows = [_row(row, values) for row in ROWS if any(row[0] in found for found in values.values())]
    if not rows:
        return
    rows.insert(0, [f"start-up of {result.case.id}", *values, "/".join(OVER)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([row[0].ljust(len(first)), *others]).rstrip()


def _values(build: BuildRecord) -> dict[str, float]:
    return {metric.name: metric.value for metric in build.metrics}


def _row(row: tuple[str, str, float, str], values: dict[str, dict[str, float]]) -> list[str]:
    name, label, unit, form = row
    cells = [format(found[name] / unit, form) if name in found else ABSENT for found in values.values()]
    upper, lower = (values.get(variant, {}).get(name) for variant in OVER)
    return [label, *cells, f"{upper / lower:.2f}" if upper is not None and lower else ABSENT]
