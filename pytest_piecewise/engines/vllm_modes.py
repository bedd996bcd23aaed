"""Whole engines: what is asked of vLLM for each variant, and whether what must stay eager was left out of the pieces."""

from __future__ import annotations

import dataclasses
from typing import Any

from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode
from vllm.config.compilation import DynamicShapesConfig, DynamicShapesType

from pytest_piecewise.engines import Request
from pytest_piecewise.engines.checkpoint import declared_llm
from pytest_piecewise.engines.tracing import inductor_patches
from pytest_piecewise.engines.vllm_builds import as_pass
from pytest_piecewise.errors import ModelError
from pytest_piecewise.records import Counts, Finding, Status


def compilation(request: Request) -> CompilationConfig:
    """The configuration of a variant: what is asked of vLLM, and how it is to compile."""
    model, more = request.model, dict(declared_llm(request.model).arguments.get("compilation_config", {}))
    if decided := sorted({"mode", "cudagraph_mode", "splitting_ops", "cudagraph_capture_sizes"}.intersection(more)):
        raise ModelError(
            f"Model {model.name!r}: expected no {', '.join(decided)} in the compilation_config of its arguments, which the "
            "variants decide; use splitting_ops and capture_sizes of the model"
        )
    if request.variant != "eager":
        more |= {
            "backend": "inductor",
            "dynamic_shapes_config": DynamicShapesConfig(type=DynamicShapesType(model.dynamic_shapes)),
            "inductor_compile_config": {name: as_pass(value) for name, value in inductor_patches(model).items()},
        }
        if request.device.type == "cuda":
            more["cudagraph_capture_sizes"] = list(model.capture_sizes)
    return CompilationConfig(**asked_of_vllm(request), **more)


def asked_of_vllm(request: Request) -> dict[str, Any]:
    """vLLM's mode for a variant: NONE, one graph, or pieces; with CUDA graphs where there is a GPU. Nothing by default."""
    on_gpu, none = request.device.type == "cuda", CUDAGraphMode.NONE
    ops = {"splitting_ops": list(request.model.splitting_ops)} if request.model.splitting_ops else {}
    mode, full, piecewise = CompilationMode.VLLM_COMPILE, CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
    asked: dict[str, dict[str, Any]] = {
        "eager": {"mode": CompilationMode.NONE, "cudagraph_mode": none},
        "full": {"mode": mode, "cudagraph_mode": full if on_gpu else none, "splitting_ops": []},
        "piecewise": {"mode": mode, "cudagraph_mode": piecewise if on_gpu else none, **ops},
        "default": {},
    }
    return asked[request.variant]


def naming_captured_attention(item: Finding, counts: Counts) -> Finding:
    """The finding about splitting ops, failed if a piece holds an op at which vLLM would have split by itself."""
    inside = [where for where in counts.captured_ops if where.partition(" in ")[0] in CompilationConfig._attention_ops]
    if item.check != "splitting_ops" or item.variant != "piecewise" or not inside:
        return item
    return dataclasses.replace(
        item,
        status=Status.FAIL,
        summary=f"{item.summary}; vLLM splits at {len(inside)} more, which lie in pieces here: {', '.join(inside)}",
        action="name them in splitting_ops: what is captured keeps the metadata of the capture",
    )
