"""A Llama of any shape, for the native engine: the compiled part of a serving engine's model, from ids to hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..fastcheck.layers import RMSNorm, SwiGLU, rotate


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers of a Hugging Face config, by shorter names."""

    layers: int
    hidden: int
    inner: int
    heads: int
    key_heads: int
    features: int
    vocabulary: int
    positions: int


ATTENTION = "startup::attention"


def attention(q: Tensor, k: Tensor, v: Tensor, out: Tensor, layer_name: str) -> None:
    """Causal attention of one sequence over `(rows, heads, features)`. Rows see none that come later, padding included."""
    q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (q, k, v))
    result = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out.copy_(result.squeeze(0).transpose(0, 1))


# Registered as serving engines do: what `custom_op` wraps around a call for autograd costs the step of a single token more
# than the kernels of its layer take.
torch.library.define(ATTENTION, torch.library.infer_schema(attention, mutates_args=("out",)))
torch.library.impl(ATTENTION, ("cpu", "cuda"), attention)


@torch.library.register_fake(ATTENTION)
def _(q: Tensor, k: Tensor, v: Tensor, out: Tensor, layer_name: str) -> None:
    return None


class Layer(nn.Module):
    def __init__(self, name: str, shape: Shape) -> None:
        super().__init__()
        self.name, self.heads, self.key_heads, self.features = name, shape.heads, shape.key_heads, shape.features
        self.attention_norm, self.mlp_norm = RMSNorm(shape.hidden), RMSNorm(shape.hidden)
        self.qkv = nn.Linear(shape.hidden, (shape.heads + 2 * shape.key_heads) * shape.features, bias=False)
        self.output = nn.Linear(shape.heads * shape.features, shape.hidden, bias=False)
        self.mlp = SwiGLU(shape.hidden, shape.inner)

    def forward(self, x: Tensor, residual: Tensor | None, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, residual = self.attention_norm(x, residual)
        heads = (self.heads, self.key_heads, self.key_heads)
        q, k, v = self.qkv(x).unflatten(-1, (-1, self.features)).split(heads, dim=1)
        q, k = rotate(q, *rotation), rotate(k, *rotation)
        out = q.new_empty(q.shape)
        torch.ops.startup.attention(q, k, v, out, self.name)
        x, residual = self.mlp_norm(self.output(out.flatten(1)), residual)
        return self.mlp(x), residual


class Llama(nn.Module):
    """Token ids and positions to hidden states."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        # cuDNN makes a plan for every number of rows that it has not seen: 80 ms each, in what is to measure captures.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(f"layers.{index}", shape) for index in range(shape.layers))
        self.norm = RMSNorm(shape.hidden)
        frequencies = 500_000.0 ** (-torch.arange(0, shape.features, 2) / shape.features)
        angles = torch.outer(torch.arange(shape.positions), frequencies)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x, residual = self.embedding(ids), None
        rotation = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        for layer in self.layers:
            x, residual = layer(x, residual, rotation)
        return self.norm(x, residual)[0]


def initialise(model: nn.Module) -> None:
    """Weights that keep activations of order one."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)


def tokens_of(shape: Shape) -> Callable[[int, torch.Generator], tuple[Tensor, Tensor]]:
    """`Model.inputs`: token ids, and positions that start elsewhere in every call."""

    def tokens(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        start = torch.randint(0, shape.positions - size, (1,), generator=generator)
        return torch.randint(0, shape.vocabulary, (size,), generator=generator), start + torch.arange(size)

    return tokens
