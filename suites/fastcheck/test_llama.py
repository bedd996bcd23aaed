"""A Llama-like decoder: the graph that piecewise compilation was made for.

The residual stream crosses every attention op beside that op's own result, rotary tables looked up in the first piece
are read by all later ones, and all middle layers are one piece: an output of one piece that is overwritten before a
later piece reads it, or a layer compiled apart for no reason, shows here first.
"""

from __future__ import annotations

from functools import partial

import pytest
from torch import Tensor, nn

from pytest_piecewise import Model

from .layers import VOCABULARY, RMSNorm, Rotary, SelfAttention, SwiGLU, initialise, one_sequence, tokens


class Layer(nn.Module):
    def __init__(self, name: str, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = RMSNorm(hidden), RMSNorm(hidden)
        self.attention = SelfAttention(f"{name}.attention", hidden, heads)
        self.mlp = SwiGLU(hidden, 2 * hidden)

    def forward(self, x: Tensor, residual: Tensor | None, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, residual = self.attention_norm(x, residual)
        x, residual = self.mlp_norm(self.attention(x, rotation), residual)
        return self.mlp(x), residual


class Llama(nn.Module):
    def __init__(self, layers: int, hidden: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.rotary = Rotary(hidden // heads)
        self.layers = nn.ModuleList(Layer(f"layers.{index}", hidden, heads) for index in range(layers))
        self.norm = RMSNorm(hidden)
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)
        initialise(self)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x, residual = self.embedding(ids), None
        rotation = self.rotary(positions)
        for layer in self.layers:
            x, residual = layer(x, residual, rotation)
        return self.head(self.norm(x, residual)[0])


TINY_LLAMA = Model(
    name="tiny-llama",
    build=partial(Llama, layers=4),
    inputs=tokens,
    splitting_ops=("fastcheck::attention",),
    context=one_sequence,
)

DEEP_LLAMA = Model(
    name="deep-llama",
    build=partial(Llama, layers=24),
    inputs=tokens,
    splitting_ops=("fastcheck::attention",),
    context=one_sequence,
)


@pytest.mark.piecewise(TINY_LLAMA, tier="fastcheck")
def test_tiny_llama(piecewise):
    piecewise.check()


@pytest.mark.piecewise(DEEP_LLAMA, tier="full")
def test_deep_llama(piecewise):
    """As many distinct pieces as with four layers: the cost of compilation must not grow with depth."""
    piecewise.check()
