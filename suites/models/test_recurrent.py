"""Layers that look back without attention: short convolutions between attention layers."""

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


@pytest.mark.piecewise({"cpu": LFM_2, "cuda": LFM_2_THIN}, tier="nightly")
def test_lfm_2(piecewise):
    piecewise.check()
