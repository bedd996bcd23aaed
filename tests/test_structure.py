"""Every structural check, failing once and passing once, by its summary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_piecewise import Finding, Model, Status
from pytest_piecewise.records import Counts
from pytest_piecewise.structure import Evidence, structure_findings

MODEL = Model(
    name="m", build=dict, inputs=lambda size, generator: (), splitting_ops=("toy::attention",), capture_sizes=(1, 2, 4)
)
GOOD = Counts(
    graphs=1,
    pieces=3,
    distinct_pieces=2,
    compiles=2,
    kernels=5,
    splitting_ops=2,
    captures=9,
    replays=30,
    compiled_calls=60,
    captured_sizes=(1, 2, 4),
)
FULL = Counts(graphs=1, pieces=1, distinct_pieces=1, compiles=1, kernels=4, splitting_ops=2, compiled_calls=20)


def judge(counts: Counts, variant: str = "piecewise", model: Model = MODEL) -> dict[str, Finding]:
    evidence = Evidence(model=model, variant=variant, counts=counts, plain_calls=20, graph_calls=10)
    findings = structure_findings(evidence)
    found = {item.check: item for item in findings}
    assert len(found) == len(findings), "a check was answered twice"
    return found


def model(**changes: Any) -> Model:
    return Model(
        **({"name": "m", "build": dict, "inputs": lambda size, generator: (), "capture_sizes": (1, 2, 4)} | changes)
    )


def test_good_piecewise_build_passes_every_check() -> None:
    found = judge(GOOD)
    assert {item.status for item in found.values()} == {Status.PASS}
    assert set(found) == {
        "graphs",
        "graph_breaks",
        "recompiles",
        "splitting_ops",
        "pieces",
        "compiles",
        "executed",
        "captures",
        "replays",
        "covered_sizes",
        "addresses",
    }


def test_passes_carry_their_numbers_and_no_action() -> None:
    found = judge(GOOD)
    assert {check: item.summary for check, item in found.items()} == {
        "graphs": "Dynamo handed over 1 graph(s), expected 1",
        "graph_breaks": "0 graph break(s)",
        "recompiles": "0 compilation(s) after warm-up",
        "splitting_ops": "2 splitting op call(s) in the graph",
        "pieces": "3 piece(s), 2 distinct, 2 splitting op call(s)",
        "compiles": "Inductor compiled 2 graph(s) into 5 kernel(s), expected 2",
        "executed": "compiled code ran 60 time(s) in 20 call(s) without graphs, expected at least 60",
        "captures": "9 capture(s) = 3 piece(s) x 3 size(s) expected",
        "replays": "30 replay(s) of pieces in 10 call(s), expected 30",
        "covered_sizes": "captured sizes (1, 2, 4), largest call 4",
        "addresses": "0 input(s) of captured pieces moved after capture",
    }
    assert all(not item.action and not item.detail and item.variant == "piecewise" for item in found.values())


def test_full_build_is_held_to_what_concerns_it() -> None:
    found = judge(FULL, "full")
    assert {check: item.status for check, item in found.items()} == dict.fromkeys(
        ("graphs", "graph_breaks", "recompiles", "splitting_ops", "compiles", "executed"), Status.PASS
    )


FAILURES: list[tuple[str, dict[str, Any], str, str]] = [
    ("graphs", {"graphs": 0}, "Dynamo handed over 0 graph(s), expected 1", "check TORCH_COMPILE_DISABLE"),
    ("graphs", {"graphs": 2}, "Dynamo handed over 2 graph(s), expected 1", "look at the guards"),
    ("graph_breaks", {"graph_breaks": ("print",)}, "1 graph break(s)", ""),
    (
        "recompiles",
        {"graphs": 2, "recompiles": ("L['n'] == 3",)},
        "1 compilation(s) after warm-up",
        "make what the guard",
    ),
    (
        "splitting_ops",
        {"missing_ops": ("toy::attention",)},
        "2 splitting op call(s) in the graph; never found: toy::attention",
        "correct the name in splitting_ops",
    ),
    (
        "pieces",
        {"empty_pieces": ("piece 1",)},
        "3 piece(s), 2 distinct, 2 splitting op call(s); without compute: piece 1",
        "an empty graph would be captured",
    ),
    (
        "pieces",
        {"pieces": 1, "distinct_pieces": 1, "splitting_ops": 0},
        "1 piece(s), 1 distinct, 0 splitting op call(s)",
        "the graph was not split",
    ),
    ("compiles", {"compiles": 0}, "Inductor compiled 0 graph(s) into 5 kernel(s), expected 2", "it fell back to eager"),
    ("compiles", {"compiles": 1}, "Inductor compiled 1 graph(s) into 5 kernel(s), expected 2", "it fell back to eager"),
    ("compiles", {"compiles": 3}, "Inductor compiled 3 graph(s) into 5 kernel(s), expected 2", "more than once"),
    (
        "compiles",
        {"loaded": 2},
        "Inductor compiled 2 graph(s) into 5 kernel(s), expected 2; 2 came compiled out of a cache",
        "a cache of its own",
    ),
    ("graphs", {"graphs": 0, "loaded": 2}, "Dynamo handed over 0 graph(s), expected 1", "a cache of its own"),
    (
        "executed",
        {"compiled_calls": 59},
        "compiled code ran 59 time(s) in 20 call(s) without graphs, expected at least 60",
        "Dynamo ran them eagerly",
    ),
    ("captures", {"captures": 8}, "8 capture(s) = 3 piece(s) x 3 size(s) expected", "has no graph"),
    ("captures", {"captures": 0}, "0 capture(s) = 3 piece(s) x 3 size(s) expected", "has no graph"),
    ("replays", {"replays": 29}, "29 replay(s) of pieces in 10 call(s), expected 30", "ran something else"),
    ("replays", {"replays": 0}, "0 replay(s) of pieces in 10 call(s), expected 30", "ran something else"),
    ("covered_sizes", {"captured_sizes": (1, 2)}, "captured sizes (1, 2), largest call 4", "the largest above all"),
    (
        "addresses",
        {"moved_inputs": ("piece 1, input x: recorded at 0x1, now at 0x2",)},
        "1 input(s) of captured pieces moved after capture",
        "keep the tensor in place",
    ),
]


@pytest.mark.parametrize(
    ("check", "changes", "summary", "action"), FAILURES, ids=[f"{c}-{d}" for c, d, _, _ in FAILURES]
)
def test_wrong_count_fails_its_check(check: str, changes: dict[str, Any], summary: str, action: str) -> None:
    found = judge(replace(GOOD, **changes))[check]
    assert found.status is Status.FAIL
    assert found.summary == summary
    assert action in found.action


@pytest.mark.parametrize(
    ("check", "field"), [("graph_breaks", "graph_breaks"), ("recompiles", "recompiles"), ("addresses", "moved_inputs")]
)
def test_culprits_are_listed(check: str, field: str) -> None:
    found = judge(replace(GOOD, **{field: ("first culprit", "second culprit")}))[check]
    assert found.detail == "first culprit\nsecond culprit"


def test_copied_inputs_are_told_and_no_failure() -> None:
    found = judge(replace(GOOD, copied_inputs=("piece 1, input x (from toy::attention)",)))["addresses"]
    assert found.status is Status.PASS
    assert found.summary == "0 input(s) of captured pieces moved after capture; 1 copied before each replay"


def test_recompile_does_not_count_as_a_second_graph_as_well() -> None:
    found = judge(replace(GOOD, graphs=2, pieces=6, distinct_pieces=2, recompiles=("why",)))
    assert found["graphs"].status is Status.PASS
    assert found["recompiles"].status is Status.FAIL


@pytest.mark.parametrize("check", ["pieces", "compiles", "captures", "replays"])
def test_what_hangs_on_one_graph_is_not_judged_after_a_recompile(check: str) -> None:
    found = judge(replace(GOOD, graphs=2, pieces=6, captures=1, replays=1, recompiles=("why",)))[check]
    assert found.status is Status.SKIP
    summary = "not judged, since the model was compiled again after warm-up (found: "
    assert found.summary.startswith(summary)


def test_backed_sizes_expect_size_one_compiled_apart() -> None:
    backed = model(dynamic_shapes="backed", splitting_ops=("toy::attention",))
    counts = replace(GOOD, graphs=2, pieces=6, distinct_pieces=4, compiles=4)
    found = judge(counts, model=backed)
    assert {item.status for item in found.values()} == {Status.PASS}
    assert judge(replace(counts, graphs=1), model=backed)["graphs"].status is Status.FAIL
    without_one = model(dynamic_shapes="backed", splitting_ops=("toy::attention",), capture_sizes=(2, 4))
    assert judge(counts, model=without_one)["graphs"].status is Status.FAIL


@pytest.mark.parametrize("variant", ["full", "piecewise"])
def test_build_that_was_never_compiled_fails_everything_that_counts_work(variant: str) -> None:
    found = judge(Counts(), variant)
    failed = {check for check, item in found.items() if item.status is Status.FAIL}
    expected = {"graphs", "compiles", "executed"}
    if variant == "piecewise":
        expected |= {"pieces", "captures", "replays", "covered_sizes"}
    assert failed == expected


def test_model_without_splitting_ops_is_told_that_everything_was_captured() -> None:
    counts = replace(GOOD, pieces=1, distinct_pieces=1, compiles=1, splitting_ops=0, captures=3, replays=10)
    counts = replace(counts, captured_ops=("toy::attention in piece 0",))
    found = judge(counts, model=model())["pieces"]
    assert found.status is Status.FAIL
    assert found.summary == (
        "1 piece(s), 1 distinct, 0 splitting op call(s); splitting_ops is empty, so that everything is captured: "
        "toy::attention in piece 0"
    )
    assert found.action == "name the ops that must stay eager in splitting_ops, or allow 'pieces' with the reason"


def test_graph_that_ends_with_its_splitting_op_is_split() -> None:
    # One piece and one op after it: nothing is left to split, and nothing is wrong.
    counts = replace(GOOD, pieces=1, distinct_pieces=1, compiles=1, splitting_ops=1, captures=3, replays=10)
    assert judge(counts)["pieces"].status is Status.PASS


def test_missing_op_is_told_once() -> None:
    # That nothing was split follows from it: two failures would say one thing.
    counts = replace(GOOD, pieces=1, distinct_pieces=1, splitting_ops=0, missing_ops=("toy::attention",))
    found = judge(counts)
    assert found["splitting_ops"].status is Status.FAIL
    assert found["pieces"].status is Status.PASS


def test_captured_size_that_nobody_declared_is_no_failure() -> None:
    assert judge(replace(GOOD, captured_sizes=(1, 2, 4, 8)))["covered_sizes"].status is Status.PASS
