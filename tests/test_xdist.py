"""Sessions with and without workers, and with one that is killed: the same verdicts, one report, no test lost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.running import configure, run_pytest

SUITE = """\
import os
from pathlib import Path

import pytest
from pytest_piecewise import Model

def build():
    from torch import nn
    return nn.Linear(8, 8)

def inputs(size, generator):
    import torch
    return (torch.randn(size, 8, generator=generator),)

def make(name):
    return Model(
        name=name, build=build, inputs=inputs, splitting_ops=("aten::addmm",), capture_sizes=(4,), dtypes=("float32",)
    )

A, B, C = map(make, "abc")

@pytest.mark.piecewise(A, engine="stand_in")
def test_right(piecewise):
    piecewise.check()

@pytest.mark.piecewise(A, engine="stand_in")
def test_right_again(piecewise):
    piecewise.check_structure()

@pytest.mark.piecewise(B, engine="stand_in_wrong")
def test_wrong(piecewise):
    piecewise.check()

@pytest.mark.piecewise(C, engine="stand_in_absent")
def test_skipped(piecewise):
    piecewise.check()

def test_killed():
    if os.environ.get("KILL") and "PYTEST_XDIST_WORKER" in os.environ:
        os.kill(os.getpid(), 9)

def test_last():
    pass
"""
EXPECTED = {
    "test_right[stand_in-float32]": "PASSED",
    "test_right_again[stand_in-float32]": "PASSED",
    "test_wrong[stand_in_wrong-float32]": "FAILED",
    "test_skipped[stand_in_absent-float32]": "SKIPPED",
    "test_killed": "PASSED",
    "test_last": "PASSED",
}


def verdicts(report: dict[str, Any]) -> dict[str, list[tuple[str, str, str]]]:
    """Findings by case; what they measured is left out."""
    return {
        item["case"]["name"]: sorted((it["check"], it["variant"], it["status"]) for it in item["findings"])
        for item in report["results"]
    }


def run(directory: Path, *options: str, **environ: str) -> tuple[int, dict[str, str], dict[str, Any], str]:
    directory.mkdir()
    (directory / "test_suite.py").write_text(SUITE)
    configure(directory, "tests.stand_in", table='device = "cpu"')
    done = run_pytest(
        directory,
        "-p",
        "tests.stand_in",
        "--piecewise",
        "-v",
        "--piecewise-report=out",
        *options,
        TORCHINDUCTOR_VEC_ISA_OK="1",  # spares test programs that nothing here hangs on
        **environ,
    )
    lines = re.findall(
        r"(PASSED|FAILED|SKIPPED) \S*::(\S+)|::(\S+) (PASSED|FAILED|SKIPPED)", done.stdout.split("=== FAILURES")[0]
    )
    outcomes = {a or b: c or d for d, b, a, c in lines}
    return done.returncode, outcomes, json.loads((directory / "out/report.json").read_text()), done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, str], dict[str, Any], str]:
    return run(tmp_path_factory.mktemp("alone") / "project", "-n0")


def test_session_without_workers(alone: tuple[int, dict[str, str], dict[str, Any], str]) -> None:
    code, outcomes, report, output = alone
    assert (code, outcomes) == (1, EXPECTED), output
    assert list(verdicts(report)) == list("abc")


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_change_no_verdict(
    workers: int, alone: tuple[int, dict[str, str], dict[str, Any], str], tmp_path: Path
) -> None:
    code, outcomes, report, output = run(tmp_path / "project", f"-n{workers}")
    assert (code, outcomes) == (1, EXPECTED), output
    assert verdicts(report) == verdicts(alone[2])
    assert (report["complete"], report["exit_code"]) == (True, 1)
    assert list((tmp_path / "project").rglob("report.json")) == [tmp_path / "project/out/report.json"]


def test_killed_worker_loses_the_test_that_it_ran_and_no_other(
    alone: tuple[int, dict[str, str], dict[str, Any], str], tmp_path: Path
) -> None:
    code, outcomes, report, output = run(tmp_path / "project", "-n2", KILL="1")
    assert (code, outcomes) == (1, EXPECTED | {"test_killed": "FAILED"}), output
    assert re.search(r"worker 'gw\d' crashed while running 'test_suite.py::test_killed'", output)
    assert "replacing crashed worker" in output
    assert verdicts(report) == verdicts(alone[2])
    assert (report["complete"], report["exit_code"]) == (True, 1)
