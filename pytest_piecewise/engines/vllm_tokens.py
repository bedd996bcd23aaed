"""What is judged of whole engines alone: greedy tokens, flat outputs, and whether eager is the model of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_piecewise.compare import FACTOR, Reference, Scale, scale_of
from pytest_piecewise.engines.prepare import UNIT_ROUNDOFF
from pytest_piecewise.findings import finding
from pytest_piecewise.records import Finding

MIN_SPREAD = 0.1
"""Log-probabilities of a position whose standard deviation is below this are flat: no prompt makes a difference."""
MAX_EAGER_UNITS = 32.0
"""Eager's typical error against the reference, relative and in units of rounding; above it they are not one model."""

_SUFFIX = ".greedy"


@dataclass(frozen=True, slots=True)
class Greedy:
    """The tokens of one sequence, and a row of log-probabilities for each."""

    tokens: Sequence[int]
    rows: torch.Tensor


def save_greedy(folder: Path, variant: str, found: Sequence[Greedy]) -> None:
    """Leaves them for `judge_llm`."""
    torch.save([(list(item.tokens), item.rows) for item in found], folder / f"{variant}{_SUFFIX}")


def judge_llm(folder: Path, dtype: torch.dtype) -> list[Finding]:
    """The findings that the comparison of outputs does not make."""
    unit = UNIT_ROUNDOFF[dtype]
    eager = torch.load(folder / "eager.pt")
    reference = {index: item for index, item in torch.load(folder / "reference.pt").items() if index in eager}
    scale = _scale(reference, eager)
    greedy = {path.stem: [Greedy(*item) for item in torch.load(path)] for path in sorted(folder.glob(f"*{_SUFFIX}"))}
    findings = [_same_model(scale, unit), _flatness(eager)]
    return findings + [
        _tokens(variant, found, greedy["eager"], max(scale.peak, unit))
        for variant, found in greedy.items()
        if variant != "eager"
    ]


def _scale(reference: dict[int, Any], eager: dict[int, Any]) -> Scale:
    pairs = [
        (Reference(value, change), eager[index][name])
        for index, outputs in reference.items()
        for name, (value, change, _) in outputs.items()
    ]
    return scale_of([first for first, _ in pairs], [second for _, second in pairs])


def _same_model(scale: Scale, unit: float) -> Finding:
    """A budget taken from an eager run that computes something else would let everything pass."""
    units = scale.rms / unit
    summary = (
        f"eager differs from transformers in float64 by {units:.3g} units of rounding (relative RMS of typical rows)"
    )
    action = "the two implementations, or the weights that they were given, differ: nothing can be judged by them"
    return finding("answer", "eager", units <= MAX_EAGER_UNITS, f"{summary}, {MAX_EAGER_UNITS:g} allowed", (), action)


def _flatness(eager: dict[int, Any]) -> Finding:
    spread = min(float(rows.std(-1).median()) for outputs in eager.values() for rows in outputs.values())
    summary = f"log-probabilities of a position spread by {spread:.3g} (standard deviation), {MIN_SPREAD} is needed"
    action = (
        "give the model weights of a sensible scale: load_format='dummy' as it is gives the same flat answer to all"
    )
    return finding("vacuity", "eager", spread >= MIN_SPREAD, summary, (), action)


def _tokens(variant: str, found: Sequence[Greedy], eager: Sequence[Greedy], tolerated: float) -> Finding:
    """Equal to eager's up to the first near tie of each sequence; what follows it has another prompt."""
    problems, compared, tied = [], 0, 0
    for index, (mine, other) in enumerate(zip(found, eager, strict=True)):
        first = next((i for i, (a, b) in enumerate(zip(mine.tokens, other.tokens, strict=True)) if a != b), None)
        compared += len(other.tokens) if first is None else first
        if first is None:
            continue
        row = other.rows[first].double()
        gap = float(row[other.tokens[first]] - row[mine.tokens[first]])
        limit = 2 * FACTOR * tolerated * float(row.square().mean().sqrt())
        tied += gap <= limit
        if gap > limit:
            problems.append(
                f"sequence {index}, new token {first}: {mine.tokens[first]} found, {other.tokens[first]} in eager, "
                f"which is more probable there by {gap:.3g} (a near tie: up to {limit:.3g})"
            )
    summary = f"{compared} greedy tokens of {len(eager)} sequences equal eager's; {tied} sequence(s) left at a near tie"
    if problems:
        summary = f"{problems[0]} ({len(problems)} of {len(eager)} sequences)"
    action = "the equivalence finding says whether log-probabilities differ as well; if not, look at the sampler"
    return finding("exact", variant, not problems, summary, problems[1:6], action)
