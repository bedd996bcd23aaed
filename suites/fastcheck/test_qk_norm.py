"""A Qwen3-like decoder: grouped queries, normalised queries and keys, and one weight at both ends of the model.

Queries and keys of different widths leave each piece, reductions run over a dimension of heads, and the embedding is
read by the first and the last piece: a compiled piece that keeps a copy of a weight misses its in-place update here.
"""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_piecewise import Model

from .layers import VOCABULARY, RMSNorm, Rotary, SwiGLU, attend, initialise, one_sequence, rotate, tokens


class GroupedQueryAttention(nn.Module):
    def __init__(self, name: str, hidden: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.name, self.features = name, hidden // heads
        self.q = nn.Linear(hidden, heads * self.features, bias=False)
        self.k = nn.Linear(hidden, key_heads * self.features, bias=False)
        self.v = nn.Linear(hidden, key_heads * self.features, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.features), RMSNorm(self.features)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (-1, self.features)) for project in (self.q, self.k, self.v))
        q, k = (rotate(norm(heads)[0], *rotation) for norm, heads in ((self.q_norm, q), (self.k_norm, k)))
        return self.output(attend(q, k, v, self.name))


class Layer(nn.Module):
    def __init__(self, name: str, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = RMSNorm(hidden), RMSNorm(hidden)
        self.attention = GroupedQueryAttention(f"{name}.attention", hidden, heads=4, key_heads=2)
        self.mlp = SwiGLU(hidden, 2 * hidden)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.attention_norm(x)[0], rotation)
        return x + self.mlp(self.mlp_norm(x)[0])


class QKNormDecoder(nn.Module):
    def __init__(self, layers: int = 3, hidden: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.rotary = Rotary(hidden // 4)
        self.layers = nn.ModuleList(Layer(f"layers.{index}", hidden) for index in range(layers))
        self.norm = RMSNorm(hidden)
        initialise(self)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(ids)
        rotation = self.rotary(positions)
        for layer in self.layers:
            x = layer(x, rotation)
        x, _ = self.norm(x)
        return F.linear(x, self.embedding.weight) * x.shape[-1] ** -0.5


QK_NORM = Model(
    name="qk-norm",
    build=QKNormDecoder,
    inputs=tokens,
    splitting_ops=("fastcheck::attention",),
    context=one_sequence,
)


@pytest.mark.piecewise(QK_NORM, tier="fastcheck")
def test_qk_norm(piecewise):
    piecewise.check()
