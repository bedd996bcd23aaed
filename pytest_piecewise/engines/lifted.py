"""Runs a module as the reference: its weights in the reference's precision, its operations lifted, and both perturbed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from pytest_piecewise.engines import Request
from pytest_piecewise.engines.choices import NEAR, Choices
from pytest_piecewise.engines.prepare import (
    UNIT_ROUNDOFF,
    as_real,
    call_context,
    flatten,
    frozen_tensors,
    make_inputs,
    state_tensors,
    update_weights,
)
from pytest_piecewise.engines.reference import LiftedPrecision
from pytest_piecewise.records import Call

PERTURBATIONS = 3
"""How many perturbed runs measure how well a result is defined."""

Judged = dict[int, dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]
"""By call and output: the value, the largest change of each row under perturbation, and whether the row follows a near
tie, in which case most of that change is owed to another choice (last dimension kept as 1 in both)."""
Stale = dict[str, dict[int, dict[str, torch.Tensor]]]
"""What calls would give that saw the `inputs` of another call, or the `weights` before an update, by call and output."""


def reference_outputs(
    request: Request, module: nn.Module, steps: Sequence[Call]
) -> tuple[Judged, Stale, dict[str, str]]:
    """The outputs and state of `steps`, on the CPU; and the ops that ran in their own precision, with the reason.

    Of a model with state also what stale calls give: since its state goes on, no two of its calls would be alike even if
    nothing else were different.
    """
    model, target = request.model, getattr(torch, request.model.reference)
    weights = LiftedWeights(request, module, target)
    _lift_state(request, module, target)
    state = state_tensors(model, module)
    before: dict[int, dict[str, torch.Tensor]] = {}
    runs: dict[int, dict[str, list[torch.Tensor]]] = {call.index: {} for call in steps}
    choices = {call.index: Choices() for call in steps}
    fallbacks: dict[str, str] = {}

    def run(call: Call, attempt: int, version: int, seed: int, known: Choices) -> dict[str, torch.Tensor]:
        weights.use(version, attempt)
        for name, tensor in before[call.index].items():
            state[name].copy_(tensor)
        mode = LiftedPrecision(target, attempt or None, known.start(attempt))
        inputs = make_inputs(model, call.size, seed, request.dtype, request.device)
        with mode, call_context(model, call):
            outputs = flatten(module(*inputs))
        fallbacks.update(mode.fallbacks)
        return outputs

    for attempt in range(PERTURBATIONS + 1):
        with request.meter.phase(f"reference: perturbation {attempt}" if attempt else "reference"):
            for call in steps:
                if not attempt:
                    before[call.index] = {name: as_real(tensor).clone() for name, tensor in state.items()}
                outputs = run(call, attempt, call.weights, call.seed, choices[call.index])
                outputs |= {f"state:{name}": as_real(tensor).clone() for name, tensor in state.items()}
                _note(runs[call.index], outputs, request.dtype)
    stale: Stale = {"inputs": {}, "weights": {}} if state else {}
    for call in steps if state else ():
        if call.weights == 1:
            for what, (version, seed) in {"inputs": (1, call.seed + 1), "weights": (0, call.seed)}.items():
                stale[what][call.index] = {k: v.cpu() for k, v in run(call, 0, version, seed, Choices()).items()}
    results = {
        index: {name: _judged(*values, near=choices[index].near) for name, values in outputs.items()}
        for index, outputs in runs.items()
    }
    return results, stale, fallbacks


def _note(known: dict[str, list[torch.Tensor]], outputs: dict[str, torch.Tensor], low: torch.dtype) -> None:
    """Keeps the first outputs of a call, and of later ones how far they are from them."""
    for name, output in outputs.items():
        value = _in_range(output.cpu(), low)
        values = known.setdefault(name, [])
        values.append(row_change(values[0], value) if values else value)


def _judged(
    value: torch.Tensor, otherwise: torch.Tensor, *changes: torch.Tensor, near: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What is kept of a value, its changes in the run that chose otherwise and in the others, and its `near` ties."""
    smooth = torch.stack(changes).amax(0)
    return value, torch.maximum(smooth, otherwise), (otherwise > NEAR * smooth) & bool(near)


def row_change(value: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """The largest change of each row, the last dimension kept as 1; zero for what is no number with a fraction."""
    if not value.is_floating_point():
        return torch.zeros(())
    change = (moved - value).abs().nan_to_num()
    if not change.dim():
        return change
    return change.amax(-1, keepdim=True) if change.shape[-1] else change.new_zeros(*change.shape[:-1], 1)


def _in_range(value: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Finite values beyond what the case's dtype can hold, such as a lifted `finfo.min`, become its largest."""
    if not value.is_floating_point():
        return value
    most = torch.finfo(low).max
    return torch.where(value.isfinite(), value.clamp(-most, most), value)


def _lift_state(request: Request, module: nn.Module, target: torch.dtype) -> None:
    """Keeps the state that calls change in the reference's precision too."""
    for name, tensor in state_tensors(request.model, module).items():
        owner, _, attribute = name.rpartition(".")
        if tensor.is_floating_point():
            setattr(module.get_submodule(owner), attribute, tensor.to(target))


class LiftedWeights:
    """A module's weights and buffers, floating-point ones in the reference's precision, made from the case's own each time.

    Lifted in place rather than operation by operation, since much Python and C++ compares the dtypes of an activation
    and a weight before any operation is dispatched (a convolution's bias, an LSTM).
    """

    def __init__(self, request: Request, module: nn.Module, target: torch.dtype) -> None:
        self._request, self._module, self._target = request, module, target
        tensors = {id(t): t for t in frozen_tensors(request.model, module).values()}
        self._tensors = list(tensors.values())
        self._versions = [[tensor.data for tensor in self._tensors]]
        self._current: tuple[int, int] | None = None

    def use(self, version: int, perturbation: int) -> None:
        """The weights before (0) or after (1, 2) an update, each changed by up to one unit of rounding if asked."""
        if self._current == (version, perturbation):
            return
        if version == len(self._versions):
            for tensor, data in zip(self._tensors, self._versions[-1], strict=True):
                tensor.data = data.clone()
            update_weights(self._request.model, self._module, self._request.seed, version)
            self._versions.append([tensor.data for tensor in self._tensors])
        for number, (tensor, data) in enumerate(zip(self._tensors, self._versions[version], strict=True)):
            tensor.data = self._lifted(data, perturbation, number)
        self._current = (version, perturbation)

    def _lifted(self, data: torch.Tensor, perturbation: int, number: int) -> torch.Tensor:
        if not data.is_floating_point():
            return data
        high = data.to(self._target)
        if not perturbation:
            return high
        generator = torch.Generator(data.device).manual_seed(perturbation * 1_000_003 + number)
        noise = torch.rand(data.shape, generator=generator, device=data.device, dtype=self._target)
        return high * (1 + UNIT_ROUNDOFF[data.dtype] * (2 * noise - 1))
