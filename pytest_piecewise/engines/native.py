"""The engine that needs only torch: eager, one Inductor graph, or pieces compiled once each and captured per size."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_piecewise.engines import Build, Request
from pytest_piecewise.records import Case


class NativeEngine:
    """Stock torch, 2.11 to 2.15. Importing it imports no torch; `build` does."""

    name = "native"
    preload: tuple[str, ...] = ()
    inductor_cache = True
    """Its builds take compiled code from Inductor's cache directory, and from nowhere else."""
    segmented = True

    def unsupported(self, case: Case) -> str | None:
        """Nothing: what the device cannot do shows when the model is probed."""
        return None

    def environ(self, case: Case) -> Mapping[str, str]:
        """None."""
        return {}

    def build(self, request: Request) -> Build:
        """The variant asked for, not yet prepared."""
        from pytest_piecewise.engines.builds import (  # noqa: PLC0415 - torch, only in the process that builds
            EagerBuild,
            FullBuild,
            PiecewiseBuild,
        )

        builds: dict[str, Callable[[Request], Build]] = {
            "eager": EagerBuild,
            "full": FullBuild,
            "piecewise": PiecewiseBuild,
        }
        return builds[request.variant](request)
