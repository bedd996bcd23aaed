"""Guards on shapes: which of them every size from 2 on meets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pytest_piecewise import Model
from pytest_piecewise.engines.builds import compile_dynamic, compiling, mark_sizes
from pytest_piecewise.engines.guards import note_shape_guards
from pytest_piecewise.engines.pieces import Evidence


class Added(nn.Module):
    """What is added has a leading dimension of its own: equal sizes, or one that is broadcast, as the guard then says."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + positions.expand(x.shape[0])


class Odd(nn.Module):
    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + (1 if x.shape[0] > 12 else 2)


def traced(module: nn.Module) -> tuple[Evidence, list[int]]:
    """What tracing at size 16 leaves, and the sizes at which it is traced."""
    evidence, sizes = Evidence(), []
    model = Model(
        name="guards", build=lambda: module, inputs=lambda size, generator: (torch.ones(size), torch.ones(size))
    )

    def backend(graph: torch.fx.GraphModule, example_inputs: list[object]) -> torch.fx.GraphModule:
        note_shape_guards(evidence)
        sizes.append(current[0])
        return graph

    compiled, current = compile_dynamic(module, backend, model, evidence), [0]
    for size in (16, 8, 1):
        current[0] = size
        arguments = model.inputs(size, None)
        if size == 16:
            mark_sizes(model, arguments, {0: 0, 1: 0})
        with compiling(model), torch.no_grad():
            compiled(*arguments)
    return evidence, sizes


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


def test_sizes_that_are_one_or_broadcast_are_no_reason_to_trace_again() -> None:
    evidence, sizes = traced(Added())
    assert evidence.shape_guards == []
    assert sizes == [16]


def test_a_guard_that_some_sizes_break_is_kept_and_noted() -> None:
    evidence, sizes = traced(Odd())
    assert any("12" in guard for guard in evidence.shape_guards)
    assert sizes == [16, 8]
