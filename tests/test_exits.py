"""The code with which a session ends: failures of costs alone have their own, and anything real wins over it."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pytest_piecewise.exits import CODES, COST, NEW, REAL, UNFIT, exit_status, kind_of
from pytest_piecewise.records import Finding, Status
from tests.running import run_pytest
from tests.test_plugin import IN_PROCESS, STAND_IN, case, project


def finding(check: str, status: Status = Status.FAIL) -> Finding:
    return Finding(check=check, status=status, summary="x")


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        ([finding("baseline")], COST),
        ([finding("cost"), finding("baseline", Status.NEW)], COST),
        ([finding("baseline", Status.NEW)], NEW),
        ([finding("baseline_file")], REAL),
        ([finding("equivalence")], REAL),
        ([finding("cost"), finding("padding")], REAL),
    ],
)
def test_kind_of_a_failure_is_its_gravest_finding(failed: list[Finding], kind: str) -> None:
    assert kind_of(failed) == kind


def test_gravest_kind_wins_in_every_combination() -> None:
    order = (REAL, UNFIT, COST, NEW)
    for count in range(1, 5):
        for kinds in combinations(order, count):
            assert exit_status(1, set(kinds)) == CODES[kinds[0]]
    assert [CODES[kind] for kind in order] == [1, 12, 10, 11]


@pytest.mark.parametrize("status", [0, 2, 3, 4, 5])
def test_what_is_no_failed_test_keeps_its_code(status: int) -> None:
    assert exit_status(status, {COST}) == status


MODELS = """
from tests.planted.models import model
WORSE, NEW, SAME = (model(name=name, capture_sizes=(4,)) for name in ("worse", "new", "same"))
"""
PARTS = {
    "worse": case("worse", "counted:WORSE", engine="stand_in"),
    "new": case("new", "counted:NEW", engine="stand_in"),
    "same": case("same", "counted:SAME", engine="stand_in"),
    "wrong": case("wrong", "counted:SAME", engine="stand_in_wrong"),
    "plain": "def test_plain():\n    assert False\n",
    "later": case("later", "counted:WORSE", "piecewise.check_structure(); assert False", engine="stand_in"),
    "torn": "syntax error\n",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a stored count that is too low, a case without a baseline, and one that is equal."""
    made = project(tmp_path_factory.mktemp("exits"), counted=MODELS, **{f"test_{k}": v for k, v in PARTS.items()})
    files = ("test_worse.py", "test_same.py")
    done = run_pytest(made, *IN_PROCESS, "--piecewise-update=new", *files)
    assert done.returncode == 0, done.stdout
    (path,) = made.glob("baselines/*/worse-*.json")
    before = '"piecewise.kernels": {"gate": "exact", "value": 3}'
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, before.replace("3", "2")))
    return made


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ("new same", 11),
        ("worse wrong", 1),
        ("worse plain", 1),
        ("later", 1),
    ],
)
def test_session_ends_with_the_code_of_its_gravest_failure(directory: Path, names: str, code: int) -> None:
    done = run_pytest(directory, *IN_PROCESS, *(f"test_{name}.py" for name in names.split()), CI="true")
    assert done.returncode == code, done.stdout


def test_module_that_cannot_be_collected_is_a_real_failure(directory: Path) -> None:
    arguments = ("--continue-on-collection-errors", "test_worse.py", "test_torn.py")
    assert run_pytest(directory, *IN_PROCESS, *arguments, CI="true").returncode == 1


def test_xdist_ends_alike_and_junit_has_the_failure_in_its_test(directory: Path, tmp_path: Path) -> None:
    xml = tmp_path / "of_pytest.xml"
    arguments = (
        "-n2",
        f"--junitxml={xml}",
        f"--piecewise-report={tmp_path}",
        "test_worse.py",
        "test_new.py",
        "test_same.py",
    )
    done = run_pytest(directory, *IN_PROCESS, *arguments, CI="true")
    assert done.returncode == 10, done.stdout
    found = {
        test.get("name"): [child.get("message") for child in test.findall("failure")]
        for test in ET.parse(xml).iter("testcase")
    }
    assert sorted(len(messages) for messages in found.values()) == [0, 1, 1]
    (message,) = found["test_worse[stand_in-float32]"]
    assert "FAIL baseline: piecewise.kernels: stored 2, now 3" in str(message)
    assert "Failed: baseline of worse-stand_in-float32 on cpu" in str(message)
    results = json.loads((tmp_path / "report.json").read_text())["results"]
    statuses = {item["case"]["name"]: {f["check"]: f["status"] for f in item["findings"]} for item in results}
    assert {name: found["baseline"] for name, found in statuses.items()} == {
        "worse": "FAIL",
        "new": "NEW",
        "same": "PASS",
    }


def test_machine_without_the_gpu_is_unfit(directory: Path) -> None:
    # The probe at collection would say so first; what is looked at here is a session that comes to run.
    (directory / "conftest.py").write_text(UNFIT_AT_RUN)
    done = run_pytest(directory, *STAND_IN, "test_same.py", "test_worse.py", CI="true")
    (directory / "conftest.py").unlink()
    assert done.returncode == 12, done.stdout
    assert "a first compilation failed; is there a C++ compiler?" in done.stdout


UNFIT_AT_RUN = """
from pytest_piecewise.errors import UnfitError
from pytest_piecewise.workers import Children

def refuse(self, what, on_tick):
    raise UnfitError("a first compilation failed; is there a C++ compiler?")

Children._warm_up = refuse
"""
