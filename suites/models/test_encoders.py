"""Encoders: every row sees every other one, in a text or in the patches of an image."""

from __future__ import annotations

import pytest

from .shapes import tiny_and_thin

pytest.importorskip("transformers", reason="needs transformers: pip install pytest-piecewise[models]")

BERT, BERT_THIN = tiny_and_thin(
    "bert",  # base
    {
        "model_type": "bert",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
    },
    task="encoder",
)

MODERN_BERT, MODERN_BERT_THIN = tiny_and_thin(
    "modern-bert",  # base: windows on both sides in two of three layers, rotary positions, gated feed-forward layers
    {
        "model_type": "modernbert",
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "vocab_size": 50368,
        "max_position_embeddings": 8192,
    },
    task="encoder",
)

VIT, VIT_THIN = tiny_and_thin(
    "vit",  # base, patches of 16 by 16: the size is the number of images
    {
        "model_type": "vit",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 16,
    },
    task="vision",
)


@pytest.mark.piecewise({"cpu": BERT, "cuda": BERT_THIN}, tier="nightly")
def test_bert(piecewise):
    piecewise.check()


@pytest.mark.piecewise({"cpu": MODERN_BERT, "cuda": MODERN_BERT_THIN}, tier="nightly")
def test_modern_bert(piecewise):
    piecewise.check()


@pytest.mark.piecewise({"cpu": VIT, "cuda": VIT_THIN}, tier="nightly")
def test_vit(piecewise):
    piecewise.check()
