"""Model classes of vLLM's own registry, whole: `LLM(...)` without compile, as one graph, in pieces, and as it is by default."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_piecewise import llm_model

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

LLAMA = llm_model(name="llm-llama", config={**SHAPE, "model_type": "llama", "architectures": ["LlamaForCausalLM"]})


@pytest.mark.piecewise(LLAMA, engine="vllm-llm", tier="full")
def test_llama(piecewise):
    piecewise.check()
