"""Expected failures are strict: shown while they last, red when they are gone, and never an excuse for anything else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pytest_piecewise import ModelError
from pytest_piecewise.expected import expectations, settled, still_failing
from pytest_piecewise.models import model_for
from pytest_piecewise.records import Finding, Status
from tests.running import configure, run_pytest

BREAKS = expectations({"graph_breaks": "upstream loops over experts"})


def finding(check: str, status: Status, variant: str = "full") -> Finding:
    return Finding(check=check, status=status, variant=variant, summary="1 graph break(s)")


def test_expected_failure_is_shown_and_does_not_fail() -> None:
    failed, passed = finding("graph_breaks", Status.FAIL), finding("mutation", Status.PASS, "eager")
    shown, other = settled(BREAKS, [failed, passed])
    assert shown.status is Status.SKIP
    assert shown.summary == "expected to fail: upstream loops over experts (found: 1 graph break(s))"
    assert other == passed
    assert still_failing(BREAKS, [shown, other]) == ["graph_breaks"]


def test_it_is_enough_that_one_variant_fails() -> None:
    found = [finding("graph_breaks", Status.PASS), finding("graph_breaks", Status.FAIL, "piecewise")]
    assert [item.status for item in settled(BREAKS, found)] == [Status.PASS, Status.SKIP]


def test_what_works_now_is_a_failure() -> None:
    found = settled(BREAKS, [finding("graph_breaks", Status.PASS)])
    assert found[-1].status is Status.FAIL
    assert found[-1].summary == "expected to fail, and passed: it works now (upstream loops over experts)"
    assert found[-1].action == "remove it from `expected` of the marker"
    assert still_failing(BREAKS, found) == []


def test_a_check_that_was_not_made_is_a_failure() -> None:
    found = settled(BREAKS, [finding("mutation", Status.PASS)])
    assert (found[-1].check, found[-1].status) == ("graph_breaks", Status.FAIL)
    assert "was not made" in found[-1].summary


def test_other_failures_stay() -> None:
    found = settled(BREAKS, [finding("graph_breaks", Status.FAIL), finding("equivalence", Status.FAIL)])
    assert [item.status for item in found] == [Status.SKIP, Status.FAIL]


def test_where_nothing_was_judged_nothing_is_expected() -> None:
    skipped = (dataclasses.replace(finding("build", Status.SKIP), summary="no GPU"),)
    assert settled(BREAKS, skipped) == skipped


def test_without_expectations_nothing_changes() -> None:
    found = (finding("graph_breaks", Status.FAIL), finding("mutation", Status.PASS))
    assert settled((), found) == found


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("graph_breaks", "expected `expected` as {check: reason}, found 'graph_breaks'"),
        ({"graph_break": "x"}, "`expected` names 'graph_break', which is no check; expected one of build, "),
        ({"graph_breaks": " "}, r"expected\['graph_breaks'\] needs a reason, with the issue if there is one"),
    ],
)
def test_unusable_expectations_are_refused(declared: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        expectations(declared)


def test_model_is_chosen_by_the_kind_of_device() -> None:
    assert model_for({"cpu": "a:B", "cuda": "c:D"}, "cuda:1") == "c:D"
    with pytest.raises(ModelError, match="expected a model for device cpu, found some for cuda; add one"):
        model_for({"cuda": "c:D"}, "cpu")


MODULE = """
import pytest, torch
from pytest_piecewise import Model

class Breaking(torch.nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.linear, self.breaks = torch.nn.Linear(4, 4), breaks

    def forward(self, x):
        if self.breaks:
            torch._dynamo.graph_break()
        return self.linear(x)

def model(name, breaks):
    return Model(name=name, build=lambda: Breaking(breaks), inputs=lambda n, g: (torch.randn(n, 4, generator=g),),
                 capture_sizes=(2, 4), dtypes=("float32",), allow={"pieces": "nothing to split"})

BROKEN, MENDED = model("broken", True), model("mended", False)
KNOWN = {"graph_breaks": "issue 1234"}

@pytest.mark.piecewise({"cpu": BROKEN}, expected=KNOWN)
def test_broken(piecewise):
    piecewise.check()

@pytest.mark.piecewise(MENDED, expected=KNOWN)
def test_mended(piecewise):
    piecewise.check()
"""


def test_run_shows_expected_failures_and_turns_red_when_they_are_gone(tmp_path: Path) -> None:
    (configure(tmp_path) / "test_expected_here.py").write_text(MODULE)
    done = run_pytest(tmp_path, "--piecewise", "--piecewise-device=cpu")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "FAIL graph_breaks: expected to fail, and passed: it works now (issue 1234)" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("broken-native-float32")]
    assert [row.endswith("ok, expected: graph_breaks") for row in rows] == [False, True, True], rows
