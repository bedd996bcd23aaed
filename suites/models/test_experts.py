"""Mixtures of experts: routers with and without groups, shared experts, sinks, latent attention."""

from __future__ import annotations

import pytest

from .shapes import tiny_and_thin

pytest.importorskip("transformers", reason="needs transformers: pip install pytest-piecewise[models]")

QWEN_3_EXPERTS = {
    "model_type": "qwen3_moe",  # 30B-A3B
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
}

FEWER = {"num_experts": 32}  # of 128: 0.5e9 weights in three layers

QWEN_3_MOE, QWEN_3_MOE_THIN = tiny_and_thin("qwen-3-moe", QWEN_3_EXPERTS, thin=FEWER)
LOOP, LOOP_THIN = tiny_and_thin("qwen-3-moe-loop", QWEN_3_EXPERTS, thin=FEWER, experts="eager")

GPT_OSS, GPT_OSS_THIN = tiny_and_thin(
    "gpt-oss",  # 20B: sinks, a window in every other layer, experts with biases, biases in attention
    {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "vocab_size": 201088,
        "max_position_embeddings": 131072,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    thin={"num_local_experts": 8},
)

DEEPSEEK_V3, DEEPSEEK_V3_THIN = tiny_and_thin(
    "deepseek-v3",  # latent attention, dense layers first, grouped experts and a shared one
    {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "first_k_dense_replace": 3,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 40.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        },
    },
    thin={"n_routed_experts": 16, "num_experts_per_tok": 4},  # 256 would be 22e9 weights in two layers
)


@pytest.mark.piecewise({"cpu": QWEN_3_MOE, "cuda": QWEN_3_MOE_THIN}, tier="full")
def test_qwen_3_moe(piecewise):
    piecewise.check()


@pytest.mark.piecewise({"cpu": GPT_OSS, "cuda": GPT_OSS_THIN}, tier="full")
def test_gpt_oss(piecewise):
    piecewise.check()


@pytest.mark.piecewise({"cpu": DEEPSEEK_V3, "cuda": DEEPSEEK_V3_THIN}, tier="full")
def test_deepseek_v3(piecewise):
    piecewise.check()


@pytest.mark.piecewise(
    {"cpu": LOOP, "cuda": LOOP_THIN},
    tier="nightly",
    expected={
        "graph_breaks": "transformers' own loop over the experts that were chosen has as many rounds as the data say; "
        "experts_implementation='batched_mm', which hf_model takes, has no loop"
    },
)
def test_qwen_3_moe_loop(piecewise):
    piecewise.check()
