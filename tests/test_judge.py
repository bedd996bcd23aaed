"""The verdict on a whole case, from outputs that real protocol calls have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_piecewise import Call, Finding, Model, Status
from pytest_piecewise.compare import Reference
from pytest_piecewise.engines.prepare import UNIT_ROUNDOFF
from pytest_piecewise.evidence import Evidence
from pytest_piecewise.judge import MAX_TIED_SHARE, compare_case
from pytest_piecewise.protocol import calls
from pytest_piecewise.records import Comparison

WIDTH, VOCABULARY = 32, 16
Outputs = dict[str, Tensor]
Function = Callable[[Tensor, Tensor, Call], Outputs]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads that spin between tiny operations would make this file ten times slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model(**changes: Any) -> Model:
    given = {"name": "m", "build": dict, "inputs": lambda size, generator: (), "capture_sizes": (2, 4, 8)}
    return Model(**(given | changes))


def logits(x: Tensor, weight: Tensor, call: Call) -> Outputs:
    return {"logits": x @ weight}


def greedy(x: Tensor, weight: Tensor, call: Call) -> Outputs:
    scores = x @ weight
    return {"scores": scores, "ids": scores.argmax(-1, keepdim=True)}


def data(call: Call, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Input and weight of one call; the weight changes with the protocol's weight update."""
    x = torch.randn(call.size, WIDTH, generator=torch.Generator().manual_seed(call.seed))
    weight = torch.randn(WIDTH, VOCABULARY, generator=torch.Generator().manual_seed(99 + call.weights))
    return x.to(dtype), weight.to(dtype)


def outputs(function: Function, dtype: torch.dtype, step: Call) -> Outputs:
    return function(*data(step, dtype), step)


def reference_of(function: Function, dtype: torch.dtype, step: Call) -> dict[str, Reference]:
    x, weight = data(step, dtype)
    lifted = function(x.double(), weight.double(), step)
    return {
        name: Reference(tensor, torch.zeros(step.size, 1).double() if tensor.is_floating_point() else torch.zeros(()))
        for name, tensor in lifted.items()
    }


def evidence(
    function: Function = logits, dtype: torch.dtype = torch.float32, declared: Model | None = None, **changes: Any
) -> Evidence:
    """A clean case: every variant gives what eager gives. Tests change it where something is to be wrong."""
    declared = declared or model()
    steps = calls(declared, 0)
    made = Evidence(
        model=declared,
        steps=steps,
        unit=UNIT_ROUNDOFF[dtype],
        precision="float64",
        reference={step.index: reference_of(function, dtype, step) for step in steps if step.judged},
        variants={
            variant: {step.index: outputs(function, dtype, step) for step in steps if step.judged}
            for variant in ("eager", "full", "piecewise")
        },
    )
    return replace(made, **changes)


def verdicts(case: Evidence) -> dict[tuple[str, str], Finding]:
    _, findings, _ = compare_case(case)
    found = {(item.check, item.variant): item for item in findings}
    assert len(found) == len(findings), "a check was answered twice"
    return found


def failed(case: Evidence) -> set[tuple[str, str]]:
    return {key for key, item in verdicts(case).items() if item.status is Status.FAIL}


def call_of(case: Evidence, phase: str, size: int) -> Call:
    return next(step for step in case.steps if step.phase == phase and step.size == size)


def edit(case: Evidence, variant: str, step: Call, name: str, index: tuple[int, ...], value: Any) -> None:
    """Puts another value into one output."""
    tensor = case.variants[variant][step.index][name].clone()
    tensor[index] = value
    case.variants[variant][step.index][name] = tensor  # type: ignore[index]


def test_clean_case_passes() -> None:
    found = verdicts(evidence())
    assert {key: item.status for key, item in found.items()} == {
        ("equivalence", "full"): Status.PASS,
        ("equivalence", "piecewise"): Status.PASS,
        ("bits_full", "piecewise"): Status.PASS,
        ("vacuity", "eager"): Status.PASS,
    }
    assert "x budget over" in found["equivalence", "full"].summary


def test_clean_case_in_bfloat16_passes_and_owes_no_bits() -> None:
    found = verdicts(evidence(dtype=torch.bfloat16))
    assert {item.status for item in found.values()} == {Status.PASS, Status.SKIP}
    assert found["bits_full", "piecewise"].summary == (
        "full and piecewise round differently at piece boundaries below float32; the budget judges them"
    )


