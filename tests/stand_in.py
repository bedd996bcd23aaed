"""An engine that compiles nothing, for sessions in which something else is looked at: eager builds, invented evidence.

As a pytest plugin (`-p tests.stand_in`) it also spares the server its throw-away compilation, which nobody needs then.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_piecewise.engines import Build, Request
from pytest_piecewise.hooks import hookimpl
from pytest_piecewise.records import Call, Case, Counts

KERNELS = "STAND_IN_KERNELS"
"""Environment variable with the number of kernels that a build says it has generated."""
NAMES = ("stand_in", "stand_in_wrong", "stand_in_recompiled", "stand_in_sleeping", "stand_in_absent")


class StandIn:
    """`stand_in`, and with one fault each `stand_in_wrong` (equivalence), `stand_in_recompiled` (structure),
    and `stand_in_sleeping` (never done compiling).

    `stand_in_absent` can build nothing anywhere: tests that use it need neither torch nor a server.
    """

    preload: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    def unsupported(self, case: Case) -> str | None:
        return "the engine is on holiday" if self.name == "stand_in_absent" else None

    def environ(self, case: Case) -> Mapping[str, str]:
        return {}

    def build(self, request: Request) -> Build:
        from pytest_piecewise.engines.native import NativeEngine

        eager = NativeEngine().build(dataclasses.replace(request, variant="eager"))
        return eager if request.variant == "eager" else Invented(eager, request, self.name)


class Invented:
    """An eager build under another name, with the counts that a good build of two pieces would have."""

    pool_bytes = 0

    def __init__(self, eager: Build, request: Request, engine: str) -> None:
        self._eager, self._request, self._engine = eager, request, engine
        self.variant, self.module = request.variant, eager.module
        self.graph_kind = "recorded graphs" if self.variant == "piecewise" else ""
        self._pieces = 2 if self.variant == "piecewise" else 1
        self._runs = {True: 0, False: 0}

    def prepare(self) -> None:
        with self._request.meter.phase("compile"):
            time.sleep(3600 if self._engine == "stand_in_sleeping" else 0)

    def run(self, call: Call, *, graphs: bool = True) -> dict[str, Any]:
        self._runs[bool(self.graph_kind and graphs and call.padded_size)] += 1
        factor = 1.01 if self._engine == "stand_in_wrong" and self.variant == "piecewise" else 1
        return {name: tensor * factor for name, tensor in self._eager.run(call).items()}

    @property
    def counts(self) -> Counts:
        sizes, replayed = self._request.model.capture_sizes, bool(self.graph_kind)
        recompiles = ("the weather has changed",) if self._engine == "stand_in_recompiled" else ()
        return Counts(
            graphs=1 + len(recompiles),
            pieces=self._pieces,
            distinct_pieces=self._pieces,
            compiles=self._pieces,
            kernels=int(os.environ.get(KERNELS, "3")),
            splitting_ops=1,
            captures=self._pieces * len(sizes) * replayed,
            replays=self._pieces * self._runs[True],
            compiled_calls=self._pieces * self._runs[False],
            recompiles=recompiles,
            captured_sizes=sizes if replayed else (),
        )

    def close(self) -> None:
        self._eager.close()


@hookimpl
def piecewise_engine(name: str) -> StandIn | None:
    return StandIn(name) if name in NAMES else None


def pytest_configure(config: pytest.Config) -> None:
    from pytest_piecewise.workers import Children

    warm_up = Children._warm_up
    Children._warm_up = lambda self, what, on_tick: warm_up(self, "imports", on_tick)
