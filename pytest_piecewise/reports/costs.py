"""Records -> the table of costs that were measured beside the builds: work, and ratios with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_piecewise.records import CaseResult

COLUMNS = ("costs", "now", "95 % interval", "n", "sd")


def cost_tables(results: Sequence[CaseResult]) -> list[str]:
    """One table per case of which costs were measured."""
    return [line for result in results for line in _table(result)]


def cost_rows(result: CaseResult) -> Iterator[tuple[str, str, str, str, str]]:
    """What was measured beside the builds of one case, under `COLUMNS`."""
    costs = result.costs
    yield from ((item.name, f"{item.value:.0f}", "", "", "") for item in costs.metrics if item.kind == "work")
    for ratio in costs.ratios:
        interval = f"[{ratio.low:.3g}, {ratio.high:.3g}]"
        yield ratio.name, f"{ratio.value:.3g}", interval, str(ratio.pairs), f"{ratio.spread:.1%}"


def _table(result: CaseResult) -> Iterator[str]:
    rows = list(cost_rows(result))
    if not rows:
        return
    rows.insert(0, (f"{COLUMNS[0]} of {result.case.id}", *COLUMNS[1:]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()
