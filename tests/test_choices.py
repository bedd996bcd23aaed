"""Near ties of a top-k: neither choice is an error, whatever follows from it is allowed for, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from pytest_piecewise import Model
from pytest_piecewise.compare import Reference, gain_comparison, scale_of
from pytest_piecewise.engines import Request
from pytest_piecewise.engines.choices import Choices
from pytest_piecewise.engines.lifted import reference_outputs
from pytest_piecewise.engines.prepare import make_inputs, make_module
from pytest_piecewise.evidence import Evidence
from pytest_piecewise.judge import compare_case
from pytest_piecewise.measure import Meter
from pytest_piecewise.protocol import calls
from pytest_piecewise.records import Call, Finding, Status

SIZE, WIDTH, EXPERTS = 64, 16, 8


class Routed(nn.Module):
    """Each row goes to the two experts that its router scores highest. `bias` is what a rounding error may be worth."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.randn(EXPERTS, WIDTH) / WIDTH**0.5)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5)
        self.bias = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ self.router.T + self.bias * torch.linspace(-1, 1, EXPERTS).to(x.dtype)
        weights, ids = scores.softmax(-1).topk(2, dim=-1, sorted=False)
        return torch.einsum("nk,nkoi,ni->no", weights, self.experts[ids], x)


ROUTED = Model(
    name="routed", build=Routed, inputs=lambda n, g: (torch.randn(n, WIDTH, generator=g),), capture_sizes=(SIZE,)
)
REQUEST = Request(
    model=ROUTED,
    variant="eager",
    dtype=torch.bfloat16,
    device=torch.device("cpu"),
    seed=0,
    meter=Meter(lambda phase: None),
)


def module(bias: float = 0.0) -> Routed:
    made = make_module(ROUTED, REQUEST.dtype, REQUEST.device, 0)
    assert isinstance(made, Routed)
    made.bias = torch.tensor(bias, dtype=REQUEST.dtype)
    return made


def steps() -> list[Call]:
    return [step for step in calls(ROUTED, 0) if step.judged and not step.weights]


def outputs(bias: float = 0.0, factor: float = 1.0) -> dict[int, dict[str, Tensor]]:
    made = module(bias)
    with torch.no_grad():
        return {
            step.index: {
                "output": made(*make_inputs(ROUTED, step.size, step.seed, REQUEST.dtype, REQUEST.device)) * factor
            }
            for step in steps()
        }


def reference() -> dict[int, dict[str, Reference]]:
    with torch.no_grad():
        results, _, _ = reference_outputs(REQUEST, module(), steps())
    return {index: {name: Reference(*known) for name, known in found.items()} for index, found in results.items()}


def equivalence(found: dict[int, dict[str, Tensor]], known: dict[int, dict[str, Reference]]) -> Finding:
    evidence = Evidence(
        model=ROUTED,
        steps=steps(),
        unit=2.0**-8,
        precision="float64",
        reference=known,
        variants={"eager": outputs(), "full": found},
    )
    return next(item for item in compare_case(evidence)[1] if item.check == "equivalence")


def blind(known: dict[int, dict[str, Reference]]) -> dict[int, dict[str, Reference]]:
    """The reference as it would be without the run that chooses otherwise: rows that it reached move as others do."""
    made = {}
    for index, found in known.items():
        item = found["output"]
        assert item.tied is not None
        typical = item.sensitivity[~item.tied].median()
        made[index] = {"output": Reference(item.value, torch.where(item.tied, typical, item.sensitivity))}
    return made


def test_another_choice_at_a_near_tie_is_no_error_and_would_be_one_without_the_other_run() -> None:
    known, found = reference(), outputs(bias=0.01)
    assert equivalence(found, blind(known)).status is Status.FAIL
    clean = equivalence(found, known)
    assert clean.status is Status.PASS, clean.summary
    assert "rows have a near tie before them, and the budget of either choice" in clean.summary


def test_wrong_rows_without_a_near_tie_are_found_as_ever() -> None:
    known, found = reference(), outputs()
    assert equivalence(found, known).status is Status.PASS
    index = steps()[0].index
    settled = int(known[index]["output"].settled.nonzero()[0])
    found[index]["output"][settled] *= 1.25
    assert equivalence(found, known).status is Status.FAIL


def test_a_factor_on_everything_is_found_beside_near_ties() -> None:
    assert equivalence(outputs(factor=1.05), reference()).status is Status.FAIL


def test_most_rows_are_settled_in_low_precision_and_all_in_float32() -> None:
    shares = []
    for dtype in (torch.bfloat16, torch.float32):
        request = replace(REQUEST, dtype=dtype)
        with torch.no_grad():
            results, _, _ = reference_outputs(request, make_module(ROUTED, dtype, request.device, 0), steps())
        tied = torch.cat([found["output"][2] for found in results.values()])
        shares.append(float(tied.float().mean()))
    assert 0.01 < shares[0] < 0.3
    assert shares[1] == 0.0


def run(choices: Choices, attempt: int, scores: Tensor, count: int = 2) -> list[int]:
    choices.start(attempt)
    values, ids = choices.decide(scores.topk(count, sorted=False), scores)
    assert torch.equal(values, scores.gather(-1, ids))
    return sorted(ids[0].tolist())


def test_only_the_choice_that_nearly_ties_is_made_otherwise_and_later_runs_keep_the_first() -> None:
    scores, moved = torch.tensor([[4.0, 3.0, 2.99, 0.0]]), torch.tensor([[4.0, 2.995, 2.999, 0.0]])
    choices = Choices()
    assert run(choices, 0, scores) == [0, 1]
    assert run(choices, 1, moved) == [0, 2]
    assert choices.near == 1
    assert run(choices, 2, moved) == [0, 1]


def test_a_clear_choice_stays() -> None:
    choices = Choices()
    scores = torch.tensor([[4.0, 3.0, 2.0, float("-inf")]])
    assert run(choices, 0, scores) == run(choices, 1, scores + 0.01 * torch.tensor([1.0, -1.0, 1.0, 1.0])) == [0, 1]
    everything = Choices()
    assert run(everything, 0, scores, count=4) == run(everything, 1, scores, count=4) == [0, 1, 2, 3]
    assert choices.near == everything.near == 0


def test_tied_rows_say_nothing_of_what_is_typical() -> None:
    value = torch.randn(10, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    eager, tied = value.clone(), torch.zeros(10, 1, dtype=torch.bool)
    eager[0] += 1
    tied[0] = True
    sensitivity = torch.zeros(10, 1, dtype=torch.float64)
    assert scale_of([Reference(value, sensitivity)], [eager]).rms > 0
    scale = scale_of([Reference(value, sensitivity, tied)], [eager])
    assert (scale.peak, scale.rms, scale.gain) == (0, 0, 0)
    assert gain_comparison("full", "output", [Reference(value, sensitivity, tied)], [eager], scale, 2.0**-8).gain == 0
