"""Padding rows at the boundaries of pieces: where they are, and NaN in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

if TYPE_CHECKING:
    from pytest_piecewise.engines.pieces import Stage


def sized_placeholders(piece: fx.GraphModule) -> list[int]:
    """Positions of the piece's inputs whose leading dimension is symbolic, so that they have padding rows."""
    values = [node.meta.get("example_value") for node in piece.graph.find_nodes(op="placeholder")]
    return [
        index
        for index, value in enumerate(values)
        if isinstance(value, torch.Tensor) and value.dim() > 0 and isinstance(value.shape[0], torch.SymInt)
    ]


def poison_padding(stage: Stage, arguments: Sequence[Any], rows: Sequence[int]) -> None:
    """Overwrites the padding rows of a piece's floating-point inputs with NaN, unless they are rows of a weight or
    buffer (a slice of a position table), or all lie in one place (an expanded one)."""
    for index in rows:
        value = arguments[index]
        if not value.is_floating_point() or value.shape[0] != stage.padded_size or not value.stride(0):
            continue
        if value.untyped_storage().data_ptr() not in stage.weights:
            value[stage.size :].fill_(float("nan"))
