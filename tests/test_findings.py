"""Verdicts out of conditions and comparisons."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_piecewise import Finding, Model, Status
from pytest_piecewise.findings import allowed, bits_findings, describe_comparison, finding
from pytest_piecewise.records import CHECKS, Comparison


def model(**allow: str) -> Model:
    return Model(name="m", build=dict, inputs=lambda size, generator: (), allow=allow)


def comparison(**changes: Any) -> Comparison:
    made = Comparison(
        check="bits_graphs",
        axis="bits",
        variant="piecewise",
        against="graphs off",
        call=3,
        phase="reverse",
        size=8,
        output="logits",
        ok=False,
        elements=512,
        wrong=2,
        index=(7, 1),
        found="1.5",
        expected="1",
        reason="bits differ",
    )
    return replace(made, **changes)


def test_failure_keeps_its_lines_and_action() -> None:
    assert finding("pieces", "full", False, "one piece", ["a", "b"], "split it") == Finding(
        check="pieces", status=Status.FAIL, variant="full", summary="one piece", detail="a\nb", action="split it"
    )


def test_pass_keeps_its_summary_alone() -> None:
    assert finding("pieces", "full", True, "3 pieces", ["a", "b"], "split it") == Finding(
        check="pieces", status=Status.PASS, variant="full", summary="3 pieces"
    )


def test_allowed_failure_becomes_a_skip_with_the_reason_and_what_was_found() -> None:
    failed = finding("bits_full", "piecewise", False, "3 of 9 differ", ["x"], "look")
    assert allowed(model(bits_full="one kernel sums in another order"), [failed]) == (
        Finding(
            check="bits_full",
            status=Status.SKIP,
            variant="piecewise",
            summary="allowed by the model: one kernel sums in another order (found: 3 of 9 differ)",
        ),
    )


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.FAIL])
def test_allowed_check_that_did_not_fail_stays(status: Status) -> None:
    item = Finding(check="bits_full", status=status, summary="x")
    assert allowed(model(bits_full="why"), [item]) == (item,)


def test_failure_of_another_check_stays() -> None:
    failed = finding("padding", "piecewise", False, "rows leak")
    assert allowed(model(bits_full="why"), [failed]) == (failed,)


def test_every_check_can_be_allowed() -> None:
    items = [finding(check, "full", False, "x") for check in CHECKS]
    assert {item.status for item in allowed(model(**dict.fromkeys(CHECKS, "known")), items)} == {Status.SKIP}


def test_order_of_findings_is_kept() -> None:
    items = [finding(check, "full", False, check) for check in ("padding", "bits_full", "pieces")]
    assert [item.check for item in allowed(model(bits_full="why"), items)] == ["padding", "bits_full", "pieces"]


def test_comparisons_become_one_finding_per_check_and_variant() -> None:
    items = [
        comparison(ok=True),
        comparison(ok=True, check="padding"),
        comparison(ok=True, variant="full"),
        comparison(ok=True, elements=8),
    ]
    found = bits_findings(items)
    assert [(item.check, item.variant, item.status) for item in found] == [
        ("bits_graphs", "piecewise", Status.PASS),
        ("padding", "piecewise", Status.PASS),
        ("bits_graphs", "full", Status.PASS),
    ]
    assert found[0].summary == "2 of 2 comparison(s) bit-equal, 520 elements"


def test_one_bad_comparison_fails_and_is_described() -> None:
    (found,) = bits_findings([comparison(ok=True), comparison(), comparison(ok=True)])
    text = "reverse, size 8: logits[7, 1] found 1.5, expected 1; bits differ, 2 of 512 elements against graphs off"
    assert found.status is Status.FAIL
    assert found.summary == f"2 of 3 comparison(s) bit-equal, 1536 elements; first: {text}"
    assert found.detail == ""
    assert found.action.startswith("the replay reads or writes other memory than the call")


def test_no_comparison_is_no_finding() -> None:
    assert bits_findings([]) == []


BUDGET = comparison(
    check="equivalence",
    axis="budget",
    against="float64",
    error=0.5,
    budget=0.25,
    ratio=2.0,
    eager="1.01",
    reason="beyond",
)

DESCRIPTIONS: list[tuple[Comparison, str]] = [
    (
        BUDGET,
        "reverse, size 8: logits[7, 1] found 1.5, expected 1 (eager 1.01); error 0.5 = 2 x budget 0.25; beyond, "
        "2 of 512 elements against float64",
    ),
    (
        replace(BUDGET, row_ratio=3.0),
        "reverse, size 8: logits[7, 1] found 1.5, expected 1 (eager 1.01); error 0.5 = 2 x budget 0.25, row 3 x; "
        "beyond, 2 of 512 elements against float64",
    ),
    (
        replace(BUDGET, ratio=math.inf, found="", expected="", eager="", index=(), wrong=0, reason="other shape"),
        "reverse, size 8: logits; other shape against float64",
    ),
    (comparison(output="", index=(), found="", wrong=0), "reverse, size 8: outputs; bits differ against graphs off"),
    (replace(BUDGET, ok=True), "reverse, size 8: logits[7, 1] within budget"),
    (
        replace(BUDGET, size=0, phase="all calls", index=(), found="", eager="", wrong=0),
        "all calls: logits; error 0.5 = 2 x budget 0.25; beyond against float64",
    ),
]


@pytest.mark.parametrize(("item", "text"), DESCRIPTIONS)
def test_description_says_where_what_and_by_how_much(item: Comparison, text: str) -> None:
    assert describe_comparison(item) == text


def test_further_comparisons_are_listed_and_many_are_counted() -> None:
    (found,) = bits_findings([comparison(size=size) for size in range(1, 10)])
    lines = found.detail.splitlines()
    assert [line.split(":")[0] for line in lines[:6]] == [f"reverse, size {size}" for size in range(2, 8)]
    assert lines[6] == "... and 2 more, in the report"
