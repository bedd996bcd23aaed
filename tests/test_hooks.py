"""Plugins: how engines, models and reports of others are found, and what is wrong with them said."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pluggy
import pytest

from pytest_piecewise import Case, ModelError
from pytest_piecewise.engines.native import NativeEngine
from pytest_piecewise.hooks import PLUGINS_VARIABLE, find_engine, manager
from pytest_piecewise.records import Report

Plugin = Callable[[str, str], None]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugin:
    """Writes a plugin module and names it in the environment, after those that are there."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names: list[str] = []

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text("from pytest_piecewise.hooks import hookimpl\n" + source)
        monkeypatch.delitem(sys.modules, name, raising=False)
        names.append(name)
        monkeypatch.setenv(PLUGINS_VARIABLE, ",".join(names))

    return write


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLUGINS_VARIABLE, raising=False)


ENGINE = """
class Engine:
    name = {name!r}

@hookimpl
def piecewise_engine(name):
    return Engine() if name == {name!r} else None
"""


def test_native_engine_is_built_in() -> None:
    engine = find_engine("native")
    assert isinstance(engine, NativeEngine)
    assert engine.unsupported(Case(model="m:X", name="x")) is None


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(ModelError) as refusal:
        find_engine("nativ")
    text = str(refusal.value)
    assert text.startswith("expected a known engine, found 'nativ'; known ")
    assert "native" in text.partition("known ")[2]
    assert text.endswith(", and what plugins provide")


def test_engine_of_a_plugin_is_found_and_the_built_in_one_stays(plugin: Plugin) -> None:
    plugin("hooktest_engine", ENGINE.format(name="mine"))
    assert find_engine("mine").name == "mine"
    assert isinstance(find_engine("native"), NativeEngine)
    with pytest.raises(ModelError, match="found 'other'"):
        find_engine("other")


def test_plugin_may_replace_the_built_in_engine(plugin: Plugin) -> None:
    plugin("hooktest_replacing", ENGINE.format(name="native"))
    assert not isinstance(find_engine("native"), NativeEngine)


def test_models_of_all_plugins_are_collected(plugin: Plugin) -> None:
    source = """
from pytest_piecewise import Model

@hookimpl
def piecewise_models():
    return [Model(name={name!r}, build=dict, inputs=lambda size, generator: ())]
"""
    plugin("hooktest_models_a", source.format(name="a"))
    plugin("hooktest_models_b", source.format(name="b"))
    found = [model.name for models in manager().hook.piecewise_models() for model in models]
    assert sorted(found) == ["a", "b"]


def test_report_reaches_the_plugin(plugin: Plugin) -> None:
    plugin("hooktest_report", "seen = []\n\n@hookimpl\ndef piecewise_report(report):\n    seen.append(report)\n")
    report = Report(tier="full", complete=True, environment={}, results=())
    manager().hook.piecewise_report(report=report)
    assert sys.modules["hooktest_report"].seen == [report]


def test_unknown_hook_is_an_error_that_names_it(plugin: Plugin) -> None:
    plugin("hooktest_misspelt", "@hookimpl\ndef piecewise_modles():\n    return []\n")
    with pytest.raises((ModelError, pluggy.PluginValidationError), match="piecewise_modles"):
        manager()


def test_unknown_argument_of_a_hook_is_an_error_that_names_it(plugin: Plugin) -> None:
    plugin("hooktest_argument", "@hookimpl\ndef piecewise_engine(nmae):\n    return None\n")
    with pytest.raises((ModelError, pluggy.PluginValidationError), match="nmae"):
        manager()


def test_plugin_that_cannot_be_imported_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLUGINS_VARIABLE, "no_such_plugin_module")
    with pytest.raises(ModelError) as refusal:
        find_engine("native")
    assert str(refusal.value) == (
        "expected an importable plugin module 'no_such_plugin_module' in `plugins`, "
        "found: No module named 'no_such_plugin_module'"
    )


def test_plugin_may_lie_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hooktest_package").mkdir()
    (tmp_path / "hooktest_package" / "__init__.py").write_text("")
    source = "from pytest_piecewise.hooks import hookimpl\n" + ENGINE.format(name="inner")
    (tmp_path / "hooktest_package" / "inner.py").write_text(source)
    monkeypatch.setenv(PLUGINS_VARIABLE, "hooktest_package.inner")
    assert find_engine("inner").name == "inner"


def test_nothing_is_remembered_between_managers(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin("hooktest_once", ENGINE.format(name="once"))
    assert find_engine("once").name == "once"
    monkeypatch.delenv(PLUGINS_VARIABLE)
    with pytest.raises(ModelError, match="found 'once'"):
        find_engine("once")
