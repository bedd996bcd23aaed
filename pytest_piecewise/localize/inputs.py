"""Arguments of a script: numbers out of a seed where the failure survives that, else the real ones from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

STORED = "inputs.safetensors"


@dataclass(frozen=True, slots=True)
class Input:
    """One argument. `value` is the real one; with `seed`, numbers of the same shape and scale are made instead."""

    name: str
    value: Any
    seed: int | None = None

    def make(self) -> Any:
        """The argument."""
        if self.seed is None or not isinstance(self.value, torch.Tensor):
            return self.value
        generator = torch.Generator().manual_seed(self.seed)
        made = _numbers(self.value, generator)
        return made.to(dtype=self.value.dtype, device=self.value.device)

    def text(self, place: str) -> str:
        """The argument as an expression of the script, on the device `place`."""
        value = self.value
        if not isinstance(value, torch.Tensor):
            return repr(value)
        if self.seed is None:
            return f"stored[{self.name!r}].to({place})"
        shape, dtype = tuple(value.shape), str(value.dtype)
        if value.is_floating_point():
            mean, deviation = _scale(value)
            return f"normal({self.seed}, {shape}, {mean!r}, {deviation!r}, {dtype}).to({place})"
        low, high = _range(value)
        return f"integers({self.seed}, {shape}, {low}, {high}, {dtype}).to({place})"


def _numbers(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if value.is_floating_point():
        mean, deviation = _scale(value)
        return torch.randn(tuple(value.shape), generator=generator) * deviation + mean
    low, high = _range(value)
    return torch.randint(low, high + 1, tuple(value.shape), generator=generator)


def _scale(value: torch.Tensor) -> tuple[float, float]:
    """Mean and standard deviation, rounded so that the script and this process use the same numbers."""
    known = value.float().flatten()
    known = known[torch.isfinite(known)]
    if known.numel() < 2:
        return float(f"{float(known.mean()) if known.numel() else 0.0:.3g}"), 1.0
    return float(f"{float(known.mean()):.3g}"), float(f"{float(known.std()) or 1.0:.3g}")


def _range(value: torch.Tensor) -> tuple[int, int]:
    whole = value.to(torch.int64)
    return (int(whole.min()), int(whole.max())) if whole.numel() else (0, 0)


def randomised(inputs: Sequence[Input]) -> list[Input]:
    """All tensors out of seeds."""
    return [replace(item, seed=number) for number, item in enumerate(inputs)]


def resized(inputs: Sequence[Input], shapes: Sequence[tuple[int, ...] | None]) -> list[Input]:
    """Tensors cut to smaller shapes, or for larger ones repeated; None leaves one as it is."""
    return [item if shape is None else replace(item, value=_fitted(item.value, shape)) for item, shape in
            zip(inputs, shapes, strict=True)]  # fmt: skip


def _fitted(value: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    for dimension, extent in enumerate(shape):
        times = -(-extent // max(value.shape[dimension], 1))
        if times > 1:
            value = torch.cat([value] * times, dim=dimension)
        value = value.narrow(dimension, 0, extent)
    return value.contiguous()


def stored(inputs: Sequence[Input], constants: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What has to go into the file beside the script."""
    kept = {item.name: item.value for item in inputs if item.seed is None and isinstance(item.value, torch.Tensor)}
    return {name: value.detach().cpu().contiguous().clone() for name, value in (kept | constants).items()}
