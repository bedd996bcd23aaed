"""Where in an output the wrong elements lie: a map of at most 32 x 32 characters, small enough for a record."""

from __future__ import annotations

import torch

EXTENT = 32
"""Most rows and columns of a map; larger outputs are binned."""
NONE = "."


def heat_map(wrong: torch.Tensor) -> tuple[str, ...]:
    """One string per row of cells: `.` where a cell has no wrong element, else the share of wrong ones in tenths, 0 to 9.

    `wrong` is a bool tensor of any shape. Its rows are those of the last dimension, as everywhere in comparisons.
    """
    if not wrong.numel():
        return ()
    columns = wrong.shape[-1] if wrong.dim() else 1
    table = wrong.reshape(-1, columns)
    bad = _binned(table.double())
    share = bad / _binned(torch.ones_like(table, dtype=torch.float64))
    tenths = (share * 10).floor().clamp(max=9).long()
    return tuple(
        "".join(str(value) if count else NONE for value, count in zip(values, counts, strict=True))
        for values, counts in zip(tenths.tolist(), bad.tolist(), strict=True)
    )


def _binned(table: torch.Tensor) -> torch.Tensor:
    """Sums of a rows x columns table over cells; the cells differ in extent by at most one row and one column."""
    rows, columns = (min(extent, EXTENT) for extent in table.shape)
    by_row = torch.arange(table.shape[0], device=table.device) * rows // table.shape[0]
    by_column = torch.arange(table.shape[1], device=table.device) * columns // table.shape[1]
    partial = table.new_zeros(rows, table.shape[1]).index_add_(0, by_row, table)
    return table.new_zeros(rows, columns).index_add_(1, by_column, partial)
