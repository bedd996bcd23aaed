"""What the fastcheck models share: batch metadata, the attention op, and the usual layers of a transformer.

`fastcheck::attention` behaves as the attention of a serving engine does: it writes into an argument, learns from a
context variable how many rows are real and how sequences are packed into them, and touches no other row.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_piecewise import Call

VOCABULARY = 128
MAX_POSITIONS = 128


@dataclass(frozen=True)
class Batch:
    """The real rows of a call: the sequences packed into them have these lengths. Rows beyond are padding."""

    lengths: tuple[int, ...]

    @property
    def rows(self) -> int:
        return sum(self.lengths)


_BATCH: ContextVar[Batch] = ContextVar("fastcheck_batch")


def current_batch(layer_name: str) -> Batch:
    """The metadata of the call under way, for the op of the layer named."""
    try:
        return _BATCH.get()
    except LookupError:
        raise RuntimeError(f"{layer_name}: expected batch metadata, found none; call it within Model.context") from None


@contextmanager
def _batch(*lengths: int) -> Iterator[None]:
    token = _BATCH.set(Batch(lengths))
    try:
        yield
    finally:
        _BATCH.reset(token)


@contextmanager
def one_sequence(call: Call) -> Iterator[None]:
    """`Model.context` for a batch of one sequence: all real rows."""
    with _batch(call.size):
        yield


@contextmanager
def packed_sequences(call: Call) -> Iterator[None]:
    """`Model.context` for two sequences, cut elsewhere in every call of one size; either may be empty."""
    cut = random.Random(call.seed).randint(0, call.size)
    with _batch(cut, call.size - cut):
        yield


@torch.library.custom_op("fastcheck::attention", mutates_args=("out",))
def attention(q: Tensor, k: Tensor, v: Tensor, out: Tensor, layer_name: str, causal: bool, window: int) -> None:
    """Attention over `(rows, heads, features)`, within each sequence; `window` is how far back a row sees, 0: all."""
    batch = current_batch(layer_name)
    groups = q.shape[1] // k.shape[1]
    q, k, v = (tensor[: batch.rows].float() for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(groups, dim=1) for tensor in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    scores.masked_fill_(~_visible(batch, causal, window, q.device), float("-inf"))
    out[: batch.rows] = torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), v)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, out: Tensor, layer_name: str, causal: bool, window: int) -> None:
    return None


def _visible(batch: Batch, causal: bool, window: int, device: torch.device) -> Tensor:
    """Which row (first dimension) sees which (second)."""
    sequence = torch.arange(len(batch.lengths)).repeat_interleave(torch.tensor(batch.lengths))
    row = torch.arange(batch.rows)
    distance = row[:, None] - row
    visible = sequence[:, None] == sequence
    if causal:
        visible &= distance >= 0
    if window:
        visible &= distance.abs() < window
    return visible.to(device)


def attend(q: Tensor, k: Tensor, v: Tensor, layer_name: str, causal: bool = True, window: int = 0) -> Tensor:
    """Attention with its heads joined. The padding rows of the result are whatever the allocator left there."""
    out = q.new_empty(q.shape)
    torch.ops.fastcheck.attention(q, k, v, out, layer_name, causal, window)
    return out.flatten(1)


class RMSNorm(nn.Module):
    """Normalisation in float32; with a residual, that is added first and the sum returned as well."""

    def __init__(self, features: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.epsilon = epsilon

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total = x.float() if residual is None else x.float() + residual.float()
        scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return (total * scale).to(x.dtype) * self.weight, total.to(x.dtype)


class Rotary(nn.Module):
    """Rotary position embedding: tables as buffers, looked up once per call, applied in every layer."""

    def __init__(self, features: int, base: float = 10_000.0) -> None:
        super().__init__()
        frequencies = base ** (-torch.arange(0, features, 2) / features)
        angles = torch.outer(torch.arange(MAX_POSITIONS), frequencies)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies what `Rotary` looked up to `(rows, heads, features)`."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class SelfAttention(nn.Module):
    """Fused projection to queries, keys and values, optional rotation, the attention op, output projection."""

    def __init__(self, name: str, hidden: int, heads: int, causal: bool = True, window: int = 0) -> None:
        super().__init__()
        self.name, self.heads, self.causal, self.window = name, heads, causal, window
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        return self.output(attend(q, k, v, self.name, self.causal, self.window))


class SwiGLU(nn.Module):
    """Gated feed-forward layer with its two input projections fused."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


def initialise(module: nn.Module) -> None:
    """Random weights that keep activations of order one; with much smaller ones all outputs would be alike."""
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        elif name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
        else:
            nn.init.uniform_(parameter, 0.5, 1.5)
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight)


def tokens(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`Model.inputs`: token ids, and positions that start elsewhere in every call."""
    start = torch.randint(0, MAX_POSITIONS - size + 1, (1,), generator=generator)
    return torch.randint(0, VOCABULARY, (size,), generator=generator), start + torch.arange(size)
