"""vLLM's post-grad pass manager without the passes that rewrite CUDA kernels. Imported late, by `VllmBackend`."""

from __future__ import annotations

from typing import Any

from torch import fx
from vllm.compilation.passes.inductor_pass import InductorPass, get_pass_context
from vllm.compilation.passes.pass_manager import PostGradPassManager


class CpuPassManager(PostGradPassManager):  # type: ignore[misc] - vLLM is not installed where types are checked
    """Runs the passes that the configuration adds, and none of vLLM's own: those are made for CUDA's kernels."""

    def configure(self, config: Any) -> None:
        """Nothing to configure."""

    def __call__(self, graph: fx.Graph) -> None:
        compile_range = get_pass_context().compile_range
        for added in self.passes:
            if added.is_applicable_for_range(compile_range):
                added(graph)

    def uuid(self) -> str:
        """Of the passes that were added: it is part of Inductor's cache key."""
        return str(InductorPass.hash_dict({"passes": [added.uuid() for added in self.passes]}))
