"""Llama and Qwen3 as `transformers` has them, with attention routed through a splitting op.

What others wrote, unchanged: batched shapes with a leading one, masks, rotary embedding under a disabled autocast,
wrappers round every forward. It shows what a new release of torch or transformers does to the graph: a break, another
guard, a constant that makes every layer a piece of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from pytest_piecewise import Model

from .layers import VOCABULARY, attend, initialise, one_sequence, tokens

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install pytest-piecewise[models]")

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
    "use_cache": False,
    "attn_implementation": "fastcheck",
}

ALLOW = {
    "bits_full": "the graph takes sin and cos of rotary angles; Inductor's C++ has a vector and a scalar form of both, "
    "unlike in the last bit, and picks one by what it is fused with, which differs between full and piecewise"
}


def splitting_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **options: Any
) -> tuple[Tensor, None]:
    """An attention function for `transformers`: a batch of one, whose rows are split from padding by the op."""
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return attend(q, k, v, f"layers.{module.layer_idx}.attention")[None], None


class CausalLM(nn.Module):
    """Token ids and positions in, logits out, without the batch dimension of the model within."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        initialise(self)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0]


def build_llama() -> nn.Module:
    transformers.AttentionInterface.register("fastcheck", splitting_attention)
    return CausalLM(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)))


def build_qwen3() -> nn.Module:
    transformers.AttentionInterface.register("fastcheck", splitting_attention)
    return CausalLM(transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE)))


TRANSFORMERS_LLAMA = Model(
    name="transformers-llama",
    build=build_llama,
    inputs=tokens,
    splitting_ops=("fastcheck::attention",),
    context=one_sequence,
    allow=ALLOW,
)

TRANSFORMERS_QWEN3 = Model(
    name="transformers-qwen3",
    build=build_qwen3,
    inputs=tokens,
    splitting_ops=("fastcheck::attention",),
    context=one_sequence,
    allow=ALLOW,
)


@pytest.mark.piecewise(TRANSFORMERS_LLAMA, tier="fastcheck")
def test_transformers_llama(piecewise):
    piecewise.check()


@pytest.mark.piecewise(TRANSFORMERS_QWEN3, tier="fastcheck")
def test_transformers_qwen3(piecewise):
    piecewise.check()
