"""A BERT-like encoder: no causal mask, normalisation after the residual, learned positions.

Without a mask every real row attends to every other, and the padding rows lie behind all of them: one padding row that
gets into the attention changes all outputs, where a causal decoder would hide it.
"""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_piecewise import Model

from .layers import MAX_POSITIONS, VOCABULARY, SelfAttention, initialise, one_sequence, tokens


class Layer(nn.Module):
    def __init__(self, name: str, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(f"{name}.attention", hidden, heads, causal=False)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        return self.mlp_norm(x + self.down(F.gelu(self.up(x), approximate="tanh")))


class Encoder(nn.Module):
    def __init__(self, layers: int = 3, hidden: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, hidden), nn.Embedding(MAX_POSITIONS, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(Layer(f"layers.{index}", hidden, heads) for index in range(layers))
        initialise(self)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.places(positions))
        for layer in self.layers:
            x = layer(x)
        return x


ENCODER = Model(
    name="encoder",
    build=Encoder,
    inputs=tokens,
    splitting_ops=("fastcheck::attention",),
    context=one_sequence,
)


@pytest.mark.piecewise(ENCODER, tier="fastcheck")
def test_encoder(piecewise):
    piecewise.check()
