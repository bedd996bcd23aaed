"""Engines with something changed in what vLLM is given, and one that never has what it needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_piecewise.engines import Build, Request
from pytest_piecewise.engines.vllm import VllmEngine, VllmLlmEngine
from pytest_piecewise.hooks import hookimpl
from pytest_piecewise.measure import Meter
from pytest_piecewise.records import Case

from .models import scaled


class Planted(VllmEngine):
    def __init__(self, name: str, plant: Callable[[Any], None]) -> None:
        self.name, self._plant = name, plant

    def build(self, request: Request) -> Build:
        build = super().build(request)
        if request.variant == "piecewise":
            self._plant(build)
        return build


class SharedCache(VllmEngine):
    """vLLM's cache was last used by a model that differs in a number only."""

    name = "shared_cache"

    def build(self, request: Request) -> Build:
        if request.variant == "piecewise":
            other = dataclasses.replace(request.model, build=partial(scaled, 3.0))
            first = super().build(dataclasses.replace(request, model=other, meter=Meter()))
            first.prepare()
            first.close()
        return super().build(request)


class TwoVariants(VllmLlmEngine):
    """Whole engines, as far as most faults need them."""

    name = "two_variants"
    variants = ("eager", "piecewise")


class Elsewhere(VllmEngine):
    name = "elsewhere"

    def unsupported(self, case: Case) -> str | None:
        return f"engine 'elsewhere' needs a machine that is not here, for {case.dtype}"


def moved_buffers(build: Any) -> None:
    """The static inputs lie elsewhere after capture than before."""
    prepare = build.prepare

    def prepare_and_move() -> None:
        prepare()
        held = build._inputs._held
        held.update({size: tuple(tensor.clone() for tensor in tensors) for size, tensors in held.items()})

    build.prepare = prepare_and_move


def short_capture(build: Any) -> None:
    """vLLM's configuration does not name the largest size."""
    build.config.compilation_config.cudagraph_capture_sizes.pop()


PLANTS = {plant.__name__: plant for plant in (moved_buffers, short_capture)}


@hookimpl
def piecewise_engine(name: str) -> VllmEngine | None:
    for engine in (Elsewhere, SharedCache, TwoVariants):
        if name == engine.name:
            return engine()
    plant = PLANTS.get(name)
    return Planted(name, plant) if plant else None