@pytest.mark.parametrize("variant", ["full", "piecewise"])
def test_wrong_value_fails_the_variant_that_has_it(variant: str) -> None:
    case = evidence(dtype=torch.bfloat16)
    step = call_of(case, "interleaved", 4)
    edit(case, variant, step, "logits", (3, 7), 40.0)
    found = verdicts(case)
    assert failed(case) == {("equivalence", variant)}
    assert found["equivalence", variant].summary.startswith("interleaved, size 4: logits[3, 7] found 40, expected ")
    assert "(1 of " in found["equivalence", variant].summary
    assert found["equivalence", variant].action


def test_first_wrong_call_is_the_one_in_the_summary() -> None:
    case = evidence(dtype=torch.bfloat16)
    for phase in ("interleaved", "reverse"):
        edit(case, "full", call_of(case, phase, 4), "logits", (3, 7), 40.0)
    assert verdicts(case)["equivalence", "full"].summary.startswith("reverse, size 4: logits[3, 7]")


def test_output_that_is_missing_fails() -> None:
    case = evidence(dtype=torch.bfloat16)
    del case.variants["full"][2]["logits"]  # type: ignore[attr-defined]
    found = verdicts(case)["equivalence", "full"]
    assert found.status is Status.FAIL
    assert "the output is missing" in found.summary


def test_error_that_is_everywhere_a_little_too_large_fails_by_its_rms() -> None:
    def noisy(factor: float) -> Evidence:
        case = evidence(dtype=torch.float32)
        for step in case.judged:
            value = case.reference[step.index]["logits"].value
            error = case.variants["eager"][step.index]["logits"].double() - value
            norm = value.square().mean(-1, keepdim=True).sqrt()
            typical = max(float((error / norm).square().mean().sqrt()), case.unit / 2)
            signs = torch.where(torch.arange(value.numel()).reshape(value.shape) % 2 == 0, 1.0, -1.0)
            case.variants["full"][step.index]["logits"] = value + factor * typical * norm * signs  # type: ignore[index]
            # In float64, since float32 could not hold an error of this size exactly.
            case.variants["eager"][step.index]["logits"] = (value + error).double()  # type: ignore[index]
        return case

    comparisons, _, _ = compare_case(noisy(2.7))
    bad = [item for item in comparisons if not item.ok and item.check == "equivalence" and item.variant == "full"]
    assert [item.reason for item in bad] == ["relative RMS error over all calls"]
    assert bad[0].error > bad[0].budget > 0
    comparisons, _, _ = compare_case(noisy(0.9))
    assert all(item.ok for item in comparisons if item.check == "equivalence" and item.variant == "full")


def test_gain_over_all_calls_fails() -> None:
    case = evidence(dtype=torch.bfloat16, declared=model(capture_sizes=(64, 128)))
    for step in case.judged:
        value = case.reference[step.index]["logits"].value
        case.variants["piecewise"][step.index]["logits"] = (value * 1.0015).bfloat16()  # type: ignore[index]
    assert failed(case) == {("equivalence", "piecewise")}
    assert "all values are off by one factor, 1.001" in verdicts(case)["equivalence", "piecewise"].summary


def test_full_and_piecewise_that_differ_in_one_bit_fail_in_float32() -> None:
    case = evidence()
    step = call_of(case, "reverse", 8)
    before = case.variants["piecewise"][step.index]["logits"][5, 5]
    edit(case, "piecewise", step, "logits", (5, 5), before.nextafter(torch.tensor(100.0)))
    assert failed(case) == {("bits_full", "piecewise")}
    summary = verdicts(case)["bits_full", "piecewise"].summary
    assert "first: reverse, size 8: logits[5, 5] found " in summary
    assert "1 of 128 elements against full" in summary


def test_padded_calls_owe_no_bits_to_full() -> None:
    # Full runs them at their real size, piecewise at the padded one: another kernel configuration may serve it.
    case = evidence()
    step = next(step for step in case.steps if step.phase == "padded")
    before = case.variants["piecewise"][step.index]["logits"][0, 5]
    edit(case, "piecewise", step, "logits", (0, 5), before.nextafter(torch.tensor(100.0)))
    assert failed(case) == set()


def test_bits_are_skipped_where_a_variant_is_missing() -> None:
    case = evidence()
    case = replace(case, variants={name: case.variants[name] for name in ("eager", "full")})
    found = verdicts(case)["bits_full", "piecewise"]
    assert (found.status, found.summary) == (Status.SKIP, "full and piecewise were not both built")


def with_integers(x: Tensor, weight: Tensor, call: Call) -> Outputs:
    scores = x @ weight
    return {"logits": scores, "count": (scores > 0).sum(-1), "mask": scores > 0}


