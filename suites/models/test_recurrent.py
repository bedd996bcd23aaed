"""Layers with a state: short convolutions and state spaces, alone and beside attention."""

from __future__ import annotations

import pytest

from .shapes import tiny_and_thin

pytest.importorskip("transformers", reason="needs transformers: pip install pytest-piecewise[models]")

LFM_2, LFM_2_THIN = tiny_and_thin(
    "lfm-2",  # 1.2B: short convolutions, attention in every third layer
    {
        "model_type": "lfm2",
        "hidden_size": 2048,
        "intermediate_size": 12288,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "conv_L_cache": 3,
        "layer_types": [*(["conv", "conv", "full_attention"] * 3), *(["conv", "full_attention"] * 3), "conv"],
        "vocab_size": 65536,
        "max_position_embeddings": 128000,
        "rope_theta": 1000000.0,
    },
)

BAMBA, BAMBA_THIN = tiny_and_thin(
    "bamba",  # 9B: Mamba 2, with attention in three of 32 layers
    {
        "model_type": "bamba",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "attn_layer_indices": [9, 18, 27],
        "mamba_n_heads": 128,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 256,
        "vocab_size": 128256,
        "max_position_embeddings": 262144,
    },
)


@pytest.mark.piecewise({"cpu": LFM_2, "cuda": LFM_2_THIN}, tier="full")
def test_lfm_2(piecewise):
    piecewise.check()


@pytest.mark.piecewise({"cpu": BAMBA, "cuda": BAMBA_THIN}, tier="full")
def test_bamba(piecewise):
    piecewise.check()
