"""Dense decoders: what differs is grouped heads, norms and where they are, windows, soft caps, biases, rotary scaling."""

from __future__ import annotations

import pytest

from .shapes import tiny_and_thin

pytest.importorskip("transformers", reason="needs transformers: pip install pytest-piecewise[models]")

LLAMA_3, LLAMA_3_THIN = tiny_and_thin(
    "llama-3",  # 3.1 8B
    {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
)

QWEN_3, QWEN_3_THIN = tiny_and_thin(
    "qwen-3",  # 8B: norms of queries and keys
    {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
    },
)

GEMMA_3, GEMMA_3_THIN = tiny_and_thin(
    "gemma-3",  # 4B, the text part: five layers with windows for one without, norms on both sides, tied embeddings
    {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 1024,
            "sliding_window_pattern": 6,
            "vocab_size": 262208,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    },
)

PHI_3, PHI_3_THIN = tiny_and_thin(
    "phi-3",  # mini, 4k: fused projections
    {
        "model_type": "phi3",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32064,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "sliding_window": 2047,
    },
)

MISTRAL, MISTRAL_THIN = tiny_and_thin(
    "mistral",  # 7B v0.1: a window in every layer
    {
        "model_type": "mistral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
    },
)

OLMO_2, OLMO_2_THIN = tiny_and_thin(
    "olmo-2",  # 7B: norms after attention and feed-forward, and over all heads of queries and keys
    {
        "model_type": "olmo2",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 100352,
        "max_position_embeddings": 4096,
        "rope_theta": 500000.0,
    },
)


@pytest.mark.piecewise({"cpu": LLAMA_3, "cuda": LLAMA_3_THIN}, tier="full")
def test_llama_3(piecewise):
    piecewise.check()


@pytest.mark.piecewise({"cpu": QWEN_3, "cuda": QWEN_3_THIN}, tier="nightly")
def test_qwen_3(piecewise):
    piecewise.check()


@pytest.mark.piecewise({"cpu": GEMMA_3, "cuda": GEMMA_3_THIN}, tier="full")
def test_gemma_3(piecewise):
    piecewise.check()


@pytest.mark.piecewise({"cpu": PHI_3, "cuda": PHI_3_THIN}, tier="nightly")
def test_phi_3(piecewise):
    piecewise.check()


@pytest.mark.piecewise({"cpu": MISTRAL, "cuda": MISTRAL_THIN}, tier="nightly")
def test_mistral(piecewise):
    piecewise.check()


@pytest.mark.piecewise({"cpu": OLMO_2, "cuda": OLMO_2_THIN}, tier="nightly")
def test_olmo_2(piecewise):
    piecewise.check()