@pytest.mark.parametrize(("name", "value"), [("count", 99), ("mask", None)])
def test_integers_and_booleans_must_be_exactly_equal(name: str, value: int | None) -> None:
    case = evidence(with_integers, torch.bfloat16)
    assert verdicts(case)["exact", "full"].status is Status.PASS
    step = call_of(case, "reverse", 4)
    index = (1,) if name == "count" else (1, 1)
    before = case.variants["full"][step.index][name][index]
    edit(case, "full", step, name, index, ~before if value is None else value)
    assert failed(case) == {("exact", "full")}
    assert f"first: reverse, size 4: {name}{list(index)} found " in verdicts(case)["exact", "full"].summary


def test_float_output_declared_exact_must_be_equal_bit_for_bit() -> None:
    declared = model(exact_outputs=("logits",))
    assert failed(evidence(dtype=torch.bfloat16, declared=declared)) == set()
    case = evidence(dtype=torch.bfloat16, declared=declared)
    step = call_of(case, "reverse", 4)
    before = case.variants["full"][step.index]["logits"][1, 1]
    edit(case, "full", step, "logits", (1, 1), before * (1 + 2.0**-7))
    assert failed(case) == {("exact", "full")}


# Ties: `ids` may be chosen otherwise, but only where the reference's scores leave it open.

TIED = {"ids": "scores"}


def nearly_tied(*rows: int) -> Function:
    """In these rows the two best scores lie closer than rounding tells apart; `ids` are the reference's everywhere."""

    def function(x: Tensor, weight: Tensor, call: Call) -> Outputs:
        order = (x.double() @ weight.double()).argsort(-1, descending=True)
        scores = (x @ weight).clone()
        for row in (row for row in rows if row < call.size):
            best = scores[row, order[row, 0]]
            scores[row, order[row, 1]] = best * (1 - 2.0**-12 * best.sign())
        return {"scores": scores, "ids": order[:, :1]}

    return function


def choose_second(case: Evidence, variant: str, steps: list[Call], row: int) -> None:
    for step in steps:
        second = case.reference[step.index]["scores"].value[row].argsort(descending=True)[1]
        edit(case, variant, step, "ids", (row, 0), second)


def test_clean_case_with_ids_passes() -> None:
    assert failed(evidence(greedy, torch.bfloat16, model(ties=TIED))) == set()


def test_another_choice_at_a_near_tie_is_no_error() -> None:
    case = evidence(nearly_tied(0), torch.bfloat16, model(ties=TIED))
    choose_second(case, "full", [call_of(case, "reverse", 4)], 0)
    found = verdicts(case)
    assert failed(case) == set()
    assert "1 calls with another choice at a near tie not judged" in found["equivalence", "full"].summary


def test_another_choice_where_scores_lie_apart_is_an_error() -> None:
    case = evidence(greedy, torch.bfloat16, model(ties=TIED))
    step = call_of(case, "reverse", 4)
    scores = case.reference[step.index]["scores"].value[2]
    edit(case, "full", step, "ids", (2, 0), scores.argmin())
    wrong = failed(case)
    assert wrong
    assert {variant for _, variant in wrong} == {"full"}


def test_wrong_choice_does_not_hide_behind_a_near_tie_of_a_later_row() -> None:
    # What comes after a tie may follow from it; what comes before may not.
    case = evidence(nearly_tied(3), torch.bfloat16, model(ties=TIED))
    step = call_of(case, "reverse", 4)
    choose_second(case, "full", [step], 3)
    assert failed(case) == set()
    edit(case, "full", step, "ids", (1, 0), case.reference[step.index]["scores"].value[1].argmin())
    wrong = failed(case)
    assert wrong
    assert {variant for _, variant in wrong} == {"full"}


def test_other_choices_after_a_near_tie_may_follow_from_it() -> None:
    case = evidence(nearly_tied(0), torch.bfloat16, model(ties=TIED))
    step = call_of(case, "reverse", 4)
    choose_second(case, "full", [step], 0)
    edit(case, "full", step, "ids", (2, 0), case.reference[step.index]["scores"].value[2].argmin())
    assert failed(case) == set()


def test_wrong_scores_are_an_error_though_ids_agree() -> None:
    case = evidence(greedy, torch.bfloat16, model(ties=TIED))
    edit(case, "full", call_of(case, "reverse", 4), "scores", (2, 3), -90.0)
    assert failed(case) == {("equivalence", "full")}


