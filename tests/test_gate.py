"""The life of a baseline, as a project lives through it: missing, stored, worse, explained, better, trimmed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise.baselines.files import load
from pytest_piecewise.costs import UNMEASURED
from pytest_piecewise.records import BuildRecord, Case, CaseResult, Costs, Settings
from pytest_piecewise.session.gate import Gate
from tests.running import run_pytest
from tests.stand_in import KERNELS
from tests.test_plugin import IN_PROCESS, STAND_IN, case, project

MODELS = """
from tests.planted.models import model
ONE, TWO = (model(name=name, capture_sizes=(4,)) for name in ("one", "two"))
"""
TESTS = case("one", "counted:ONE", engine="stand_in") + case("two", "counted:TWO", engine="stand_in")


WORSE = "FAIL baseline: full.kernels: stored 5, now 7; piecewise.kernels: stored 5, now 7"


class Life:
    """A project with two cases, whose sessions say how many kernels are generated."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory, self._options = project(directory, counted=MODELS, test_life=TESTS), options
        self.output = ""

    def session(self, kernels: int, *arguments: str, ci: bool = True, **more: Any) -> int:
        """Runs one; outside CI where it updates."""
        environ = {KERNELS: str(kernels)} | ({"CI": "true"} if ci else {})
        done: subprocess.CompletedProcess[str] = run_pytest(
            self.directory, *self._options, *arguments, **environ, **more
        )
        self.output = done.stdout
        return done.returncode

    def update(self, kernels: int, *arguments: str) -> int:
        return self.session(kernels, *arguments, ci=False)

    @property
    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.directory.glob("baselines/*/*")}

    @property
    def stored(self) -> list[tuple[Any, str]]:
        """Value and reason of one metric in both files."""
        lines = [load(path).metrics["piecewise.kernels"] for path in sorted(self.directory.glob("baselines/*/*"))]
        return [(line.value, line.reason) for line in lines]


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_life_of_a_baseline(tmp_path: Path, workers: str) -> None:
    life = Life(tmp_path / "project", *IN_PROCESS, workers)
    (tmp_path / "project" / "baselines").mkdir()

    assert life.update(5, "--piecewise-update=new", "-k", "one") == 0, life.output
    assert life.session(5) == 11, life.output
    assert "NEW baseline: no baseline" in life.output
    assert life.update(5, "--piecewise-update=new") == 0, life.output
    assert life.stored == [(5, ""), (5, "")]
    before = life.files
    assert life.session(5) == 0, life.output

    assert life.session(7) == 10, life.output
    for name in ("one", "two"):
        assert re.search(rf"{name}-stand_in-float32 on cpu.*\n{WORSE}\n", life.output), life.output
    assert life.update(7, "--piecewise-update=new,trim") == 10, life.output
    assert life.files == before
    assert life.update(7, "--piecewise-update=fix", "--piecewise-reason=an epilogue of its own") == 0, life.output
    assert life.stored == [(7, "an epilogue of its own")] * 2
    assert life.session(7) == 0, life.output

    assert life.session(4) == 0, life.output
    assert life.output.count("STALE: ") == 2
    before = life.files
    assert life.update(4, "--piecewise-update=trim", "-k", "one") == 0, life.output
    assert "baselines: nothing trimmed, since -k left tests out" in life.output
    assert life.files == before
    assert life.update(4, "--piecewise-update=trim") == 0, life.output
    assert life.stored == [(4, ""), (4, "")]
    before = life.files
    assert life.session(4) == 0, life.output
    assert "STALE" not in life.output
    assert life.update(4, "--piecewise-update=new,fix,trim", "--piecewise-reason=none") == 0, life.output
    assert "baselines: 0 written, 2 unchanged, of 2 case(s)" in life.output
    assert life.files == before


@pytest.mark.parametrize(
    ("costs", "reason"),
    [
        (Costs(level="work", absent={"ratios": "the machine was not free"}), "the machine was not free"),
        (Costs(level="ratios", notes=(f"cold full {UNMEASURED}: it broke",)), f"cold full {UNMEASURED}: it broke"),
        (Costs(level="ratios", notes=("warm full: cache miss x",)), ""),
    ],
)
def test_what_could_not_be_measured_is_said_so(tmp_path: Path, costs: Costs, reason: str) -> None:
    result = CaseResult(
        case=Case(model="m:TINY", name="tiny"),
        seed=0,
        platform="cpu",
        revision="r",
        graph_kind="",
        findings=(),
        builds=(BuildRecord(variant="full", outcome="ok"),),
        costs=costs,
    )
    gate = Gate(Settings(costs="ratios", baselines=str(tmp_path)), tmp_path, ())
    said = [item.summary for item in gate.findings(result) if item.check == "cost"]
    assert said == ([f"not measured: {reason}"] if reason else [])


def test_ci_proposes_and_judges_as_if_it_did_not(tmp_path: Path) -> None:
    life = Life(tmp_path / "project", *STAND_IN, "-n0")
    assert life.update(5, "--piecewise-update=new") == 0, life.output
    before = life.files
    assert life.session(6, "--piecewise-update-to=out") == 10, life.output
    assert life.files == before
    assert f"baselines: 2 proposed in {life.directory}/out, 0 unchanged, of 2 case(s)" in life.output
    proposed = sorted((life.directory / "out").glob("*/*.json"))
    assert [load(path).metrics["piecewise.kernels"].value for path in proposed] == [6, 6]
    assert {path.name for path in proposed} == set(before)


def test_costs_not_measured_are_said_so_with_the_reason(tmp_path: Path) -> None:
    life = Life(tmp_path / "project", *STAND_IN, "-n0")
    assert life.session(5, "-k", "one", "--piecewise-report=out") == 0, life.output
    text = (life.directory / "out" / "report.json").read_text()
    assert "not measured: work and ratios are left to higher tiers; --piecewise-costs=ratios measures them now" in text
