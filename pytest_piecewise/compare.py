"""Outputs -> `Comparison` records: against a float64 reference, within eager's own error. No printing.

The budget of an element is `FACTOR` times the largest of: eager's own error in its row, the change of the reference
under perturbations of one unit of rounding, and a floor of one unit of rounding and of what is typical for eager's
rows. `docs/tolerances.md` has the measurements. A *row* is the last dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_piecewise.bitwise import bit_comparison, first_index, label, layout_reason, places, shown
from pytest_piecewise.records import Call, Comparison

FACTOR = 6.0
"""Elementwise bound over the largest error signal of the row."""
ROW_RMS_FACTOR = 6.0
"""Bound on the RMS error of one row over eager's: sees one stale row among many."""
GAIN_FACTOR = 3.0
"""Bound on the gain bias over eager's own."""
GAIN_UNITS = 0.1
"""Gain bias below this share of a unit of rounding is never held against a variant."""
SUM_FLOOR = 2.0**-22
"""Float32 sums in another order reach it: nothing smaller is held against a variant as a gain bias, or in a few rows."""
GAIN_DEVIATIONS = 10.0
"""A gain bias must also exceed this many standard errors, taken over rows."""
TYPICAL_QUANTILE = 0.9
"""Which quantile of eager's relative row errors counts as typical."""
FEW_ROWS = 16
"""With fewer rows that differ, eager may be closer to the truth than is typical, in all of them, by luck."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One output of one call in float64, and how far each row moved under perturbation (last dimension kept as 1).

    `tied` rows are those that a near tie of a top-k reaches: they moved by what another choice changes, and say nothing of
    what is typical.
    """

    value: torch.Tensor
    sensitivity: torch.Tensor
    tied: torch.Tensor | None = None

    @property
    def settled(self) -> torch.Tensor:
        """Which rows no near tie reaches, in the order of `_rows`."""
        rows = _rows(self.value)
        return rows.new_ones(len(rows), dtype=torch.bool) if self.tied is None else ~_rows(self.tied).any(-1)

    def settled_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Those rows of a tensor of the same shape."""
        return _rows(tensor)[self.settled]


@dataclass(frozen=True, slots=True)
class Scale:
    """What is typical for one output over all calls of the case, in units of a row's RMS value."""

    peak: float
    rms: float
    gain: float
    moved: float = 0.0
    """How far perturbation moves a row, halved, or a sum in another order, whichever is more; 0 where there are enough rows
    for eager's errors to be typical."""
    sensitivity: float = 0.0
    """How far perturbation moves a typical row."""


def answer_comparison(
    variant: str, call: Call, name: str, found: torch.Tensor | None, answer: torch.Tensor, *, exact: bool, unit: float
) -> Comparison:
    """One output against the answer known by hand: bit for bit if `exact`, else within `FACTOR` units of rounding."""
    against = "the answer by hand"
    if exact or found is None or found.shape != answer.shape:
        outputs = {} if found is None else {name: found}
        return replace(bit_comparison("answer", variant, against, call, outputs, {name: answer}), output=name)
    error = (found.double() - answer.double()).abs()
    allowed = FACTOR * unit * torch.maximum(answer.double().abs(), _rms(answer.double().reshape(1, -1)))
    index = _unravel(int((error / allowed.clamp_min(1e-300)).argmax()), tuple(found.shape)) if found.numel() else ()
    ok = bool((error <= allowed).all())
    return Comparison(
        check="answer",
        axis="budget",
        variant=variant,
        against=against,
        output=name,
        ok=ok,
        elements=found.numel(),
        wrong=int((~(error <= allowed)).sum()),
        error=_max(error),
        budget=_max(allowed),
        ratio=_max(error / allowed.clamp_min(1e-300)),
        index=index,
        found=shown(found, index),
        expected=shown(answer, index),
        reason="" if ok else "another answer",
        **({} if ok else places(~(error <= allowed))),
        **label(call),
    )


