"""The outputs of all variants -> comparisons and findings of one case. Pure: tensors and records in, records out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from pytest_piecewise.compare import (
    Reference,
    Scale,
    answer_comparison,
    bit_comparison,
    budget_comparison,
    exact_comparison,
    gain_comparison,
    scale_of,
)
from pytest_piecewise.findings import bits_findings, describe_comparison, finding, further_comparisons
from pytest_piecewise.models import Model
from pytest_piecewise.records import Call, Comparison, Finding, Status
from pytest_piecewise.ties import chose_near_tie

RMS_FACTOR = 2.0
"""Bound on the RMS error of an output over all calls, over eager's."""
VACUOUS_FACTOR = 10.0
"""Outputs must change with inputs and weights by this many times the error that is tolerated."""
MAX_TIED_SHARE = 0.5
"""Above this share of calls that near ties make incomparable, the case says nothing."""

EAGER_FAR = 30.0
"""Eager's typical error over what perturbation explains, beyond which it is said; correct models stay below about 1."""

CallOutputs = Mapping[int, Mapping[str, torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Outputs by call index and name, of the reference and of every variant that was built, `eager` among them."""

    model: Model
    steps: Sequence[Call]
    unit: float
    precision: str
    reference: Mapping[int, Mapping[str, Reference]]
    variants: Mapping[str, CallOutputs]
    answers: CallOutputs = field(default_factory=dict)
    device: str = "cpu"
    same_inputs: bool = False
    """Whether the arguments of all calls of one size are the same, so that a stale one could not be told."""
    weightless: bool = False
    """Whether the model has neither weights nor buffers of floating-point numbers, which results could follow."""

    @property
    def judged(self) -> list[Call]:
        """The calls whose outputs were kept."""
        return [call for call in self.steps if call.index in self.reference]


def compare_case(evidence: Evidence) -> tuple[tuple[Comparison, ...], tuple[Finding, ...]]:
    """Everything that needs more than one variant."""
    comparisons: list[Comparison] = []
    findings: list[Finding] = []
    scales = _scales(evidence)
    for variant in evidence.variants:
        if variant != "eager":
            tied = _tied_calls(evidence, variant, scales)
            made = _against_reference(evidence, variant, scales, tied)
            comparisons += made
            findings.append(_equivalence_finding(evidence, variant, scales, made, tied))
            exact = _exact(evidence, variant, tied)
            comparisons += exact
            action = _only_padded(evidence, [item for item in exact if not item.ok])
            findings += [replace(item, action=item.action or action) for item in bits_findings(exact)]
    answered = _answers(evidence)
    comparisons += answered
    findings += bits_findings(answered)
    bits = _full_against_piecewise(evidence)
    comparisons += bits
    findings += bits_findings(bits)
    if reason := _bits_full_not_owed(evidence):
        findings.append(Finding(check="bits_full", status=Status.SKIP, variant="piecewise", summary=reason))
    findings.append(_vacuity(evidence))
    return tuple(comparisons), tuple(findings)


def eager_notes(evidence: Evidence) -> tuple[str, ...]:
    """Outputs in which eager itself is far off. No failure, since a cast to a lower precision may be meant."""
    found = []
    for name, scale in _scales(evidence).items():
        ratio = scale.rms / max(scale.sensitivity, evidence.unit)
        if ratio > EAGER_FAR:
            found.append(
                f"eager itself is off in {name} by {scale.rms:.2g} (relative RMS against {evidence.precision}), {ratio:.2g} "
                "times what rounding of weights and inputs explains: an op is wrong in this dtype, or computes in a lower "
                "precision on purpose; builds are allowed as much"
            )
    return tuple(found)


def _float_outputs(evidence: Evidence) -> list[str]:
    names: dict[str, None] = {}
    for outputs in evidence.variants["eager"].values():
        names.update((name, None) for name, tensor in outputs.items() if tensor.is_floating_point())
    return list(names)


def _scales(evidence: Evidence) -> dict[str, Scale]:
    eager = evidence.variants["eager"]
    return {
        name: scale_of(
            [evidence.reference[call.index][name] for call in evidence.judged],
            [eager[call.index][name] for call in evidence.judged],
        )
        for name in _float_outputs(evidence)
    }


def _against_reference(
    evidence: Evidence, variant: str, scales: Mapping[str, Scale], tied: set[int]
) -> list[Comparison]:
    made = []
    found, eager = evidence.variants[variant], evidence.variants["eager"]
    calls = [call for call in evidence.judged if call.index not in tied]
    for name, scale in scales.items():
        values = []
        for call in calls:
            tensor = found[call.index].get(name)
            if tensor is None:
                made.append(_missing(variant, call, name))
                continue
            reference = evidence.reference[call.index][name]
            item = budget_comparison(
                variant, call, name, reference, eager[call.index][name], tensor, scale, evidence.unit
            )
            made.append(replace(item, against=evidence.precision))
            if made[-1].ok:
                values.append((reference, tensor))
        if values:
            references, tensors = zip(*values, strict=True)
            made.append(gain_comparison(variant, name, references, tensors, scale, evidence.unit))
            made.append(_overall(evidence, variant, name, references, tensors, scale))
    return made


def _overall(
    evidence: Evidence,
    variant: str,
    name: str,
    references: Sequence[Reference],
    tensors: Sequence[torch.Tensor],
    scale: Scale,
) -> Comparison:
    """RMS error over all calls against eager's typical one: sees what is everywhere a little too large."""
    squares = power = 0.0
    for reference, tensor in zip(references, tensors, strict=True):
        error, value = (reference.settled_rows(item) for item in (tensor.double() - reference.value, reference.value))
        squares += float(error.nan_to_num(posinf=0, neginf=0).square().sum())
        power += float(value.nan_to_num(posinf=0, neginf=0).square().sum())
    relative = math.sqrt(squares / max(power, 1e-300))
    budget = RMS_FACTOR * max(scale.rms, scale.moved, evidence.unit / 2)
    return Comparison(
        check="equivalence",
        axis="budget",
        variant=variant,
        against=evidence.precision,
        call=-1,
        phase="all calls",
        size=0,
        output=name,
        ok=relative <= budget,
        elements=sum(tensor.numel() for tensor in tensors),
        error=relative,
        budget=budget,
        ratio=relative / budget,
        reason="" if relative <= budget else "relative RMS error over all calls",
    )


def _missing(variant: str, call: Call, name: str) -> Comparison:
    return Comparison(
        check="equivalence",
        axis="budget",
        variant=variant,
        against="eager",
        call=call.index,
        phase=call.phase,
        size=call.size,
        output=name,
        ok=False,
        elements=0,
        ratio=math.inf,
        reason="the output is missing",
    )


def _equivalence_finding(
    evidence: Evidence, variant: str, scales: Mapping[str, Scale], made: Sequence[Comparison], tied: set[int]
) -> Finding:
    bad = [item for item in made if not item.ok]
    worst = max((item.ratio for item in made), default=0.0)
    elements = sum(item.elements for item in made if item.size)
    judged = f"{elements} elements in {len(evidence.judged) - len(tied)} calls"
    summary = f"worst error {worst:.3g} x budget over {judged} against {evidence.precision}"
    if tied:
        summary += f"; {len(tied)} calls with another choice at a near tie not judged"
    summary += _tied_rows(evidence, scales)
    if bad:
        first = min(bad, key=lambda item: item.call if item.call >= 0 else len(evidence.steps))
        summary = f"{describe_comparison(first)} ({len(bad)} of {len(made)} comparisons fail)"
    share = len(tied) / max(1, len(evidence.judged))
    if share > MAX_TIED_SHARE:
        bad_ties = f"{len(tied)} of {len(evidence.judged)} calls have near ties: too few are left to judge"
        return finding(
            "equivalence", variant, False, bad_ties, (), "use inputs or weights whose scores lie further apart"
        )
    action = _only_padded(evidence, bad) or (
        "the seed, size and phase above repeat it; the *_build fixtures have both builds in one process"
    )
    return finding("equivalence", variant, not bad, summary, further_comparisons(bad), action)


def _only_padded(evidence: Evidence, bad: Sequence[Comparison]) -> str:
    """What to do if nothing but calls that were padded to a larger captured size is wrong; else empty."""
    calls = [evidence.steps[item.call] for item in bad if item.call >= 0]
    if not calls or bad[0].variant != "piecewise" or any(call.padded_size in (0, call.size) for call in calls):
        return ""
    return (
        "only calls that are padded to a captured size differ: if the check `padding` passes, results follow that size "
        "itself, as with x.shape[0]; take the number of real rows from `context`"
    )


def _tied_rows(evidence: Evidence, names: Iterable[str]) -> str:
    """How many rows a near tie of a top-k reaches; they are judged by how far another choice moves them."""
    settled = [evidence.reference[call.index][name].settled for call in evidence.judged for name in names]
    rows, tied = sum(item.numel() for item in settled), sum(int((~item).sum()) for item in settled)
    return f"; {tied} of {rows} rows have a near tie before them, and the budget of either choice" if tied else ""


def _exact_names(evidence: Evidence, outputs: Mapping[str, torch.Tensor], *, tied: bool) -> list[str]:
    ties = evidence.model.ties
    return [
        name
        for name, tensor in outputs.items()
        if (not tensor.is_floating_point() and not (tied and name in ties)) or name in evidence.model.exact_outputs
    ]


def _exact(evidence: Evidence, variant: str, tied: set[int]) -> list[Comparison]:
    """Integers, booleans and what is declared exact against eager; of `ties` those that no near tie leaves open."""
    made = []
    for call in evidence.judged:
        eager, found = evidence.variants["eager"][call.index], evidence.variants[variant][call.index]
        made += [
            exact_comparison(variant, call, name, found[name], eager[name])
            for name in _exact_names(evidence, eager, tied=call.index in tied)
            if name in found and not (call.weights and eager[name].is_floating_point())
        ]
    return made


def _answers(evidence: Evidence) -> list[Comparison]:
    """Every variant, eager included, against the answer known by hand."""
    exact = evidence.model.exact_outputs
    return [
        answer_comparison(
            variant,
            evidence.steps[index],
            name,
            outputs[index].get(name),
            answer,
            exact=name in exact or not answer.is_floating_point(),
            unit=evidence.unit,
        )
        for variant, outputs in evidence.variants.items()
        for index, answers in evidence.answers.items()
        for name, answer in answers.items()
    ]


def _full_against_piecewise(evidence: Evidence) -> list[Comparison]:
    """On a CPU in float32, at captured sizes, splitting must not change a bit.

    A padded call may: its matrix products have another shape. State carries that into every call that comes after.
    """
    variants = evidence.variants
    if _bits_full_not_owed(evidence):
        return []
    padded = [call.index for call in evidence.steps if call.padded_size not in (0, call.size)]
    end = padded[0] if padded and evidence.model.state else len(evidence.steps)
    return [
        bit_comparison(
            "bits_full", "piecewise", "full", call, variants["piecewise"][call.index], variants["full"][call.index]
        )
        for call in evidence.judged
        if call.index < end and call.size == (call.padded_size or call.size) and not call.strided
    ]


def _bits_full_not_owed(evidence: Evidence) -> str:
    """Why full and piecewise may differ in their bits; empty if they must not."""
    if evidence.unit != 2.0**-24:
        return "full and piecewise round differently at piece boundaries below float32; the budget judges them"
    if evidence.device.startswith("cuda"):
        return "Triton contracts multiplications and additions as they are fused, which splitting changes; the budget judges"
    return "" if {"full", "piecewise"} <= evidence.variants.keys() else "full and piecewise were not both built"


def _tied_calls(evidence: Evidence, variant: str, scales: Mapping[str, Scale]) -> set[int]:
    """Calls in which `variant` or eager chose otherwise than the reference at a near tie, and rightly may."""
    tied = set()
    for ids, scores in evidence.model.ties.items():
        for call in evidence.judged:
            reference = evidence.reference[call.index]
            if scores not in scales or ids not in reference:
                continue
            for name in (variant, "eager"):
                found = evidence.variants[name][call.index].get(ids)
                if found is not None and chose_near_tie(
                    found, reference[ids].value, reference[scores], scales[scores], evidence.unit
                ):
                    tied.add(call.index)
    return tied


def _vacuity(evidence: Evidence) -> Finding:
    """Whether a stale input or a stale weight would be seen at all: results must follow both by more than is tolerated."""
    plain = [call for call in evidence.judged if not call.weights]
    inputs = [(a, b) for a in plain for b in plain if a.size == b.size and a.index < b.index and a.seed != b.seed]
    weights = [
        (a, b) for a in plain for b in evidence.judged if b.weights == 1 and a.size == b.size and a.seed == b.seed
    ]
    problems, still, least = [], [], math.inf
    if evidence.same_inputs:
        problems.append("the arguments are the same in all calls of one size")
    for what, pairs in (("inputs", inputs), *([] if evidence.weightless else [("weights", weights)])):
        shares, texts = [], []
        for name in (name for name in _float_outputs(evidence) if not name.startswith("state:")):
            tolerated = VACUOUS_FACTOR * _tolerated(evidence, name)
            alike = [pair for pair in pairs if _have_one_shape(evidence, name, *pair)]
            change = max((_relative_change(evidence, name, a, b) for a, b in alike), default=math.inf)
            shares.append(change / tolerated)
            if change <= tolerated:
                still.append(f"{name} does not follow the {what}")
                texts.append(
                    f"{name} follows the {what} by only {change:.3g} (relative RMS), {tolerated:.3g} is needed"
                )
        least = min(least, max(shares, default=math.inf))
        problems += texts if len(texts) == len(shares) else []
    if least == math.inf:
        reason = "no floating-point output, or no two calls to tell apart"
        return Finding(check="vacuity", status=Status.SKIP, variant="eager", summary=reason)
    followed = "inputs" if evidence.weightless else "inputs and weights"
    summary = f"outputs follow {followed} by {least:.3g} x what is needed to see a stale one"
    summary += f"; {', '.join(still)}" if still else ""
    action = (
        "give the model random weights of a sensible scale and inputs that matter: nothing wrong would be seen here"
    )
    if problems and eager_notes(evidence):
        action = "that much is needed since eager itself is far from float64: see the note, and look at its ops first"
    return finding("vacuity", "eager", not problems, "; ".join(problems) or summary, (), action)


def _tolerated(evidence: Evidence, name: str) -> float:
    """The median over calls of eager's relative RMS error, at least one unit of rounding."""
    eager = evidence.variants["eager"]
    errors = []
    for call in evidence.judged:
        value = evidence.reference[call.index][name].value
        errors.append(_rms(eager[call.index][name].double() - value) / max(_rms(value), 1e-300))
    return max(sorted(errors)[len(errors) // 2], evidence.unit)


def _have_one_shape(evidence: Evidence, name: str, first: Call, second: Call) -> bool:
    """Outputs whose shape follows the data of a call cannot be told apart element by element."""
    a, b = (evidence.reference[call.index][name].value for call in (first, second))
    return a.shape == b.shape


def _relative_change(evidence: Evidence, name: str, first: Call, second: Call) -> float:
    a, b = (evidence.reference[call.index][name].value for call in (first, second))
    scale = max(_rms(a), _rms(b))
    return _rms(a - b) / scale if scale else 0.0


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.nan_to_num(posinf=0, neginf=0).square().mean().sqrt()) if tensor.numel() else 0.0
