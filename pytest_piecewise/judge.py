"""The outputs of all variants -> comparisons and findings of one case. Pure: tensors and records in, records out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from pytest_piecewise.bitwise import bit_comparison, exact_comparison
from pytest_piecewise.compare import Reference, Scale, answer_comparison, budget_comparison, gain_comparison
from pytest_piecewise.evidence import Evidence
from pytest_piecewise.findings import bits_findings, describe_comparison, finding, further_comparisons
from pytest_piecewise.records import Call, Comparison, Finding, Status
from pytest_piecewise.ties import chose_near_tie
from pytest_piecewise.vacuity import eager_notes, vacuity_finding

RMS_FACTOR = 2.0
"""Bound on the RMS error of an output over all calls, over eager's."""
MAX_TIED_SHARE = 0.5
"""Above this share of calls that near ties make incomparable, the case says nothing."""


def compare_case(evidence: Evidence) -> tuple[tuple[Comparison, ...], tuple[Finding, ...], tuple[str, ...]]:
    """Everything that needs more than one variant: comparisons, findings, notes."""
    comparisons: list[Comparison] = []
    findings: list[Finding] = []
    scales = evidence.scales()
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
    notes = eager_notes(evidence, scales)
    findings.append(vacuity_finding(evidence, eager_is_far=bool(notes)))
    return tuple(comparisons), tuple(findings), notes


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
