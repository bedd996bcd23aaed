"""Whether a comparison could fail at all: results must follow inputs and weights, and eager must be near the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from pytest_piecewise.compare import Scale
from pytest_piecewise.evidence import Evidence
from pytest_piecewise.findings import finding
from pytest_piecewise.records import Call, Finding, Status

Outputs = Mapping[str, torch.Tensor]

VACUOUS_FACTOR = 10.0
"""Outputs must change with inputs and weights by this many times the error that is tolerated."""
EAGER_FAR = 30.0
"""Eager's typical error over what perturbation explains, beyond which it is said; correct models stay below about 1."""


def eager_notes(evidence: Evidence, scales: Mapping[str, Scale]) -> tuple[str, ...]:
    """Outputs in which eager itself is far off. No failure, since a cast to a lower precision may be meant."""
    found = []
    for name, scale in scales.items():
        ratio = scale.rms / max(scale.sensitivity, evidence.unit)
        if ratio > EAGER_FAR:
            found.append(
                f"eager itself is off in {name} by {scale.rms:.2g} (relative RMS against {evidence.precision}), {ratio:.2g} "
                "times what rounding of weights and inputs explains: an op is wrong in this dtype, or computes in a lower "
                "precision on purpose; builds are allowed as much"
            )
    return tuple(found)


def vacuity_finding(evidence: Evidence, *, eager_is_far: bool) -> Finding:
    """Whether a stale input or a stale weight would be seen at all: results must follow both by more than is tolerated."""
    problems, still, least = [], [], math.inf
    if evidence.same_inputs:
        problems.append("the arguments are the same in all calls of one size")
    for what in ("inputs",) if evidence.weightless else ("inputs", "weights"):
        shares, texts, pairs = [], [], _pairs(evidence, what)
        for name in (name for name in evidence.float_outputs if not name.startswith("state:")):
            tolerated = VACUOUS_FACTOR * _tolerated(evidence, name)
            # Outputs whose shape follows the data of a call cannot be told apart element by element.
            alike = [(a[name], b[name]) for a, b in pairs if a[name].shape == b[name].shape]
            change = max((_relative_change(a, b) for a, b in alike), default=math.inf)
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
    if problems and eager_is_far:
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


def _pairs(evidence: Evidence, what: str) -> list[tuple[Outputs, Outputs]]:
    """Outputs of the reference that differ by their `inputs` or `weights` alone."""

    def values(call: Call) -> Outputs:
        return {name: known.value for name, known in evidence.reference[call.index].items()}

    judged = evidence.judged
    if evidence.stale:
        return [
            (values(call), evidence.stale[what][call.index]) for call in judged if call.index in evidence.stale[what]
        ]
    plain = [call for call in judged if not call.weights]
    if what == "inputs":
        alike = [(a, b) for a in plain for b in plain if a.size == b.size and a.index < b.index and a.seed != b.seed]
    else:
        alike = [(a, b) for a in plain for b in judged if b.weights == 1 and (a.size, a.seed) == (b.size, b.seed)]
    return [(values(a), values(b)) for a, b in alike]


def _relative_change(a: torch.Tensor, b: torch.Tensor) -> float:
    scale = max(_rms(a), _rms(b))
    return _rms(a - b) / scale if scale else 0.0


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.nan_to_num(posinf=0, neginf=0).square().mean().sqrt()) if tensor.numel() else 0.0