def scale_of(reference: Sequence[Reference], eager: Sequence[torch.Tensor]) -> Scale:
    """What eager's own error is like for one output, over all of its calls."""
    peaks, squares, norms, moves, products, powers = [], [], [], [], 0.0, 0.0
    for expected, found in zip(reference, eager, strict=True):
        error, value = _rows(found.double() - expected.value), _rows(expected.value)
        finite = torch.isfinite(error) & torch.isfinite(value)
        kept = finite.any(-1) & expected.settled
        error, value = (torch.where(finite, tensor, 0.0)[kept] for tensor in (error, value))
        norm = _rms(value).clamp_min(1e-300)
        peaks.append(_amax(error.abs()).squeeze(-1) / norm)
        squares.append(_rms(error) / norm)
        norms.append(norm)
        moves.append(_rows(expected.sensitivity)[kept].nan_to_num().squeeze(-1) / norm)
        products += float((error * value).sum())
        powers += float(value.square().sum())
    if not peaks or not sum(peak.numel() for peak in peaks):
        return Scale(0.0, 0.0, 0.0)
    return Scale(
        peak=float(torch.quantile(torch.cat(peaks)[:1_000_000], TYPICAL_QUANTILE)),
        rms=float(torch.quantile(torch.cat(squares)[:1_000_000], TYPICAL_QUANTILE)),
        gain=products / max(powers, 1e-300),
        moved=max(float(torch.cat(moves).max()) / 2, SUM_FLOOR) if len(torch.cat(norms).unique()) < FEW_ROWS else 0.0,
        sensitivity=float(torch.quantile(torch.cat(moves)[:1_000_000], TYPICAL_QUANTILE)),
    )


def budget_comparison(
    variant: str,
    call: Call,
    name: str,
    reference: Reference,
    eager: torch.Tensor,
    found: torch.Tensor,
    scale: Scale,
    unit: float,
) -> Comparison:
    """One float output of one call against the reference. `unit` is the unit roundoff of the case's dtype."""
    base: dict[str, Any] = {"check": "equivalence", "axis": "budget", "variant": variant, "against": "float64"}
    base |= {"output": name, "elements": found.numel(), **label(call)}
    if found.shape != eager.shape or found.dtype != eager.dtype:
        return Comparison(ok=False, reason=layout_reason(eager, found), ratio=float("inf"), **base)
    if _mask_reason(found, eager):
        return _mask_comparison(found, eager, reference, base)
    value, sensitivity = _rows(reference.value), _rows(reference.sensitivity)
    # Eager and found are NaN and infinite in the same places by now: those say nothing of the rest of their rows.
    judged = torch.isfinite(_rows(eager)) & torch.isfinite(value)
    error = torch.where(judged, _rows(found.double()) - value, 0.0).abs()
    eager_error = torch.where(judged, _rows(eager.double()) - value, 0.0).abs()
    value = torch.where(judged, value, 0.0)
    norm = _rms(value).unsqueeze(-1)
    floor = max(scale.peak, unit) * norm
    allowed = FACTOR * torch.maximum(
        torch.maximum(_amax(eager_error), sensitivity.nan_to_num()),
        torch.maximum(unit * value.abs(), floor),
    )
    ratio = error / allowed.clamp_min(1e-300)
    row_allowed = torch.maximum(
        torch.maximum(_rms(eager_error), sensitivity.nan_to_num().squeeze(-1) / 2),
        max(scale.rms, unit / 2) * norm.squeeze(-1),
    )
    row_ratio = _rms(error) / (ROW_RMS_FACTOR * row_allowed).clamp_min(1e-300)
    worst = int(ratio.argmax()) if ratio.numel() else 0
    index = _unravel(worst, tuple(found.shape))
    peak, row_peak = _max(ratio), _max(row_ratio)
    ok = peak <= 1 and row_peak <= 1
    if not ok:
        base |= places(((ratio > 1) | (row_ratio > 1).unsqueeze(-1)).reshape(found.shape))
    return Comparison(
        ok=ok,
        wrong=int((ratio > 1).sum()),
        error=_at(error, worst),
        budget=_at(allowed.expand_as(error), worst),
        ratio=peak,
        row_ratio=row_peak,
        index=index,
        found=shown(found, index),
        expected=shown(reference.value, index),
        eager=shown(eager, index),
        reason="" if ok else "beyond the budget",
        **base,
    )


