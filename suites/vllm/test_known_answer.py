"""The twin of the Llama whose answer is computed by hand, from its definition, in Python integers.

What all variants get wrong together, none of the comparisons between them can see. Inputs are whole numbers from 0 to 255,
and so is every intermediate value: it is one of them, the larger of two, or the difference of two without its sign.
bfloat16 holds all of them. So nothing is ever rounded, and no variant has an excuse for any other answer.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_piecewise import Model

from ..fastcheck.layers import current_batch, one_sequence

LAYERS, HIDDEN, LARGEST = 12, 32, 255


@torch.library.custom_op("vllm_suite::larger_neighbour", mutates_args=("out",))
def larger_neighbour(x: Tensor, out: Tensor) -> None:
    """The larger of every real row and the one before it; before the first is the last: who miscounts is found out."""
    rows = current_batch("larger_neighbour").rows
    out[:rows] = torch.maximum(x[:rows], x[:rows].roll(1, dims=0))


@larger_neighbour.register_fake
def _(x: Tensor, out: Tensor) -> None:
    return None


def shift(layer: int) -> int:
    """How far the layer's weight moves features."""
    return 2 * layer + 1


def build(vllm_config: Any) -> Any:
    from .models import KnownAnswer  # noqa: PLC0415 - vLLM, which only the process that builds needs

    return KnownAnswer(vllm_config=vllm_config)


def whole_numbers(size: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randint(0, LARGEST + 1, (size, HIDDEN), generator=generator).float(),)


def answer(x: Tensor) -> Tensor:
    """What the layers say, one number at a time."""
    inputs = [[int(value) for value in row] for row in x.tolist()]
    rows = inputs
    for layer in range(LAYERS):
        moved = [[row[(column + shift(layer)) % HIDDEN] for column in range(HIDDEN)] for row in rows]
        larger = [list(map(max, row, before)) for row, before in zip(moved, moved[-1:] + moved[:-1], strict=True)]
        rows = [
            [abs(a - b) for a, b in zip(row, other, strict=True)] for row, other in zip(inputs, larger, strict=True)
        ]
    return torch.tensor(rows, dtype=x.dtype)


VLLM_KNOWN_ANSWER = Model(
    name="vllm-known-answer",
    build=build,
    inputs=whole_numbers,
    splitting_ops=("vllm_suite::larger_neighbour",),
    context=one_sequence,
    answer=answer,
    exact_outputs=("output",),
)


@pytest.mark.piecewise(VLLM_KNOWN_ANSWER, engine="vllm", tier="fastcheck")
def test_known_answer(piecewise):
    piecewise.check()
