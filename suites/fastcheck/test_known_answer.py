"""A model whose answer is computed by hand, from its definition, in Python integers.

Comparing variants with each other cannot see an error that all of them share: of the harness, of a custom op, of torch.
Weights and inputs are small integers and no intermediate value exceeds 250; bfloat16 holds every integer up to 256. So
nothing is ever rounded, and no variant, data type or order of summation has an excuse for any other answer.
"""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_piecewise import Model

from .layers import current_batch, one_sequence

LAYERS, HIDDEN, LARGEST_INPUT = 3, 32, 2


@torch.library.custom_op("fastcheck::add_neighbour", mutates_args=("out",))
def add_neighbour(x: Tensor, out: Tensor, layer_name: str) -> None:
    """Adds to every real row the one before it, and to the first the last: who miscounts the rows is found out."""
    rows = current_batch(layer_name).rows
    out[:rows] = x[:rows] + x[:rows].roll(1, dims=0)


@add_neighbour.register_fake
def _(x: Tensor, out: Tensor, layer_name: str) -> None:
    return None


def weight(layer: int) -> list[list[int]]:
    """Two entries in each row, others in each layer: no product exceeds twice the largest input."""
    rows = [[0] * HIDDEN for _ in range(HIDDEN)]
    for index, row in enumerate(rows):
        row[index] = -1 if index % (layer + 2) else 1
        row[(index + layer + 1) % HIDDEN] = 1
    return rows


class Layer(nn.Module):
    """Multiplies the largest value by at most five: two from the product, doubled by the op, one from the residual."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.name = f"layers.{index}"
        self.weight = nn.Parameter(torch.tensor(weight(index), dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        product = F.linear(x, self.weight).abs()
        out = product.new_empty(product.shape)
        torch.ops.fastcheck.add_neighbour(product, out, self.name)
        return x + out


class KnownAnswer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(index) for index in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def small_integers(size: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randint(-LARGEST_INPUT, LARGEST_INPUT + 1, (size, HIDDEN), generator=generator).float(),)


def answer(x: Tensor) -> Tensor:
    """What the layers above say, one number at a time."""
    rows = [[int(value) for value in row] for row in x.tolist()]
    for layer in range(LAYERS):
        matrix = weight(layer)
        products = [[abs(sum(map(operator.mul, line, row))) for line in matrix] for row in rows]
        neighbours = products[-1:] + products[:-1]
        terms = zip(rows, products, neighbours, strict=True)
        rows = [[sum(values) for values in zip(*term, strict=True)] for term in terms]
    return torch.tensor(rows, dtype=x.dtype)


KNOWN_ANSWER = Model(
    name="known-answer",
    build=KnownAnswer,
    inputs=small_integers,
    splitting_ops=("fastcheck::add_neighbour",),
    context=one_sequence,
    answer=answer,
    exact_outputs=("output",),
)


@pytest.mark.piecewise(KNOWN_ANSWER, tier="fastcheck")
def test_known_answer(piecewise):
    piecewise.check()
