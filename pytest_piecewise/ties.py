"""Near ties: where an argmax or top-k may rightly choose otherwise than the reference. Pure."""

from __future__ import annotations

import torch

from pytest_piecewise.compare import FACTOR, Reference, Scale


def chose_near_tie(found: torch.Tensor, expected: torch.Tensor, scores: Reference, scale: Scale, unit: float) -> bool:
    """Whether choices differ, and the first that does, in order of the tensor, is a near tie of the reference.

    Later ones may follow from it. Choices may lack the last dimension, as those of `argmax` do.
    """
    if found.shape != expected.shape or torch.equal(found, expected):
        return False
    if found.dim() == scores.value.dim() - 1:
        found, expected = found.unsqueeze(-1), expected.unsqueeze(-1)
    first = tuple((found != expected).nonzero()[0].tolist())
    row, chosen, best = scores.value[first[:-1]], int(found[first]), int(expected[first])
    if not 0 <= chosen < row.numel():
        return False
    finite = row[row.isfinite()]
    norm = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    sensitivity = float(scores.sensitivity.expand(*scores.value.shape[:-1], 1)[first[:-1]])
    gap = abs(float(row[chosen] - row[best]))
    return gap <= 2 * FACTOR * max(sensitivity, max(scale.peak, unit) * norm)