def _mask_comparison(
    found: torch.Tensor, eager: torch.Tensor, reference: Reference, base: Mapping[str, Any]
) -> Comparison:
    """The comparison of an output that is NaN or infinite in other places than eager's."""
    reason = _mask_reason(found, eager)
    mask = found.isnan() != eager.isnan() if "NaN" in reason else _infinite(found) != _infinite(eager)
    index = first_index(mask)
    return Comparison(
        ok=False,
        reason=reason,
        ratio=float("inf"),
        wrong=int(mask.sum()),
        index=index,
        found=shown(found, index),
        eager=shown(eager, index),
        expected=shown(reference.value, index),
        **places(mask),
        **base,
    )


def gain_comparison(
    variant: str, name: str, reference: Sequence[Reference], found: Sequence[torch.Tensor], scale: Scale, unit: float
) -> Comparison:
    """The systematic scale error `<y-r, r> / <r, r>` of one output over all calls: sees what rounding hides per element.

    `error` is the gain, `budget` what is tolerated, `gain` repeats the former for reports.
    """
    products, powers = [], []
    for expected, tensor in zip(reference, found, strict=True):
        value = _rows(expected.value)
        error = _rows(tensor.double()) - value
        good = torch.isfinite(error) & torch.isfinite(value) & expected.settled.unsqueeze(-1)
        products.append(torch.where(good, error * value, 0.0).sum(-1))
        powers.append(torch.where(good, value.square(), 0.0).sum(-1))
    product, power = torch.cat(products), torch.cat(powers)
    total = float(power.sum())
    gain = float(product.sum()) / max(total, 1e-300)
    deviation = float((product - gain * power).square().sum().sqrt()) / max(total, 1e-300)
    allowed = max(GAIN_FACTOR * abs(scale.gain), GAIN_UNITS * unit, SUM_FLOOR)
    significant = abs(gain) > GAIN_DEVIATIONS * deviation
    ok = abs(gain) <= allowed or not significant
    return Comparison(
        check="equivalence",
        axis="budget",
        variant=variant,
        against="float64",
        call=-1,
        phase="all calls",
        size=0,
        output=name,
        ok=ok,
        elements=sum(tensor.numel() for tensor in found),
        error=abs(gain),
        budget=allowed,
        ratio=abs(gain) / allowed if significant else 0.0,
        gain=gain,
        reason="" if ok else f"all values are off by one factor, {1 + gain:.6f}",
    )


def _mask_reason(found: torch.Tensor, eager: torch.Tensor) -> str:
    for name, test in (("NaN", torch.isnan), ("infinity", _infinite)):
        if not torch.equal(test(found), test(eager)):
            return f"{name} in other places: {_count(test(found))} found, {_count(test(eager))} in eager"
    return ""


def _infinite(tensor: torch.Tensor) -> torch.Tensor:
    """1 and -1 where a tensor is infinite, by sign; 0 elsewhere."""
    return torch.where(tensor.isinf(), tensor.sign(), 0.0)


def _count(mask: torch.Tensor) -> int:
    return int(mask.count_nonzero())


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """A view with rows along the last of two dimensions; a vector is one row, a scalar a row of one element."""
    columns = tensor.shape[-1] if tensor.dim() else 1
    return tensor.reshape(tensor.numel() // columns if columns else tensor.shape[:-1].numel(), columns)


def _amax(rows: torch.Tensor) -> torch.Tensor:
    """Largest element of each row, the dimension kept; 0 where rows are empty."""
    return rows.amax(-1, keepdim=True) if rows.shape[-1] else rows.sum(-1, keepdim=True)


def _rms(rows: torch.Tensor) -> torch.Tensor:
    return rows.square().mean(-1).sqrt() if rows.shape[-1] else rows.sum(-1)


def _max(tensor: torch.Tensor) -> float:
    return float(tensor.max()) if tensor.numel() else 0.0


def _at(tensor: torch.Tensor, position: int) -> float:
    return float(tensor.reshape(-1)[position]) if tensor.numel() else 0.0


def _unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for extent in reversed(shape):
        position, remainder = divmod(position, max(extent, 1))
        index.append(remainder)
    return tuple(reversed(index))
