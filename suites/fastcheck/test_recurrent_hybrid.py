"""A hybrid of recurrent and attention layers: the recurrent ones keep a state from call to call.

The state is a buffer that a splitting op writes into. It must advance once per call and by the real rows alone: warm-up
and capture that leave their mark, a row of padding that enters, an op captured by mistake and so run over the rows of
its capture: all of them show in the states, and in the outputs of every later call.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_piecewise import Model

from .layers import VOCABULARY, RMSNorm, Rotary, SelfAttention, SwiGLU, current_batch, initialise, one_sequence, tokens


@torch.library.custom_op("fastcheck::recurrence", mutates_args=("state", "out"))
def recurrence(value: Tensor, gate: Tensor, state: Tensor, out: Tensor, layer_name: str) -> None:
    """A gated linear recurrence over the real rows: a running mean, so the state never exceeds the values."""
    rows = current_batch(layer_name).rows
    value, keep = value[:rows].float(), gate[:rows].float().sigmoid()
    current = state.float()
    for row in range(rows):
        current = torch.lerp(value[row], current, keep[row])
        out[row] = current
    state.copy_(current)


@recurrence.register_fake
def _(value: Tensor, gate: Tensor, state: Tensor, out: Tensor, layer_name: str) -> None:
    return None


class RecurrentLayer(nn.Module):
    def __init__(self, name: str, hidden: int) -> None:
        super().__init__()
        self.name = name
        self.norm = RMSNorm(hidden)
        self.input = nn.Linear(hidden, 3 * hidden, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)
        self.register_buffer("state", torch.zeros(hidden))

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        value, gate, open_ = self.input(self.norm(x)[0]).chunk(3, dim=-1)
        out = value.new_empty(value.shape)
        torch.ops.fastcheck.recurrence(value, gate, self.state, out, self.name)
        return x + self.output(out * F.silu(open_))


class AttentionLayer(nn.Module):
    def __init__(self, name: str, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = RMSNorm(hidden), RMSNorm(hidden)
        self.attention = SelfAttention(name, hidden, heads=4)
        self.mlp = SwiGLU(hidden, 2 * hidden)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.attention_norm(x)[0], rotation)
        return x + self.mlp(self.mlp_norm(x)[0])


class RecurrentHybrid(nn.Module):
    """Recurrent and attention layers in turn, often enough for their pieces to repeat."""

    def __init__(self, pairs: int = 3, hidden: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.rotary = Rotary(hidden // 4)
        kinds = (RecurrentLayer, AttentionLayer) * pairs
        self.layers = nn.ModuleList(kind(f"layers.{index}", hidden) for index, kind in enumerate(kinds))
        self.norm = RMSNorm(hidden)
        initialise(self)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(ids)
        rotation = self.rotary(positions)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.norm(x)[0]


RECURRENT_HYBRID = Model(
    name="recurrent-hybrid",
    build=RecurrentHybrid,
    inputs=tokens,
    splitting_ops=("fastcheck::attention", "fastcheck::recurrence"),
    context=one_sequence,
    state=("layers.*.state",),
)


@pytest.mark.piecewise(RECURRENT_HYBRID, tier="fastcheck")
def test_recurrent_hybrid(piecewise):
    piecewise.check()
