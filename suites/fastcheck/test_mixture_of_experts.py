"""A mixture of experts, which returns what its router decided beside the hidden states.

An error too small for any tolerance on hidden states can still send a token to another expert: the chosen ids are
compared exactly, and a different choice is excused only where the scores nearly tie.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_piecewise import Model

from .layers import VOCABULARY, RMSNorm, Rotary, SelfAttention, initialise, one_sequence, tokens


class Experts(nn.Module):
    """Every expert computes every row, and the chosen ones are gathered: no shape depends on data."""

    def __init__(self, hidden: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Parameter(torch.empty(experts, hidden))
        self.up = nn.Parameter(torch.empty(experts, inner, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, inner))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Scores in float32, as in most real mixtures: in bfloat16 many would tie exactly.
        logits = F.linear(x.float(), self.router.float())
        scores, ids = logits.topk(self.chosen + 1, dim=-1)
        # An expert counts by its lead over the best one left out, so it enters with weight zero: a near tie, decided
        # either way, leaves the hidden states nearly the same.
        lead = (scores[:, :-1] - scores[:, -1:]).to(x.dtype)
        ids = ids[:, :-1]
        everyone = torch.einsum("nei,ehi->neh", F.silu(torch.einsum("nh,eih->nei", x, self.up)), self.down)
        selected = everyone.gather(1, ids.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return (lead.unsqueeze(-1) * selected).sum(dim=1), ids, logits


class Layer(nn.Module):
    def __init__(self, name: str, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.experts_norm = RMSNorm(hidden), RMSNorm(hidden)
        self.attention = SelfAttention(f"{name}.attention", hidden, heads)
        self.experts = Experts(hidden, hidden, experts=8, chosen=2)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        x = x + self.attention(self.attention_norm(x)[0], rotation)
        mixed, ids, logits = self.experts(self.experts_norm(x)[0])
        return x + mixed, ids, logits


class MixtureOfExperts(nn.Module):
    def __init__(self, layers: int = 3, hidden: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.rotary = Rotary(hidden // heads)
        self.layers = nn.ModuleList(Layer(f"layers.{index}", hidden, heads) for index in range(layers))
        self.norm = RMSNorm(hidden)
        initialise(self)

    def forward(self, ids: Tensor, positions: Tensor) -> dict[str, Tensor]:
        x = self.embedding(ids)
        rotation = self.rotary(positions)
        choices, scores = [], []
        for layer in self.layers:
            x, expert_ids, router_logits = layer(x, rotation)
            choices.append(expert_ids)
            scores.append(router_logits)
        return {
            "hidden": self.norm(x)[0],
            "expert_ids": torch.stack(choices, dim=1),
            "router_logits": torch.stack(scores, dim=1),
        }


MIXTURE_OF_EXPERTS = Model(
    name="mixture-of-experts",
    build=MixtureOfExperts,
    inputs=tokens,
    splitting_ops=("fastcheck::attention",),
    context=one_sequence,
    ties={"expert_ids": "router_logits"},
)


@pytest.mark.piecewise(MIXTURE_OF_EXPERTS, tier="fastcheck")
def test_mixture_of_experts(piecewise):
    piecewise.check()
