"""A small Llama, natively and through vLLM: one table, since both have the same name. It runs on a CPU as well."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_piecewise import Model, llm_model

from .llama import Llama, Shape, initialise, tokens_of

SMALL = Shape(layers=12, hidden=64, inner=128, heads=4, key_heads=2, features=32, vocabulary=256, positions=128)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": SMALL.layers,
    "hidden_size": SMALL.hidden,
    "intermediate_size": SMALL.inner,
    "num_attention_heads": SMALL.heads,
    "num_key_value_heads": SMALL.key_heads,
    "head_dim": SMALL.features,
    "vocab_size": SMALL.vocabulary,
    "max_position_embeddings": SMALL.positions,
    "tie_word_embeddings": False,
}
SIZES = (1, 2, 4, 8)


def build() -> Llama:
    model = Llama(SMALL)
    initialise(model)
    return model


NATIVE = Model(
    name="startup-llama",
    build=build,
    inputs=tokens_of(SMALL),
    splitting_ops=("startup::attention",),
    capture_sizes=SIZES,
    dtypes=("float32",),
)
VLLM = llm_model(name="startup-llama", config=CONFIG, capture_sizes=SIZES)


@pytest.mark.piecewise(NATIVE, tier="nightly")
def test_native(piecewise):
    piecewise.check()


@pytest.mark.piecewise(VLLM, engine="vllm-llm", tier="nightly")
def test_vllm(piecewise):
    piecewise.check()
