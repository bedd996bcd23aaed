"""Static buffers: the arguments of padded calls at fixed addresses, and which rows of their outputs are real."""

from __future__ import annotations

from typing import Any

import torch

from pytest_piecewise.engines import Request
from pytest_piecewise.engines.prepare import flatten, make_inputs, sized_inputs
from pytest_piecewise.records import Call


class StaticInputs:
    """One set of arguments per padded size, which every call at that size writes into. Sizes share no memory."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._held: dict[int, tuple[Any, ...]] = {}
        self.sized: dict[int, int] = {}
        """`{argument index: dimension}` of those that carry the size; known after the first call."""

    def place(self, call: Call) -> tuple[Any, ...]:
        """The arguments of the call: its inputs in the leading rows, padding as it says in those beyond."""
        request, padded = self._request, call.padded_size or call.size
        inputs = make_inputs(request.model, call.size, call.seed, request.dtype, request.device)
        if padded not in self._held:
            template = make_inputs(request.model, padded, call.seed, request.dtype, request.device)
            self._held[padded] = tuple(t.clone() if isinstance(t, torch.Tensor) else t for t in template)
            self.sized = self.sized or sized_inputs(request.model, template, padded)
        static = self._held[padded]
        for index, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                _fill(static[index], value, self.sized.get(index), call)
        self._held[padded] = tuple(
            held if isinstance(held, torch.Tensor) else new for held, new in zip(static, inputs, strict=True)
        )
        return self._held[padded]

    def real_rows(self, call: Call) -> tuple[Any, ...]:
        """The arguments of the call last placed, without their padding."""
        return tuple(
            held.narrow(self.sized[index], 0, call.size) if index in self.sized else held
            for index, held in enumerate(self._held[call.padded_size or call.size])
        )


def _fill(static: torch.Tensor, value: torch.Tensor, dimension: int | None, call: Call) -> None:
    if dimension is None or static.shape == value.shape:
        static.copy_(value)
        return
    rows = static.shape[dimension] - call.size
    static.narrow(dimension, 0, call.size).copy_(value)
    padding = static.narrow(dimension, call.size, rows)
    if call.padding == "zero":
        padding.zero_()
    elif call.padding == "nan" and static.is_floating_point():
        padding.fill_(float("nan"))
    # "stale", and integers, which cannot be poisoned: what the last call at this size left there


class SizedOutputs:
    """Which dimensions of each output carry the size, or a multiple of it, learnt from calls at several sizes."""

    def __init__(self) -> None:
        self._multiples: dict[str, dict[int, int]] = {}

    def observe(self, outputs: Any, size: int) -> None:
        """Learns from the outputs of one unpadded call. What does not hold at every size is dropped for good."""
        for name, tensor in flatten(outputs).items():
            here = {d: extent // size for d, extent in enumerate(tensor.shape) if extent and not extent % size}
            known = self._multiples.get(name, here)
            self._multiples[name] = {d: multiple for d, multiple in known.items() if here.get(d) == multiple}

    def real_rows(self, outputs: dict[str, torch.Tensor], call: Call) -> dict[str, torch.Tensor]:
        """The outputs of the call without padding rows."""
        if call.padded_size in (0, call.size):
            return outputs
        real = {}
        for name, tensor in outputs.items():
            for dimension, multiple in self._multiples.get(name, {}).items():
                tensor = tensor.narrow(dimension, 0, multiple * call.size)
            real[name] = tensor
        return real
