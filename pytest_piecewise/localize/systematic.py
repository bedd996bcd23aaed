"""Errors too small to be seen in one call: over all of them, the first piece whose results are off as a whole."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from pytest_piecewise.compare import gain_comparison, scale_of
from pytest_piecewise.judge import RMS_FACTOR
from pytest_piecewise.localize.inspection import Sample, Suspect
from pytest_piecewise.records import Comparison


def systematic(samples: Sequence[Sample], variant: str, unit: float) -> Suspect | None:
    """The first piece with a gain, or an RMS error over all calls, beyond what eager's own error allows."""
    groups: dict[tuple[int, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.step.position, sample.name), []).append(sample)
    for (_, name), items in sorted(groups.items()):
        references = [item.reference for item in items]
        scale = scale_of(references, [item.eager for item in items])
        gain = gain_comparison(variant, name, references, [item.found for item in items], scale, unit)
        if not gain.ok:
            return Suspect(items[-1].step, "code", (f"over {len(items)} calls {gain.reason}",), _shown(gain))
        found, eager = (_relative([getattr(item, what) for item in items], items) for what in ("found", "eager"))
        if found > RMS_FACTOR * max(eager, unit / 2):
            line = f"over {len(items)} calls the relative RMS error is {found:.3g}, eager's {eager:.3g}"
            return Suspect(items[-1].step, "code", (line,))
    return None


def _shown(gain: Comparison) -> Comparison:
    return dataclasses.replace(gain, expected="1", found=f"{1 + gain.gain:.6f}")


def _relative(tensors: Sequence[torch.Tensor], items: Sequence[Sample]) -> float:
    errors = [(t.double() - item.reference.value).nan_to_num() for t, item in zip(tensors, items, strict=True)]
    power = sum(float(item.reference.value.nan_to_num().square().sum()) for item in items)
    return math.sqrt(sum(float(error.square().sum()) for error in errors) / max(power, 1e-300))
