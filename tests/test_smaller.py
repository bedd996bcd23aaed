"""Arguments of a script: as few columns as the graph allows, the same in activations and in weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn

from pytest_piecewise.localize.inputs import Input
from pytest_piecewise.localize.smaller import _with_fewer_columns
from pytest_piecewise.records import Call

ROWS = 2


class Projected(nn.Module):
    """64 columns from end to end."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight) + x


class InHeads(nn.Module):
    """The same, which knows how many columns a head has: with 32 columns it would take two rows for one."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight).reshape(-1, 4, 16).sum(1)


class Widened(nn.Module):
    """64 columns become 24, which 8 divides and 16 does not."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight).softmax(-1)


@pytest.mark.parametrize(
    ("module", "weight", "wanted"),
    [
        (Projected(), (64, 64), [(ROWS, 8), (8, 8)]),
        (InHeads(), (64, 64), [(ROWS, 64), (64, 64)]),
        (Widened(), (24, 64), [(ROWS, 8), (8, 8)]),
    ],
)
def test_columns_are_as_few_as_the_graph_allows(
    module: nn.Module, weight: tuple[int, ...], wanted: list[tuple[int, ...]]
) -> None:
    values = [torch.randn(ROWS, 64), torch.randn(weight)]
    subject: Any = SimpleNamespace(
        section=SimpleNamespace(graph=fx.symbolic_trace(module), compiled=None),
        suspect=SimpleNamespace(step=SimpleNamespace(passed=tuple(values))),
        call=Call(index=0, phase="first", size=ROWS, padded_size=0, seed=0),
    )
    inputs = [Input(name, value, seed=0) for name, value in zip(("x", "weight"), values, strict=True)]
    found = _with_fewer_columns(subject, inputs, {0: 0}, ROWS)
    assert [tuple(item.value.shape) for item in found] == wanted
    subject.section.graph(*(item.make() for item in found))


def test_nothing_that_can_be_cut_is_the_same_object() -> None:
    inputs = [Input("x", torch.randn(ROWS, 8), seed=0)]
    assert _with_fewer_columns(SimpleNamespace(), inputs, {0: 0}, ROWS) is inputs  # type: ignore[arg-type]
