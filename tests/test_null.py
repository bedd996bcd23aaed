"""`pytest-piecewise null`: what moves between equal runs may not gate as if it did not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_piecewise.baselines.entries import Entry
from pytest_piecewise.baselines.files import Baseline, load, write
from pytest_piecewise.cli import main
from pytest_piecewise.commands.null import compare
from pytest_piecewise.records import BuildRecord, Case, CaseResult, Costs, Metric, Ratio
from tests.running import environment, run_pytest
from tests.test_plugin import IN_PROCESS, case, project

NAME = "piecewise/full.compile_cpu"
CASE = "cpu/tiny-native-float32"


def run(kernels: int = 3, value: float = 0.8, spread: float = 0.05, work: int = 1000) -> CaseResult:
    """What one run found."""
    ratio = Ratio(name=NAME, value=value, low=value * 0.9, high=value * 1.1, spread=spread, pairs=4, over=8, under=10)
    build = BuildRecord(variant="full", outcome="ok", metrics=(Metric(name="kernels", kind="count", value=kernels),))
    metrics = (Metric(name="full.work", kind="work", value=work),)
    return CaseResult(
        case=Case(model="m:TINY", name="tiny"),
        seed=0,
        platform="cpu",
        revision="r",
        graph_kind="",
        findings=(),
        builds=(build,),
        environment={"torch": "2.13.0", "python": "3.11.7"},
        costs=Costs(level="ratios", metrics=metrics, ratios=(ratio,)),
    )


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    metrics = {"full.kernels": Entry(gate="exact", value=3), NAME: Entry(gate="ratio", value=0.8)}
    path = tmp_path / f"{CASE}.json"
    write(path, Baseline(case="tiny-native-float32", revision="r", metrics=metrics))
    return path


def refused(stored: Path, *results: CaseResult) -> Sequence[str]:
    return compare(CASE, results, stored.parent.parent)


def test_equal_runs_hold_and_their_noise_is_stored(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(stored, run(), run(work=1001)) == []
    assert load(stored).metrics[NAME] == Entry(gate="ratio", value=0.8, noise=0.025)  # 0.05 / sqrt(4)
    shown = capsys.readouterr().out
    assert f"{CASE}  {NAME}  noise 2.50%, margin 25%" in shown
    assert f"{CASE}  full.work[torch2.13.0-py3.11]  noise 0.05%, margin 1%" in shown


def test_exact_metric_that_moved_is_refused(stored: Path) -> None:
    (line,) = refused(stored, run(), run(kernels=4), run())
    assert line == f"{CASE}  full.kernels: cannot be exact, it moved: 3, 4, 3; put it into quarantine and find out why"


def test_metric_in_quarantine_may_move(stored: Path) -> None:
    baseline = load(stored)
    held = Entry(gate="observe", value=3, until="2999-01-01", issue="X-1")
    write(stored, replace(baseline, metrics=baseline.metrics | {"full.kernels": held}))
    assert refused(stored, run(), run(kernels=4)) == []


def test_margin_below_three_times_the_spread_within_runs_is_refused(stored: Path) -> None:
    (line,) = refused(stored, run(spread=0.2), run(spread=0.1))
    assert line == f"{CASE}  {NAME}: margin 25.0% is below 3 x noise 10.0%"
    assert load(stored).metrics[NAME].noise == 0.1


def test_margin_below_three_times_the_distance_of_runs_is_refused(stored: Path) -> None:
    (line,) = refused(stored, run(value=0.8), run(value=1.0))
    assert line == f"{CASE}  {NAME}: margin 25.0% is below 3 x noise 11.2%"


def test_wider_margin_of_its_own_holds(stored: Path) -> None:
    baseline = load(stored)
    wide = Entry(gate="ratio", value=0.8, margin=0.4)
    write(stored, replace(baseline, metrics=baseline.metrics | {NAME: wide}))
    assert refused(stored, run(spread=0.2), run()) == []


def test_work_that_spreads_is_refused(stored: Path) -> None:
    (line,) = refused(stored, run(), run(work=1020))
    assert line.startswith(f"{CASE}  full.work[torch2.13.0-py3.11]: margin 1.0% is below 3 x noise 1.0%")


def test_command_runs_sessions_against_each_other(tmp_path: Path) -> None:
    directory = project(tmp_path, test_one=case("one", "tests.planted.models:CLEAN", engine="stand_in"))
    done = run_pytest(directory, *IN_PROCESS, "--piecewise-update=new")
    assert done.returncode == 0, done.stdout
    command = [sys.executable, "-m", "pytest_piecewise.cli", "null", "--costs=counts", "--", *IN_PROCESS[:2]]
    done = subprocess.run(
        [*command, "--piecewise-isolation=none"],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("0 gate(s) do not hold against 2 equal runs\n")


def test_single_run_and_a_run_that_fails_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["null", "--runs=1"]) == 2
    assert "expected at least two runs to compare" in capsys.readouterr().err
    assert main(["null", "nowhere.py"]) == 2
    assert "expected a run that passes, this one ended with 4" in capsys.readouterr().err
