"""Whole engines that are wrong on order, and a clean one. Not collected by itself: most of them fail."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest

from pytest_piecewise import llm_model

from ..planted import models as native
from ..planted.models import ChangedConstant
from .cases import case

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "rms_norm_eps": 0.125,  # the constant that `ChangedConstant` gets wrong
    "tie_word_embeddings": False,
}

model = partial(llm_model, config=CONFIG, capture_sizes=(1, 2), prompt_tokens=(2, 12), new_tokens=3)

CLEAN = model(name="clean-llm")
BESIDE = dataclasses.replace(native.CLEAN, name=CLEAN.name, dtypes=("float32",))
"""Of the same name, though not of the same shape: the start-up table is the same to both."""
DUMMY = model(name="dummy-llm", arguments={"load_format": "dummy"})
LEFT_OUT = model(name="left-out-llm", splitting_ops=("vllm::unified_kv_cache_update",))
CHANGED = model(name="changed-llm", inductor_config={"post_grad_custom_post_pass": ChangedConstant()})


@pytest.mark.piecewise(CLEAN, engine="vllm-llm", tier="nightly")
def test_clean(piecewise: Any) -> None:
    piecewise.check()


@pytest.mark.piecewise(BESIDE, tier="nightly")
def test_beside(piecewise: Any) -> None:
    piecewise.check()


test_dummy = case(DUMMY, "two_variants")
test_changed = case(CHANGED, "two_variants")
test_left_out = case(LEFT_OUT, "two_variants")
