"""vLLM's CPU platform with piecewise compilation left on, and recorded graphs where a GPU has CUDA graphs.

Imported by vLLM while `vllm.config` is still loading: names of classes that need it are given as strings.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from vllm.platforms.cpu import CpuPlatform

from pytest_piecewise.engines.vllm_versions import SWITCHES

AS_IT_IS = "pytest_piecewise_as_it_is"
"""Key in `additional_config`: this configuration gets what `CpuPlatform` makes of it, and nothing else."""

_KEPT = ("mode", "backend", "cudagraph_mode", "cudagraph_capture_sizes", "ir_enable_torch_wrap")


class RecordingCpuPlatform(CpuPlatform):  # type: ignore[misc]  # Any, where vLLM is not installed
    """What `CpuPlatform` is, but for what that does to `VLLM_COMPILE`."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Keeps `VLLM_COMPILE` and its graphs, of which `CpuPlatform` makes one Dynamo trace for the sake of start-up time.

        The fusions that a configuration switches on rewrite the kernels of a GPU; they are off.
        """
        from vllm.config import CompilationMode, CUDAGraphMode  # noqa: PLC0415 - see the module's docstring

        config = vllm_config.compilation_config
        asked = {name: getattr(config, name) for name in _KEPT}
        super().check_and_update_config(vllm_config)
        if AS_IT_IS in vllm_config.additional_config:
            config.cudagraph_mode = CUDAGraphMode.NONE  # as on a platform without static graphs, which this one is not
            return
        if asked["mode"] != CompilationMode.VLLM_COMPILE or config.mode != CompilationMode.DYNAMO_TRACE_ONCE:
            return
        for name, value in asked.items():
            setattr(config, name, value)
        # None, which the CPU platform leaves here, puts every size outside of what vLLM's PiecewiseBackend will run.
        config.compile_sizes = config.compile_sizes or []
        for field in dataclasses.fields(config.pass_config):
            if field.name.startswith(SWITCHES):
                setattr(config.pass_config, field.name, False)

    @classmethod
    def get_pass_manager_cls(cls) -> str:
        """Passes that a CPU can run."""
        return "pytest_piecewise.engines.vllm_passes.CpuPassManager"

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """Recorded graphs are static graphs."""
        return True

    @classmethod
    def get_static_graph_wrapper_cls(cls) -> str:
        """Recorded graphs."""
        return "pytest_piecewise.engines.vllm_graphs.RecordedGraphs"
