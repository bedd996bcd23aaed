"""Extension points: a pluggy manager of our own, since children and the command line run without pytest.

Plugins are importable modules: entry points of the group `pytest_piecewise`, or names in
`[tool.pytest_piecewise] plugins`, which reach children through the environment. Built-ins register the same way.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

from pytest_piecewise.errors import ModelError

if TYPE_CHECKING:
    from pytest_piecewise.engines import Engine
    from pytest_piecewise.models import Model
    from pytest_piecewise.records import Report

PLUGINS_VARIABLE = "PYTEST_PIECEWISE_PLUGINS"

hookspec = pluggy.HookspecMarker("pytest_piecewise")
hookimpl = pluggy.HookimplMarker("pytest_piecewise")


class Specs:
    """The hooks that a plugin module may implement."""

    @hookspec(firstresult=True)
    def piecewise_engine(self, name: str) -> Engine | None:
        """The engine of that name, or None. Called in the parent and in every child; must not import torch."""

    @hookspec
    def piecewise_models(self) -> Sequence[Model]:
        """Models that `--piecewise-model NAME` finds by their name. Must not import torch."""
        raise NotImplementedError

    @hookspec
    def piecewise_report(self, report: Report) -> None:
        """Called once, at the end of a session, in the controlling process."""


class _BuiltIn:
    @hookimpl(trylast=True)
    def piecewise_engine(self, name: str) -> Engine | None:
        from pytest_piecewise.engines.native import NativeEngine  # noqa: PLC0415 - engines lie above this layer
        from pytest_piecewise.engines.vllm import (  # noqa: PLC0415
            VllmEngine,
            VllmLlmEngine,
            VllmPartitionEngine,
        )

        built_in: dict[str, type[Engine]] = {
            engine.name: engine for engine in (NativeEngine, VllmEngine, VllmPartitionEngine, VllmLlmEngine)
        }
        return built_in[name]() if name in built_in else None


def manager() -> pluggy.PluginManager:
    """A plugin manager with the built-ins, the entry points and the configured modules registered and checked."""
    plugins = pluggy.PluginManager("pytest_piecewise")
    plugins.add_hookspecs(Specs)
    plugins.register(_BuiltIn(), "built-in")
    plugins.load_setuptools_entrypoints("pytest_piecewise")
    for name in filter(None, os.environ.get(PLUGINS_VARIABLE, "").split(",")):
        try:
            plugins.register(__import__(name, fromlist=["_"]), name)
        except ImportError as error:
            raise ModelError(f"expected an importable plugin module {name!r} in `plugins`, found: {error}") from error
    try:
        plugins.check_pending()
    except pluggy.PluginValidationError as error:
        raise ModelError(
            f"{error}; the hooks are {', '.join(name for name in vars(Specs) if name[0] != '_')}"
        ) from error
    return plugins


def find_engine(name: str) -> Engine:
    """The engine of that name; an unknown one is an error."""
    engine: Engine | None = manager().hook.piecewise_engine(name=name)
    if engine is None:
        raise ModelError(
            f"expected a known engine, found {name!r}; known are native, vllm, vllm-partition, vllm-llm, and what plugins "
            "provide"
        )
    return engine
