"""A model whose answer is computed by hand, from its definition, in Python integers.

Comparing variants with each other cannot see an error that all of them share: of the harness, of a custom op, of torch.
Weights and inputs are small integers, and no intermediate value exceeds 256, up to which bfloat16 holds every integer:
nothing is ever rounded, so no variant, data type, or order of summation has an excuse for any other answer.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pytest_piecewise import Model

from .layers import current_batch, one_sequence

LAYERS, HIDDEN, BOUND = 4, 32, 2


@torch.library.custom_op("fastcheck::prefix_sum", mutates_args=("out",))
def prefix_sum(x: Tensor, out: Tensor, layer_name: str) -> None:
    """Every real row becomes the sum of itself and all rows before it."""
    rows = current_batch(layer_name).rows
    out[:rows] = x[:rows].float().cumsum(dim=0)


@prefix_sum.register_fake
def _(x: Tensor, out: Tensor, layer_name: str) -> None:
    return None


def weight(layer: int) -> list[list[int]]:
    """Three entries in each row, another sign pattern in each layer: at most 2 + 1 + 1 times the largest input."""
    rows = [[0] * HIDDEN for _ in range(HIDDEN)]
    for index, row in enumerate(rows):
        row[index] = 2 if index % (layer + 2) else -2
        row[(index + 1) % HIDDEN] = -1
        row[(index + layer + 2) % HIDDEN] = 1
    return rows


class Layer(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.name = f"layers.{index}"
        self.weight = nn.Parameter(torch.tensor(weight(index), dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        steps = nn.functional.linear(x, self.weight).clamp(-BOUND, BOUND)
        sums = steps.new_empty(steps.shape)
        torch.ops.fastcheck.prefix_sum(steps, sums, self.name)
        return sums + x.clamp(-BOUND, BOUND)


class KnownAnswer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(index) for index in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def small_integers(size: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randint(-BOUND, BOUND + 1, (size, HIDDEN), generator=generator).float(),)


def answer(x: Tensor) -> Tensor:
    """What the layers above say, one number at a time."""
    rows = [[int(value) for value in row] for row in x.tolist()]
    for layer in range(LAYERS):
        matrix, sums, result = weight(layer), [0] * HIDDEN, []
        for row in rows:
            for column, factors in enumerate(matrix):
                product = sum(factor * value for factor, value in zip(factors, row, strict=True))
                sums[column] += max(-BOUND, min(BOUND, product))
            result.append([total + max(-BOUND, min(BOUND, value)) for total, value in zip(sums, row, strict=True)])
        rows = result
    return torch.tensor(rows, dtype=x.dtype)


KNOWN_ANSWER = Model(
    name="known-answer",
    build=KnownAnswer,
    inputs=small_integers,
    splitting_ops=("fastcheck::prefix_sum",),
    context=one_sequence,
    answer=answer,
    exact_outputs=("output",),
)


@pytest.mark.piecewise(KNOWN_ANSWER, tier="fastcheck")
def test_known_answer(piecewise):
    piecewise.check()
