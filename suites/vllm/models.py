"""What the tests of this suite build, decorated as vLLM's own models are. Imports vLLM: only builds import it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig

from ..fastcheck.layers import VOCABULARY, RMSNorm, Rotary, initialise
from ..fastcheck.test_llama import Layer
from .test_known_answer import HIDDEN, LAYERS, shift


@support_torch_compile(dynamic_arg_dims={"ids": 0, "positions": 0})
class Llama(nn.Module):
    """Embedding, rotary tables looked up once, layers with a residual stream beside them, norm, head."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "", hidden: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.rotary = Rotary(hidden // heads)
        self.layers = nn.ModuleList(Layer(f"{prefix}layers.{index}", hidden, heads) for index in range(LAYERS))
        self.norm = RMSNorm(hidden)
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)
        initialise(self)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x, residual = self.embedding(ids), None
        rotation = self.rotary(positions)
        for layer in self.layers:
            x, residual = layer(x, residual, rotation)
        return self.head(self.norm(x, residual)[0])


class Shift(nn.Module):
    """A projection that moves every feature to another place, with alternating sign."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        signs = torch.tensor([1.0, -1.0]).repeat(HIDDEN // 2)
        self.weight = nn.Parameter(torch.diag(signs).roll(shift(layer), dims=1))

    def forward(self, x: Tensor) -> Tensor:
        projected = F.linear(x, self.weight).abs()
        out = projected.new_empty(projected.shape)
        torch.ops.vllm_suite.larger_neighbour(projected, out)
        return out


@support_torch_compile(dynamic_arg_dims={"x": 0})
class KnownAnswer(nn.Module):
    """The same structure with a tractable answer: every layer sees the input again, beside what the last one made."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.layers = nn.ModuleList(Shift(index) for index in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.layers:
            y = (x - layer(y)).abs()
        return y
