"""Every fault is caught on a small model on which its clean twin passes; and what a canary run says of itself."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise.faults import FAULTS, Fault
from tests.running import ROOT, configure, run_pytest

CASES = f"{ROOT}/tests/faults/cases.py"
SPECIAL = {
    "test_stateful": (
        "stale_input",
        "workspace_resized",
        "dummy_runs_advance_state",
        "state_written_twice",
        "fake_kernel_wrong",
    ),
    "test_outputs": (
        *("wrong_at_unjudged_size", "empty_piece", "outputs_merged", "alias_lost", "integer_off_by_one"),
        *("nan_hidden", "small_beside_outlier"),
    ),
}
"""Faults that the layered model has nothing for, by the model that has."""
ON_A_GPU = {name for name, fault in FAULTS.items() if fault.devices == ("cuda",)}
COMMON = tuple(name for name in FAULTS if name not in ON_A_GPU and name not in (n for v in SPECIAL.values() for n in v))
SESSIONS = (
    ("test_layered", COMMON[::2]),
    ("test_layered", COMMON[1::2]),
    *SPECIAL.items(),
)


def canary(directory: Path, test: str, faults: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    directory.mkdir()
    return run_pytest(
        configure(directory),
        *("--piecewise", "--piecewise-dtype=float32", "--piecewise-device=cpu", "--piecewise-report=out"),
        *(f"--piecewise-canary={','.join(faults)}", f"{CASES}::{test}"),
    )


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each fault, two sessions at a time; and of nothing, as `(none)` with the session's number."""
    root = tmp_path_factory.mktemp("canary")
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda item: canary(root / f"{item[0]}", *item[1]), enumerate(SESSIONS)))
    found: dict[str, dict[str, Any]] = {}
    for number, run in enumerate(done):
        report = json.loads((root / str(number) / "out/report.json").read_text())
        (result,) = report["results"]
        assert result["canary"], run.stdout + run.stderr
        for trial in result["canary"]:
            name = f"(none) {number}" if trial["fault"] == "(none)" else trial["fault"]
            found[name] = trial | {"exit": run.returncode, "output": run.stdout}
    return found


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_fault_is_caught_by_a_check_that_was_to_catch_it(trials: dict[str, dict[str, Any]], fault: Fault) -> None:
    if fault.name in ON_A_GPU:
        pytest.skip("needs a GPU: scripts/gpu_check OUT canary")
    trial = trials[fault.name]
    assert trial["outcome"] == "caught", trial
    assert trial["effects"] or "build" in trial["checks"]
    assert {check.partition(" ")[0] for check in trial["checks"]} & set(fault.caught_by), trial


@pytest.mark.parametrize("number", range(len(SESSIONS)))
def test_clean_twin_passes_on_the_same_path(trials: dict[str, dict[str, Any]], number: int) -> None:
    twin = trials[f"(none) {number}"]
    assert (twin["outcome"], twin["checks"], twin["exit"]) == ("nothing found", [], 0), twin["output"]


def test_matrix_is_printed(trials: dict[str, dict[str, Any]]) -> None:
    output = trials["stale_input"]["output"]
    assert "canary: stateful-native-float32 on cpu" in output
    assert "STALE     stale_input" in output
    assert "5 caught, 0 missed, 0 not planted, 0 not applicable" in output


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A fault whose only check the model switches off, one without effect, one that does not apply; and an unclean case."""
    directory = configure(tmp_path_factory.mktemp("others"))
    (directory / "test_blind.py").write_text(
        "import dataclasses\n"
        "import pytest\n"
        "from tests.faults.models import STATEFUL, Stateful\n"
        "from tests.planted.models import ZERO_WEIGHTS\n"
        "BLIND = dataclasses.replace(STATEFUL, name='blind', allow={'mutation': 'to be seen by nothing'})\n"
        "@pytest.mark.piecewise(BLIND, dtype='float32')\n"
        "def test_blind(piecewise):\n    piecewise.check()\n"
        "@pytest.mark.piecewise(ZERO_WEIGHTS, dtype='float32')\n"
        "def test_unclean(piecewise):\n    piecewise.check()\n"
    )
    flag = "--piecewise-canary=argument_overwritten,nan_hidden,truncated_beyond_captured"
    done = run_pytest(directory, "-n2", "--piecewise", flag, "--piecewise-report=out", "test_blind.py")
    report = json.loads((directory / "out/report.json").read_text())
    results = {result["case"]["name"]: result for result in report["results"]}
    return {"exit": done.returncode, "output": done.stdout, "results": results}


def test_missed_fault_fails_and_is_told_from_one_without_effect(others: dict[str, Any]) -> None:
    outcomes = {trial["fault"]: trial["outcome"] for trial in others["results"]["blind"]["canary"]}
    assert outcomes == {
        "(none)": "nothing found",
        "argument_overwritten": "missed",
        "nan_hidden": "not planted",
        "truncated_beyond_captured": "not applicable",
    }
    assert others["exit"] == 1
    assert "FAIL canary: 0 of 1 planted faults caught" in others["output"]
    assert "missed: argument_overwritten" in others["output"]
    assert "MISSED     expected mutation" in others["output"]
    assert "not applicable, no call is larger than the largest captured size" in others["output"]


def test_case_that_is_not_clean_stops_before_anything_is_planted(others: dict[str, Any]) -> None:
    result = others["results"]["zero-weights"]
    assert result["canary"] == []
    assert "FAIL vacuity" in others["output"]
    assert "nothing was planted, since the clean case fails: vacuity" in others["output"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--piecewise-canary", "."), "--piecewise-canary needs --piecewise"),
        (("--piecewise", "--piecewise-canary=stale_inputs", "."), "did you mean"),
        (("--piecewise", "--piecewise-canary", "--piecewise-update=new", "."), "expected no --piecewise-update"),
    ],
)
def test_unusable_request_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run_pytest(configure(tmp_path), *arguments)
    assert done.returncode == 4
    assert said in done.stderr


def test_flag_takes_no_path_for_a_name(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text("def test_plain():\n    pass\n")
    done = run_pytest(configure(tmp_path), "--piecewise", "--piecewise-canary", "test_plain.py")
    assert done.returncode == 0
    assert "1 passed" in done.stdout
