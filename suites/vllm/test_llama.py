"""A Llama-like decoder through `@support_torch_compile`: 25 graphs after the split, 13 of them compiled and captured.

The attention op is written as vLLM's own tests have it: it writes into `out`, and learns from a context, not from its
arguments, how many rows are real.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_piecewise import Model

from ..fastcheck.layers import packed_sequences, tokens


def build(vllm_config: Any) -> Any:
    from .models import Llama  # noqa: PLC0415 - vLLM, which only the process that builds needs

    return Llama(vllm_config=vllm_config)


VLLM_LLAMA = Model(
    name="vllm-llama",
    build=build,
    inputs=tokens,
    splitting_ops=("fastcheck::attention",),
    context=packed_sequences,
)


@pytest.mark.piecewise(VLLM_LLAMA, engine="vllm", tier="fastcheck")
def test_llama(piecewise):
    piecewise.check()


@pytest.mark.piecewise(VLLM_LLAMA, engine="vllm-partition", tier="fastcheck")
def test_llama_partitioned_by_inductor(piecewise):
    piecewise.check()
