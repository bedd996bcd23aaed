"""The Llama-3-8B shape, 32 layers and vLLM's 51 capture sizes: what piecewise compilation has to show on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_piecewise import Model

from ..fastcheck.layers import RMSNorm, SwiGLU, rotate

HIDDEN, HEADS, KEY_HEADS, INNER, VOCABULARY, POSITIONS = 4096, 32, 8, 14336, 128256, 4096
FEATURES = HIDDEN // HEADS


@torch.library.custom_op("startup::attention", mutates_args=("out",))
def attention(q: Tensor, k: Tensor, v: Tensor, out: Tensor, layer_name: str) -> None:
    """Causal attention of one sequence over `(rows, heads, features)`. Rows see none that come later, padding included."""
    q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (q, k, v))
    result = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out.copy_(result.squeeze(0).transpose(0, 1))


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, out: Tensor, layer_name: str) -> None:
    return None


class Layer(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.attention_norm, self.mlp_norm = RMSNorm(HIDDEN), RMSNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KEY_HEADS) * FEATURES, bias=False)
        self.output = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.mlp = SwiGLU(HIDDEN, INNER)

    def forward(self, x: Tensor, residual: Tensor | None, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, residual = self.attention_norm(x, residual)
        q, k, v = self.qkv(x).unflatten(-1, (-1, FEATURES)).split((HEADS, KEY_HEADS, KEY_HEADS), dim=1)
        q, k = rotate(q, *rotation), rotate(k, *rotation)
        out = q.new_empty(q.shape)
        torch.ops.startup.attention(q, k, v, out, self.name)
        x, residual = self.mlp_norm(self.output(out.flatten(1)), residual)
        return self.mlp(x), residual


class Llama(nn.Module):
    """Token ids and positions to hidden states, as the compiled part of a serving engine's model."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer(f"layers.{index}") for index in range(layers))
        self.norm = RMSNorm(HIDDEN)
        frequencies = 500_000.0 ** (-torch.arange(0, FEATURES, 2) / FEATURES)
        angles = torch.outer(torch.arange(POSITIONS), frequencies)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x, residual = self.embedding(ids), None
        rotation = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        for layer in self.layers:
            x, residual = layer(x, residual, rotation)
        return self.norm(x, residual)[0]


def build(layers: int = 32) -> Llama:
    """Made in place on the GPU in bfloat16: on the CPU in float32 it would take minutes and 32 GB."""
    with torch.device("cuda"):
        model = Llama(layers).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return model


def tokens(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    start = torch.randint(0, POSITIONS - size, (1,), generator=generator)
    return torch.randint(0, VOCABULARY, (size,), generator=generator), start + torch.arange(size)


LLAMA_8B = Model(
    name="llama-3-8b-shape",
    build=build,
    inputs=tokens,
    splitting_ops=("startup::attention",),
    capture_sizes=(1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)),
    dtypes=("bfloat16",),
)


@pytest.mark.piecewise(LLAMA_8B, tier="nightly", device="cuda")
def test_llama_8b(piecewise):
    piecewise.check()
