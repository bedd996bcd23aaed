"""The engine that builds with vLLM itself: modules decorated with `@support_torch_compile`, through its `VllmBackend`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pytest_piecewise.engines import Build, Request
from pytest_piecewise.engines.vllm_cpu import platform_asked_for
from pytest_piecewise.engines.vllm_versions import INSTALL, NEWEST, OLDEST, built_for, installed, release
from pytest_piecewise.errors import ModelError
from pytest_piecewise.records import Case

if TYPE_CHECKING:
    from torch import nn


class VllmEngine:
    """vLLM 0.26 to 0.33. Importing it imports neither torch nor vLLM; `build` does."""

    name = "vllm"
    preload: tuple[str, ...] = ("pytest_piecewise.engines.vllm_builds",)
    segmented = True
    partition = False
    """Whether Inductor is to make the pieces: vLLM's `use_inductor_graph_partition`."""

    def unsupported(self, case: Case) -> str | None:
        """Which vLLM is needed, if none fits the device."""
        found = installed()
        if found is None:
            return f"engine {self.name!r} needs vLLM, found none; install {INSTALL}"
        name, version = found
        if not OLDEST <= release(version) <= NEWEST:
            known = " to ".join(".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
            return f"engine {self.name!r} needs vLLM {known}, found {name} {version}; install {INSTALL}"
        device = built_for(name, version)
        if case.device.partition(":")[0] != device:
            return (
                f"engine {self.name!r} on {case.device}: found {name} {version}, built for {device}; install {INSTALL}"
            )
        return None

    def environ(self, case: Case) -> Mapping[str, str]:
        """None: vLLM's own settings are the user's."""
        return {}

    def build(self, request: Request) -> Build:
        """The variant asked for, not yet prepared. vLLM's caches lie where this process's temporary files do."""
        os.environ["VLLM_CACHE_ROOT"] = str(Path(tempfile.gettempdir()) / "vllm")
        with platform_asked_for():
            from pytest_piecewise.engines.vllm_builds import VllmBuild  # noqa: PLC0415 - torch and vLLM, in the child

        return VllmBuild(request, partition=self.partition)


class VllmPartitionEngine(VllmEngine):
    """The same, but that Inductor compiles the graph as a whole and makes the pieces itself."""

    name = "vllm-partition"
    partition = True

    def unsupported(self, case: Case) -> str | None:
        """As for the other one; and on a CPU."""
        if reason := super().unsupported(case):
            return reason
        if case.device == "cpu":
            return f"engine {self.name!r} needs a GPU: Inductor's scheduler takes no op that runs on a CPU into a partition"
        return None


class VllmLlmEngine(VllmEngine):
    """Whole engines: `LLM(...)` for a model declared with `llm_model`, in each of vLLM's modes and its default one."""

    name = "vllm-llm"
    segmented = False
    preload = ("pytest_piecewise.engines.vllm_llm",)
    variants = ("eager", "full", "piecewise", "default")

    def environ(self, case: Case) -> Mapping[str, str]:
        """One process per `LLM`, which is then seen whole; no network; the least cache that vLLM takes on a CPU."""
        return {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        }

    def build(self, request: Request) -> Build:
        """Refused: what a whole engine holds is not called as a module is."""
        raise ModelError(f"engine {self.name!r} has no builds to hold in hand; use the `piecewise` fixture")

    def tasks(self) -> ModuleType:
        """Its own way through the protocol."""
        os.environ["VLLM_CACHE_ROOT"] = str(Path(tempfile.gettempdir()) / "vllm")
        with platform_asked_for():
            from pytest_piecewise.engines import vllm_llm  # noqa: PLC0415 - torch and vLLM, in the child

        return vllm_llm

    def reference(self, request: Request) -> nn.Module:
        """The model as `transformers` has it: another implementation, on the same checkpoint."""
        from pytest_piecewise.engines.checkpoint import scored  # noqa: PLC0415 - torch, in the child

        return scored(request)
