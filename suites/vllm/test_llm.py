"""Model classes of vLLM's own registry, whole: `LLM(...)` without compile, as one graph, in pieces, and as it is by default.

Each is judged by the same checkpoint in `transformers`, with every operation lifted to float64. Where the two write a
model differently, the difference is part of eager's error, and `answer` says how large that is.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_piecewise import Model, llm_model

SHAPE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


def small(model_type: str, architecture: str, **more: Any) -> Model:
    config = {**SHAPE, "model_type": model_type, "architectures": [architecture], **more}
    return llm_model(name=f"llm-{model_type.replace('_', '-')}", config=config)


LLAMA = small("llama", "LlamaForCausalLM")
QWEN3 = small("qwen3", "Qwen3ForCausalLM")
MIXTRAL = small("mixtral", "MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2)
QWEN3_MOE = small(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=64,
    norm_topk_prob=True,
)
GEMMA3 = small(
    "gemma3_text",
    "Gemma3ForCausalLM",
    sliding_window=16,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    tie_word_embeddings=True,
    query_pre_attn_scalar=32,
)


@pytest.mark.piecewise(LLAMA, engine="vllm-llm", tier="full")
def test_llama(piecewise):
    piecewise.check()


@pytest.mark.piecewise(QWEN3, engine="vllm-llm", tier="full")
def test_qwen3(piecewise):
    piecewise.check()


@pytest.mark.piecewise(MIXTRAL, engine="vllm-llm", tier="full")
def test_mixtral(piecewise):
    piecewise.check()


@pytest.mark.piecewise(QWEN3_MOE, engine="vllm-llm", tier="full")
def test_qwen3_moe(piecewise):
    piecewise.check()


@pytest.mark.piecewise(GEMMA3, engine="vllm-llm", tier="full")
def test_gemma3(piecewise):
    piecewise.check()
