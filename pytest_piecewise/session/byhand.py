"""Builds alive in the test's own process, for people who want the pieces in hand: the `*_build` fixtures."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_piecewise.errors import ModelError
from pytest_piecewise.hooks import find_engine
from pytest_piecewise.models import Model
from pytest_piecewise.records import Call, Case, Counts, Settings
from pytest_piecewise.settings import chosen_dtypes

if TYPE_CHECKING:
    from pytest_piecewise.engines import Build
    from pytest_piecewise.measure import Meter


class LiveBuild:
    """A prepared build. Calling it runs the model: `build(size=8, seed=3)` gives the outputs by name."""

    def __init__(self, model: Model, build: Build, meter: Meter) -> None:
        self._model, self._meter = model, meter
        self.build = build
        """The engine's own object, with `module` and `run`."""

    def __repr__(self) -> str:
        kind = f", {self.build.graph_kind}" if self.build.graph_kind else ""
        pieces = f", {self.counts.pieces} pieces" if self.counts.pieces else ""
        return f"<{self.build.variant} build of {self._model.name}{pieces}{kind}>"

    def __call__(self, size: int, seed: int = 0, *, padding: str = "zero", graphs: bool = True) -> dict[str, Any]:
        """Outputs by name, real rows only. A size between captured ones is padded and replayed; one beyond the model's
        largest is a ModelError."""
        if not 1 <= size <= self._model.largest:
            raise ModelError(f"{self._model.name}: expected a size from 1 to {self._model.largest}, found {size}")
        call = Call(
            index=0, phase="by hand", size=size, padded_size=self._model.padded(size), seed=seed, padding=padding
        )
        return self.build.run(call, graphs=graphs)

    @property
    def counts(self) -> Counts:
        """Evidence so far: pieces, compiles, captures, replays, ..."""
        return self.build.counts

    @property
    def compile_seconds(self) -> float | None:
        """Wall seconds of tracing and compiling; None for eager."""
        return self._meter.seconds("compile")

    @property
    def capture_seconds(self) -> float | None:
        """Wall seconds of capturing all sizes; None without CUDA graphs, since recorded graphs are no captures."""
        return self._meter.seconds("capture") if self.build.graph_kind == "cuda graphs" else None

    @property
    def pool_bytes(self) -> int:
        """Bytes of the graph pool."""
        return self.build.pool_bytes


@contextmanager
def live_builds(
    settings: Settings, default_engine: str, skip: Callable[[str], NoReturn]
) -> Iterator[Callable[..., Callable[..., LiveBuild]]]:
    """Within it, `builder(variant)` gives the function behind one of the `*_build` fixtures.

    Caches are private to the test, numerics pinned, and everything is closed and reset at its end. `skip` is told why
    an engine cannot build here.
    """
    import torch  # noqa: PLC0415 - only for tests that build

    from pytest_piecewise.engines import Request  # noqa: PLC0415
    from pytest_piecewise.engines.prepare import pinned_numerics  # noqa: PLC0415
    from pytest_piecewise.measure import Meter  # noqa: PLC0415
    from pytest_piecewise.server import private_directories, quiet_trace_log, warm_imports  # noqa: PLC0415

    builds: list[Build] = []
    place = settings.device
    if place == "auto":
        place = "cuda" if torch.cuda.is_available() else "cpu"

    def builder(variant: str) -> Callable[..., LiveBuild]:
        def make(model: Model, *, dtype: str = "", engine: str = "", device: str = "") -> LiveBuild:
            (name,), meter = chosen_dtypes(dtype or model.dtypes[0], ()), Meter()
            case = Case(model="", name=model.name, engine=engine or default_engine, dtype=name, device=device or place)
            maker = find_engine(case.engine)
            if reason := maker.unsupported(case):
                skip(reason)
            request = Request(
                model=model,
                variant=variant,
                dtype=getattr(torch, case.dtype),
                device=torch.device(case.device),
                seed=settings.seed,
                meter=meter,
            )
            build = maker.build(request)
            builds.append(build)
            build.prepare()
            return LiveBuild(model, build, meter)

        return make

    before = dict(os.environ)
    warm_imports()
    with tempfile.TemporaryDirectory(prefix="piecewise-live-") as folder:
        try:
            private_directories(Path(folder))
            quiet_trace_log()
            with pinned_numerics(settings.threads, torch.device(place)):
                yield builder
        finally:
            for build in builds:
                build.close()
            torch.compiler.reset()
            os.environ.clear()
            os.environ.update(before)
            tempfile.tempdir = None
