"""Settings from pyproject.toml and the command line: what is refused, and which of the two wins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise import ModelError
from pytest_piecewise.hooks import PLUGINS_VARIABLE
from pytest_piecewise.records import Settings
from pytest_piecewise.settings import KEYS, chosen_dtypes, make_settings, read_table


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv(PLUGINS_VARIABLE, "")  # make_settings sets it: put back afterwards


def project(tmp_path: Path, table: str) -> Path:
    (tmp_path / "pyproject.toml").write_text(f"[tool.pytest_piecewise]\n{table}\n")
    return tmp_path


@pytest.mark.parametrize(("tier", "costs"), [("fastcheck", "counts"), ("full", "work"), ("nightly", "ratios")])
def test_costs_are_measured_by_tier_unless_said(tmp_path: Path, tier: str, costs: str) -> None:
    assert make_settings(tmp_path, {}, {"tier": tier}).costs == costs
    assert make_settings(tmp_path, {"costs": "work"}, {"tier": tier}).costs == "work"
    assert make_settings(tmp_path, {"costs": "work"}, {"tier": tier, "costs": "ratios"}).costs == "ratios"
    with pytest.raises(ModelError, match="expected costs to be one of counts, work, ratios, found 'all'"):
        make_settings(tmp_path, {"costs": "all"}, {})


def test_project_without_a_file_or_table_has_no_settings(tmp_path: Path) -> None:
    assert read_table(tmp_path) == {}
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert read_table(tmp_path) == {}


FULL_TABLE = """
engine = "native"
dtype = ["float32", "bfloat16"]
device = "cuda:1"
isolation = "none"
timeout = 12.5
memory-limit = 64
gpu-memory = 32
threads = 3
seed = 9
costs = "work"
baselines = "stored"
history = "kept.db"
ci = "none"
alert-command = ["notify", "team"]
report = "out"
localize = "piece"
plugins = ["mypkg.plugin"]
models = ["mypkg.models:TINY"]
watches = ["src"]
durations = "durations.json"
"""


def test_every_key_is_read(tmp_path: Path) -> None:
    table = read_table(project(tmp_path, FULL_TABLE))
    assert set(table) == set(KEYS)
    assert make_settings(tmp_path, table, {}) == Settings(
        tier="fastcheck",
        device="cuda:1",
        isolation="none",
        timeout_seconds=12.5,
        memory_limit_bytes=64 * 2**20,
        gpu_memory_bytes=32 * 2**20,
        threads=3,
        seed=9,
        costs="work",
        baselines=str(tmp_path / "stored"),
        update="",
        report="out",
        strict=False,
        localize="piece",
    )


def test_unknown_key_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as refusal:
        read_table(project(tmp_path, "tresholds = 3"))
    message = f"[tool.pytest_piecewise] has 'tresholds'; expected one of {', '.join(KEYS)}; did you mean 'threads'?"
    assert str(refusal.value) == f"{tmp_path / 'pyproject.toml'}: {message}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("threads = '2'", "threads: expected int, found '2'"),
        ("timeout = 'long'", "timeout: expected int or float, found 'long'"),
        ("device = 0", "device: expected str, found 0"),
        ("plugins = 'mypkg.plugin'", "plugins: expected list, found 'mypkg.plugin'"),
        ("dtype = 32", "dtype: expected str or list, found 32"),
        ("seed = 1.5", "seed: expected int, found 1.5"),
        # TOML's booleans are no integers, though Python's are.
        ("seed = true", "seed: expected int, found True"),
        ("timeout = true", "timeout: expected int or float, found True"),
    ],
)
def test_wrong_type_is_refused(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ModelError) as refusal:
        read_table(project(tmp_path, line))
    assert str(refusal.value) == f"{tmp_path / 'pyproject.toml'}: [tool.pytest_piecewise] {message}"


def test_lists_hold_names(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"plugins.*found \[1, 2\]"):
        make_settings(tmp_path, read_table(project(tmp_path, "plugins = [1, 2]")), {})


def test_table_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool]\npytest_piecewise = 3\n")
    with pytest.raises(ModelError, match=r"pyproject\.toml.*expected"):
        read_table(tmp_path)


def test_defaults(tmp_path: Path) -> None:
    assert make_settings(tmp_path, {}, {}) == Settings(baselines=str(tmp_path / "baselines"))


@pytest.mark.parametrize(
    ("key", "stored", "option", "given", "field", "expected"),
    [
        ("device", "cuda", "device", "cpu", "device", "cpu"),
        ("isolation", "none", "isolation", "process", "isolation", "process"),
        ("timeout", 5.0, "timeout", 7.0, "timeout_seconds", 7.0),
        ("memory-limit", 64, "memory_limit", 32, "memory_limit_bytes", 32 * 2**20),
        ("gpu-memory", 64, "gpu_memory", 32, "gpu_memory_bytes", 32 * 2**20),
        ("seed", 9, "seed", 0, "seed", 0),  # zero was given, and is not the same as nothing
        ("report", "a", "report", "b", "report", "b"),
    ],
)
def test_option_wins_over_the_table(
    tmp_path: Path, key: str, stored: Any, option: str, given: Any, field: str, expected: Any
) -> None:
    assert getattr(make_settings(tmp_path, {key: stored}, {option: given}), field) == expected
    assert getattr(make_settings(tmp_path, {key: stored}, {option: None}), field) != expected


def test_baselines_are_relative_to_the_project(tmp_path: Path) -> None:
    assert make_settings(tmp_path, {"baselines": "a"}, {"baselines": "b"}).baselines == str(tmp_path / "b")
    assert make_settings(tmp_path, {}, {"baselines": "/elsewhere"}).baselines == "/elsewhere"


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_device_that_exists_by_name(tmp_path: Path, device: str) -> None:
    assert make_settings(tmp_path, {}, {"device": device}).device == device


@pytest.mark.parametrize("device", ["gpu", "cpu:0", "cuda:x", "cuda:-1", "cuda:", "auto:1", "", "CUDA"])
def test_bad_device_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(ModelError) as refusal:
        make_settings(tmp_path, {"device": device}, {})
    assert str(refusal.value) == f"expected device auto, cpu, cuda or cuda:INDEX, found {device!r}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tier": "hourly"}, "expected tier to be one of fastcheck, full, nightly, found 'hourly'"),
        ({"isolation": "thread"}, "expected isolation to be one of process, none, found 'thread'"),
        ({"timeout": 0.0}, "expected a positive timeout and at least one thread"),
        ({"timeout": -1.0}, "expected a positive timeout and at least one thread"),
        ({"timeout": float("nan")}, "expected a positive timeout"),  # a deadline that never comes
        ({"memory_limit": -1}, "expected"),  # every build would be killed at once
        ({"gpu_memory": -1}, "expected a memory limit"),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as refusal:
        make_settings(tmp_path, {}, options)
    assert str(refusal.value).startswith(message)


def test_threads_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="at least one thread"):
        make_settings(tmp_path, {"threads": 0}, {})


def test_ci_makes_the_session_strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not make_settings(tmp_path, {}, {}).strict
    monkeypatch.setenv("CI", "true")
    assert make_settings(tmp_path, {}, {}).strict


def test_update_is_refused_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_settings(tmp_path, {}, {"update": "new"}).update == "new"
    monkeypatch.setenv("CI", "true")
    with pytest.raises(
        ModelError, match=r"^--piecewise-update is refused where CI is set: .*--piecewise-update-to DIR"
    ):
        make_settings(tmp_path, {}, {"update": "new"})


def test_proposals_are_of_every_kind_also_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    settings = make_settings(tmp_path, {}, {"update_to": "out"})
    assert (settings.update, settings.update_to) == ("new,fix,trim", "out")
    assert make_settings(tmp_path, {}, {"update_to": "out", "update": "trim"}).update == "trim"


def test_kinds_of_update_are_brought_into_order(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, {}, {"update": "trim,fix,new", "reason": " why "})
    assert (settings.update, settings.update_reason) == ("new,fix,trim", "why")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update": "all"}, "expected --piecewise-update with new, fix, trim, or several with commas, found 'all'"),
        ({"update": "new,fix"}, "--piecewise-update=fix stores what got worse and needs a reason"),
        ({"update": "fix", "reason": " "}, "--piecewise-update=fix stores what got worse and needs a reason"),
        ({"update": "new", "reason": "x"}, "--piecewise-reason is stored with what --piecewise-update=fix changes"),
        ({"reason": "x"}, "--piecewise-reason is stored with what --piecewise-update=fix changes"),
    ],
)
def test_unusable_update_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], message: str
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(ModelError) as refusal:
        make_settings(tmp_path, {}, options)
    assert str(refusal.value).startswith(message)


def test_plugins_reach_children_through_the_environment(tmp_path: Path) -> None:
    make_settings(tmp_path, {"plugins": ["a.b", "c"]}, {})
    assert os.environ[PLUGINS_VARIABLE] == "a.b,c"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, ("float32", "bfloat16")),
        ("float16", ("float16",)),
        (["bfloat16", "float16"], ("bfloat16", "float16")),
        (("float32",), ("float32",)),
    ],
)
def test_dtypes_are_a_name_or_several(asked: Any, expected: tuple[str, ...]) -> None:
    assert chosen_dtypes(asked, ("float32", "bfloat16")) == expected


@pytest.mark.parametrize("asked", ["float64", ["float32", "int8"], "bf16"])
def test_unknown_dtype_is_refused(asked: Any) -> None:
    with pytest.raises(ModelError, match=r"^expected dtype float32, bfloat16, float16, found '(float64|int8|bf16)'$"):
        chosen_dtypes(asked, ("float32",))