def test_ids_of_argmax_without_its_dimension_kept_are_understood() -> None:
    # `scores.argmax(-1)` is what most models do, and its result has one dimension less than the scores.
    def flat(x: Tensor, weight: Tensor, call: Call) -> Outputs:
        found = nearly_tied(0)(x, weight, call)
        return {"scores": found["scores"], "ids": found["ids"].squeeze(-1)}

    case = evidence(flat, torch.bfloat16, model(ties=TIED))
    step = call_of(case, "reverse", 4)
    second = case.reference[step.index]["scores"].value[0].argsort(descending=True)[1]
    edit(case, "full", step, "ids", (0,), second)
    assert failed(case) == set()
    edit(case, "full", step, "ids", (0,), case.reference[step.index]["scores"].value[0].argmin())
    assert failed(case)


def test_choice_that_is_no_column_of_the_scores_is_an_error() -> None:
    case = evidence(greedy, torch.bfloat16, model(ties=TIED))
    edit(case, "full", call_of(case, "reverse", 4), "ids", (2, 0), VOCABULARY + 5)
    assert {variant for _, variant in failed(case)} == {"full"}


def test_masked_scores_make_no_ties() -> None:
    # Routers and samplers mask by minus infinity, next to which everything else would look close.
    def masked(x: Tensor, weight: Tensor, call: Call) -> Outputs:
        scores = (x @ weight).index_fill(-1, torch.tensor([0, 5]), float("-inf"))
        return {"scores": scores, "ids": scores.argmax(-1, keepdim=True)}

    case = evidence(masked, torch.bfloat16, model(ties=TIED))
    step = call_of(case, "reverse", 4)
    row = case.reference[step.index]["scores"].value[2]
    edit(case, "full", step, "ids", (2, 0), row.masked_fill(row.isinf(), 99.0).argmin())
    assert {variant for _, variant in failed(case)} == {"full"}


def test_tie_that_names_no_output_leaves_nothing_unchecked() -> None:
    case = evidence(greedy, torch.bfloat16, model(ties={"ids": "scroes"}))
    step = call_of(case, "reverse", 4)
    edit(case, "full", step, "ids", (2, 0), case.reference[step.index]["scores"].value[2].argmin())
    assert {variant for _, variant in failed(case)} == {"full"}


def test_ids_without_a_declared_tie_are_exact() -> None:
    case = evidence(nearly_tied(0), torch.bfloat16)
    choose_second(case, "full", [call_of(case, "reverse", 4)], 0)
    assert failed(case) == {("exact", "full")}


def test_too_many_near_ties_leave_nothing_to_judge() -> None:
    case = evidence(nearly_tied(0), torch.bfloat16, model(ties=TIED))
    few = int(len(case.judged) * MAX_TIED_SHARE)
    choose_second(case, "full", case.judged[:few], 0)
    assert failed(case) == set()
    choose_second(case, "full", case.judged[: few + 1], 0)
    found = verdicts(case)["equivalence", "full"]
    assert found.status is Status.FAIL
    assert found.summary == f"{few + 1} of {len(case.judged)} calls have near ties: too few are left to judge"
    assert found.action == "use inputs or weights whose scores lie further apart"


# Vacuity: a stale input or weight would have to be seen.


def constant(x: Tensor, weight: Tensor, call: Call) -> Outputs:
    return {"logits": torch.ones(call.size, VOCABULARY, dtype=x.dtype)}


def ignores_inputs(x: Tensor, weight: Tensor, call: Call) -> Outputs:
    return {"logits": weight.sum(0).expand(call.size, -1).clone()}


def ignores_weights(x: Tensor, weight: Tensor, call: Call) -> Outputs:
    return {"logits": x * 2}


def hardly_follows(x: Tensor, weight: Tensor, call: Call) -> Outputs:
    return {"logits": 1 + 1e-6 * (x @ weight)}


VACUOUS: list[tuple[Function, tuple[str, ...]]] = [
    (constant, ("logits follows the inputs by only 0 ", "logits follows the weights by only 0 ")),
    (ignores_inputs, ("logits follows the inputs by only 0 ",)),
    (ignores_weights, ("logits follows the weights by only 0 ",)),
    (hardly_follows, ("logits follows the inputs by only ", "logits follows the weights by only ")),
]


