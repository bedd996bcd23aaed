"""What there is to judge of one case: the outputs of the reference and of every variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pytest_piecewise.compare import Reference, Scale, scale_of
from pytest_piecewise.models import Model
from pytest_piecewise.records import Call

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
    stale: Mapping[str, CallOutputs] = field(default_factory=dict)
    """Of a model with state: what calls of the reference give with other `inputs`, or with `weights` of before an update."""
    weightless: bool = False
    """Whether the model has neither weights nor buffers of floating-point numbers, which results could follow."""

    @property
    def judged(self) -> list[Call]:
        """The calls whose outputs were kept."""
        return [call for call in self.steps if call.index in self.reference]

    @property
    def float_outputs(self) -> list[str]:
        """Names of eager's outputs of floating-point numbers, state included."""
        names: dict[str, None] = {}
        for outputs in self.variants["eager"].values():
            names.update((name, None) for name, tensor in outputs.items() if tensor.is_floating_point())
        return list(names)

    def scales(self) -> dict[str, Scale]:
        """What is typical for each of them."""
        eager = self.variants["eager"]
        return {
            name: scale_of(
                [self.reference[call.index][name] for call in self.judged],
                [eager[call.index][name] for call in self.judged],
            )
            for name in self.float_outputs
        }
