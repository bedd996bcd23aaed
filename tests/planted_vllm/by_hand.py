"""Builds in the test's own process, for what only they show: vLLM's own counter."""

from __future__ import annotations

from typing import Any

from suites.vllm.test_known_answer import LAYERS, VLLM_KNOWN_ANSWER

SIZES = len(VLLM_KNOWN_ANSWER.capture_sizes)


def test_counters(full_build: Any, piecewise_build: Any) -> None:
    """What vLLM's tests expect of the same structure, `tests/compile/fullgraph/test_toy_llama.py` among them."""
    full, split = (
        make(VLLM_KNOWN_ANSWER, engine="vllm").build.compilation_counts for make in (full_build, piecewise_build)
    )
    expected = {
        "num_models_seen": (1, 1),
        "num_graphs_seen": (1, 1),
        "num_piecewise_graphs_seen": (1, 2 * LAYERS + 1),
        "num_piecewise_capturable_graphs_seen": (1, LAYERS + 1),
        "num_backend_compilations": (1, LAYERS + 1),
        "num_cudagraph_captured": (0, SIZES * (LAYERS + 1)),
    }
    assert {name: (full[name], split[name]) for name in expected} == expected


def test_counters_of_two_builds_are_kept_apart(piecewise_build: Any) -> None:
    first = piecewise_build(VLLM_KNOWN_ANSWER, engine="vllm")
    before = dict(first.build.compilation_counts)
    piecewise_build(VLLM_KNOWN_ANSWER, engine="vllm")
    first(size=3)
    assert first.build.compilation_counts == before
