"""A Gemma-like decoder: sliding-window and full attention in turn, over two sequences packed into one batch.

Where one sequence ends and the next begins is known to the attention op alone, and differs between calls of one size:
metadata that was frozen into a graph at capture gives the right shapes and wrong numbers. The window is an argument of
the op and must not keep layers of both kinds from sharing their pieces.
"""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from pytest_piecewise import Model

from .layers import VOCABULARY, RMSNorm, Rotary, SelfAttention, SwiGLU, initialise, packed_sequences, tokens


class Layer(nn.Module):
    """Normalised before and after each half, as in Gemma 2."""

    def __init__(self, name: str, hidden: int, heads: int, window: int) -> None:
        super().__init__()
        self.before_attention, self.after_attention = RMSNorm(hidden), RMSNorm(hidden)
        self.before_mlp, self.after_mlp = RMSNorm(hidden), RMSNorm(hidden)
        self.attention = SelfAttention(f"{name}.attention", hidden, heads, window=window)
        self.mlp = SwiGLU(hidden, 2 * hidden)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.after_attention(self.attention(self.before_attention(x)[0], rotation))[0]
        return x + self.after_mlp(self.mlp(self.before_mlp(x)[0]))[0]


class SlidingWindow(nn.Module):
    def __init__(self, windows: tuple[int, ...] = (3, 0, 3), hidden: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.rotary = Rotary(hidden // heads)
        self.layers = nn.ModuleList(
            Layer(f"layers.{index}", hidden, heads, window) for index, window in enumerate(windows)
        )
        self.norm = RMSNorm(hidden)
        initialise(self)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(ids)
        rotation = self.rotary(positions)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.norm(x)[0]


SLIDING_WINDOW = Model(
    name="sliding-window",
    build=SlidingWindow,
    inputs=tokens,
    splitting_ops=("fastcheck::attention",),
    context=packed_sequences,
)


@pytest.mark.piecewise(SLIDING_WINDOW, tier="fastcheck")
def test_sliding_window(piecewise):
    piecewise.check()
