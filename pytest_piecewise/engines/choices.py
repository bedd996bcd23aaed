"""Top-k choices inside the reference: which of them a rounding error may decide otherwise, and what follows if it does.

A router that sends a token to another expert changes the token's result by far more than any rounding error, in one
build and not in another, and neither is wrong. So of the perturbed runs of a call one takes the other choice wherever
the scores nearly tie, while the others keep the choices of the first run: what the former changes beyond the latter is
owed to near ties, row by row, and later rows that look back at them included.
"""

from __future__ import annotations

from typing import Any

import torch

NEAR = 6.0
"""Scores nearly tie if they lie closer than this many times the largest change of their row under perturbation."""


class Choices:
    """The `topk` calls of one call of the model, in their order: noted in the first run, decided in the perturbed ones."""

    def __init__(self) -> None:
        self._noted: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._position, self._other, self._noting = 0, False, True
        self.near = 0
        """How many choices nearly tie."""

    def start(self, perturbation: int) -> Choices:
        """A run begins: 0 is the first, 1 the one that chooses otherwise."""
        self._position, self._noting, self._other = 0, perturbation == 0, perturbation == 1
        return self

    def decide(self, result: Any, scores: torch.Tensor, dim: int = -1, largest: bool = True) -> Any:
        """The values and indices that a `topk` of `scores` along `dim`, just made, gives to the run under way."""
        if self._noting:
            self._noted.append((scores.detach().clone(), result[1].clone()))
            return result
        position, self._position = self._position, self._position + 1
        if position >= len(self._noted) or self._noted[position][0].shape != scores.shape:
            return result  # what is computed depends on earlier choices: nothing to compare with
        before, chosen = self._noted[position]
        if self._other and chosen.shape[dim] < scores.shape[dim]:
            chosen = self._otherwise(before, scores, chosen, dim, largest)
        return type(result)((scores.gather(dim, chosen), chosen))

    def _otherwise(
        self, before: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor, dim: int, largest: bool
    ) -> torch.Tensor:
        """The choice with its last one and the best of those left out exchanged, where their scores nearly tie."""
        count = chosen.shape[dim]
        ranked = before.topk(count + 1, dim, largest)
        last, next_best = (ranked.values.narrow(dim, at, 1) for at in (count - 1, count))
        change = torch.where(before.isfinite() & scores.isfinite(), (scores - before).abs(), 0.0).amax(
            dim, keepdim=True
        )
        near = (last - next_best).abs() <= NEAR * change
        self.near += int(near.sum())
        loser, winner = (ranked.indices.narrow(dim, at, 1) for at in (count - 1, count))
        return torch.where(near & (chosen == loser), winner, chosen)
