"""The Llama-3-8B shape, 32 layers and vLLM's 51 capture sizes: what piecewise compilation has to show on a GPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pytest_piecewise import Model

from .llama import Llama, Shape, initialise, tokens_of

LLAMA_3_8B = Shape(
    layers=32,
    hidden=4096,
    inner=14336,
    heads=32,
    key_heads=8,
    features=128,
    vocabulary=128256,
    positions=4096,
)


def build(layers: int = LLAMA_3_8B.layers) -> Llama:
    """Made in place on the GPU in bfloat16: on the CPU in float32 it would take minutes and 32 GB."""
    with torch.device("cuda"):
        model = Llama(dataclasses.replace(LLAMA_3_8B, layers=layers)).to(torch.bfloat16)
    initialise(model)
    return model


LLAMA_8B = Model(
    name="llama-3-8b-shape",
    build=build,
    inputs=tokens_of(LLAMA_3_8B),
    splitting_ops=("startup::attention",),
    capture_sizes=(1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)),
    dtypes=("bfloat16",),
)


@pytest.mark.piecewise(LLAMA_8B, tier="nightly", device="cuda")
def test_llama_8b(piecewise):
    piecewise.check()
