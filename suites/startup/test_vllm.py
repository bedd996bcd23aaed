"""What vLLM needs to get ready, and what the native engine needs for a model of the same shape: the start-up table."""

from __future__ import annotations

import pytest

from pytest_piecewise import llm_model

from ..vllm.test_llm import SHAPE

DEEP_LLAMA = llm_model(
    name="startup-llama",
    config={**SHAPE, "num_hidden_layers": 12, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
)


@pytest.mark.piecewise(DEEP_LLAMA, engine="vllm-llm", tier="nightly")
def test_llama(piecewise):
    piecewise.check()
