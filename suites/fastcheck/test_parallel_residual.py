"""A GPT-J-like decoder: attention and MLP read the same normalised input, and both are added to the residual.

The MLP is computed before the attention op and used after it. In between, its result is the output of a captured piece
that nothing in the graph reads: memory given away too early, or a split that reorders, goes wrong here.
"""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_piecewise import Model

from .layers import VOCABULARY, Rotary, SelfAttention, initialise, one_sequence, tokens


class Layer(nn.Module):
    def __init__(self, name: str, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.attention = SelfAttention(f"{name}.attention", hidden, heads)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        normal = self.norm(x)
        mlp = self.down(F.gelu(self.up(normal)))
        return x + mlp + self.attention(normal, rotation)


class ParallelResidual(nn.Module):
    def __init__(self, layers: int = 3, hidden: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.rotary = Rotary(hidden // heads)
        self.layers = nn.ModuleList(Layer(f"layers.{index}", hidden, heads) for index in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, VOCABULARY)
        initialise(self)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(ids)
        rotation = self.rotary(positions)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.head(self.norm(x))


PARALLEL_RESIDUAL = Model(
    name="parallel-residual",
    build=ParallelResidual,
    inputs=tokens,
    splitting_ops=("fastcheck::attention",),
    context=one_sequence,
)


@pytest.mark.piecewise(PARALLEL_RESIDUAL, tier="fastcheck")
def test_parallel_residual(piecewise):
    piecewise.check()
