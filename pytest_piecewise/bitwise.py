"""Outputs -> `Comparison` records, bit for bit, and what every comparison says of an output. No printing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from pytest_piecewise.heat import heat_map
from pytest_piecewise.records import Call, Comparison

Outputs = Mapping[str, torch.Tensor]


def bit_comparison(check: str, variant: str, against: str, call: Call, first: Outputs, second: Outputs) -> Comparison:
    """All outputs of one call, bit for bit; NaN equals NaN, and -0.0 differs from 0.0. Describes the first that differs."""
    total = sum(tensor.numel() for tensor in first.values())
    base: dict[str, Any] = {
        "check": check,
        "axis": "bits",
        "variant": variant,
        "against": against,
        "elements": total,
        **label(call),
    }
    if first.keys() != second.keys():
        reason = f"outputs {sorted(first)} against {sorted(second)}"
        return Comparison(output="", ok=False, reason=reason, **base)
    for name, tensor in first.items():
        other = second[name]
        if tensor.shape != other.shape or tensor.dtype != other.dtype:
            return Comparison(output=name, ok=False, reason=layout_reason(other, tensor), **base)
        differing = bits(tensor) != bits(other)
        if differing.any():
            index = first_index(differing)
            return Comparison(
                output=name,
                ok=False,
                wrong=int(differing.sum()),
                error=_largest_difference(tensor, other, differing),
                index=index,
                found=shown(tensor, index),
                expected=shown(other, index),
                reason="bits differ",
                **places(differing if not tensor.is_complex() else differing.any(-1)),
                **base,
            )
    return Comparison(output="", ok=True, **base)


def exact_comparison(variant: str, call: Call, name: str, found: torch.Tensor, expected: torch.Tensor) -> Comparison:
    """One output that must equal eager's exactly."""
    comparison = bit_comparison("exact", variant, "eager", call, {name: found}, {name: expected})
    return replace(comparison, output=name)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Integers that are equal exactly if the values are; all NaNs count as one value."""
    if tensor.is_complex():
        return bits(torch.view_as_real(tensor))
    if not tensor.is_floating_point():
        return tensor
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return torch.where(tensor.isnan(), torch.nan, tensor).contiguous().view(kind)


def label(call: Call) -> dict[str, Any]:
    """The fields of a `Comparison` that say of which call it is."""
    return {"call": call.index, "phase": call.phase, "size": call.size}


def places(wrong: torch.Tensor) -> dict[str, Any]:
    """The fields that say where an output is wrong, from a mask of its shape."""
    return {"shape": tuple(wrong.shape), "heat": heat_map(wrong)}


def layout_reason(expected: torch.Tensor, found: torch.Tensor) -> str:
    """What to say of two outputs whose dtypes or shapes differ."""
    return (
        f"expected {str(expected.dtype).removeprefix('torch.')} {tuple(expected.shape)}, "
        f"found {str(found.dtype).removeprefix('torch.')} {tuple(found.shape)}"
    )


def first_index(mask: torch.Tensor) -> tuple[int, ...]:
    """Where a mask is first true; empty if it is nowhere."""
    found = mask.nonzero()
    return tuple(int(i) for i in found[0]) if len(found) else ()


def _largest_difference(first: torch.Tensor, second: torch.Tensor, differing: torch.Tensor) -> float:
    """Over the elements that differ; infinite where one of the two is no number."""
    if first.is_complex():
        first, second = torch.view_as_real(first), torch.view_as_real(second)
    error = (first.double() - second.double()).abs()[differing]
    return float(torch.where(error.isnan(), torch.inf, error).max())


def shown(tensor: torch.Tensor, index: tuple[int, ...]) -> str:
    """One element as text; empty if there is no such element."""
    try:
        return f"{tensor[index].item():.9g}" if tensor.numel() else ""
    except (IndexError, ValueError, TypeError):
        return ""
