"""vLLM's post-grad pass manager, fit for a CPU. Imported late, by `VllmBackend`: its base needs all of `vllm.config`."""

from __future__ import annotations

from typing import Any

from torch import fx
from vllm.compilation.passes.inductor_pass import InductorPass
from vllm.compilation.passes.pass_manager import PostGradPassManager


class CpuPassManager(PostGradPassManager):  # type: ignore[misc]  # Any, where vLLM is not installed
    """vLLM's own passes in vLLM's order, but for the last one, which looks for CUDA's kernels by name and fails."""

    def configure(self, config: Any) -> None:
        """As ever; then leaves functionalized ops to Inductor, which undoes them by itself."""
        super().configure(config)
        self.fix_functionalization = NoPass()


class NoPass(InductorPass):  # type: ignore[misc]  # Any, where vLLM is not installed
    """Leaves the graph as it is."""

    def __call__(self, graph: fx.Graph) -> None:
        """Does nothing."""