@pytest.mark.parametrize(("function", "texts"), VACUOUS, ids=[function.__name__ for function, _ in VACUOUS])
def test_outputs_that_follow_neither_inputs_nor_weights_are_vacuous(function: Function, texts: tuple[str, ...]) -> None:
    found = verdicts(evidence(function, torch.bfloat16))["vacuity", "eager"]
    assert found.status is Status.FAIL
    parts = found.summary.split("; ")
    assert len(parts) == len(texts)
    assert all(part.startswith(text) for part, text in zip(parts, texts, strict=True))
    assert parts[0].endswith("is needed")
    assert found.action.startswith("give the model random weights of a sensible scale")


def test_one_float_output_must_follow_and_the_others_are_named() -> None:
    def two(x: Tensor, weight: Tensor, call: Call) -> Outputs:
        return {"logits": x @ weight, "norm": torch.ones(call.size, 4, dtype=x.dtype)}

    found = verdicts(evidence(two))["vacuity", "eager"]
    assert found.status is Status.PASS
    assert found.summary.endswith("; norm does not follow the inputs, norm does not follow the weights")


def test_outputs_of_which_none_follows_are_vacuous() -> None:
    def flat(x: Tensor, weight: Tensor, call: Call) -> Outputs:
        return {name: torch.ones(call.size, 4, dtype=x.dtype) for name in ("first", "second")}

    found = verdicts(evidence(flat))["vacuity", "eager"]
    assert found.status is Status.FAIL
    assert "first follows the inputs by only 0" in found.summary
    assert "second follows the weights by only 0" in found.summary


def test_state_need_not_follow() -> None:
    def stateful(x: Tensor, weight: Tensor, call: Call) -> Outputs:
        return {"logits": x @ weight, "state:steps": torch.ones(call.size, 4, dtype=x.dtype)}

    assert verdicts(evidence(stateful))["vacuity", "eager"].status is Status.PASS


def test_without_floats_vacuity_is_skipped_and_says_so() -> None:
    def integers(x: Tensor, weight: Tensor, call: Call) -> Outputs:
        return {"ids": (x @ weight).argmax(-1)}

    found = verdicts(evidence(integers))["vacuity", "eager"]
    assert (found.status, found.summary) == (
        Status.SKIP,
        "no floating-point output, or no two calls to tell apart",
    )


# Answers known by hand.


def answers_of(case: Evidence) -> dict[int, Outputs]:
    return {step.index: outputs(logits, torch.float32, step) for step in case.judged if not step.weights}


def test_every_variant_is_held_to_the_answer_eager_included() -> None:
    case = evidence()
    case = replace(case, answers=answers_of(case))
    found = verdicts(case)
    assert {key for key in found if key[0] == "answer"} == {("answer", v) for v in ("eager", "full", "piecewise")}
    assert failed(case) == set()


def test_eager_that_is_wrong_itself_fails_the_answer() -> None:
    def wrong(x: Tensor, weight: Tensor, call: Call) -> Outputs:
        return {"logits": x @ weight + 1}

    case = evidence(wrong)
    case = replace(case, answers=answers_of(case))
    assert failed(case) == {("answer", v) for v in ("eager", "full", "piecewise")}
    summary = verdicts(case)["answer", "eager"].summary
    assert "against the answer by hand" in summary
    assert summary.startswith(f"0 of {len(case.answers)} comparison(s)")


def test_answer_is_compared_in_the_calls_that_have_one() -> None:
    case = evidence()
    step = call_of(case, "reverse", 4)
    case = replace(case, answers={step.index: {"logits": outputs(logits, torch.float32, step)["logits"] + 1}})
    comparisons, _, _ = compare_case(case)
    made = [item for item in comparisons if item.check == "answer"]
    assert [(item.variant, item.call, item.ok) for item in made] == [
        (variant, step.index, False) for variant in ("eager", "full", "piecewise")
    ]


def test_answer_for_an_output_that_is_not_there_fails() -> None:
    case = evidence()
    step = call_of(case, "reverse", 4)
    case = replace(case, answers={step.index: {"other": torch.zeros(4, 3)}})
    assert {check for check, _ in failed(case)} == {"answer"}


def by_variant(comparisons: tuple[Comparison, ...]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for item in comparisons:
        found.setdefault(item.variant, set()).add(item.check)
    return found


def test_comparisons_hold_what_the_findings_say() -> None:
    comparisons, _, _ = compare_case(evidence(with_integers))
    assert by_variant(comparisons) == {
        "full": {"equivalence", "exact"},
        "piecewise": {"equivalence", "exact", "bits_full"},
    }
    calls_judged = {item.call for item in comparisons if item.check == "equivalence" and item.call >= 0}
    assert calls_judged == {step.index for step in evidence().judged}
