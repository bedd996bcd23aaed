"""The builds of the native engine: eager, full and piecewise. Each is alive in one process and owned by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from pytest_piecewise.capture import GraphPool
from pytest_piecewise.engines import Request
from pytest_piecewise.engines.layout import Layout
from pytest_piecewise.engines.pieces import Evidence, FullBackend, PiecewiseBackend, Stage
from pytest_piecewise.engines.prepare import (
    call_context,
    flatten,
    make_inputs,
    make_module,
    sized_inputs,
    state_tensors,
    strided,
    weight_storages,
)
from pytest_piecewise.engines.static import SizedOutputs, StaticInputs
from pytest_piecewise.engines.tracing import compile_dynamic, compiling, compiling_within, mark_sizes
from pytest_piecewise.engines.watch import CompileWatch, counts_from
from pytest_piecewise.models import Model
from pytest_piecewise.records import Call, Counts, Part


class EagerBuild:
    """The module as it is."""

    variant = "eager"
    graph_kind = ""
    pool_bytes = 0
    takes_strided = True

    def __init__(self, request: Request) -> None:
        self._request = request
        self._evidence = Evidence()
        with request.meter.phase("model"):
            self.module = make_module(request.model, request.dtype, request.device, request.seed)

    def prepare(self) -> None:
        """Nothing to compile."""

    def run(self, call: Call, *, graphs: bool = True) -> dict[str, torch.Tensor]:
        """The module's outputs at the call's real size; padding is a matter of the variants with graphs."""
        request = self._request
        inputs = make_inputs(request.model, call.size, call.seed, request.dtype, request.device)
        inputs = strided(inputs) if call.strided else inputs
        with call_context(request.model, call):
            outputs = as_returned(flatten(self.module(*inputs)), self.module)
        note_mutations(self._evidence, request, call, inputs)
        return outputs

    @contextmanager
    def stepping(self, size: int) -> Iterator[Callable[[], Any]]:
        """The bare step at a size, for a clock: the module on inputs that are already in place."""
        request, call = self._request, dummy_call(size)
        inputs = make_inputs(request.model, size, call.seed, request.dtype, request.device)
        with call_context(request.model, call):
            yield lambda: self.module(*inputs)

    @property
    def counts(self) -> Counts:
        """Nothing is compiled; only mutated inputs are counted."""
        return Counts(mutated_inputs=tuple(self._evidence.mutated_inputs))

    def close(self) -> None:
        """Nothing is held."""


class _CompiledBuild:
    """What builds of compiled code have in common: the evidence of what was done."""

    retraceable = True
    takes_strided = True
    _request: Request
    _evidence: Evidence
    _watch: CompileWatch

    def within(self, call: Call) -> AbstractContextManager[Any]:
        """The metadata of a call, and the configuration in which pieces are compiled."""
        return compiling_within(self._request.model, call)

    @property
    def counts(self) -> Counts:
        """Evidence so far."""
        return counts_from(self._evidence, self._watch, self._request.model)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What the graph was split into, with the compile time of each distinct piece."""
        return tuple(self._evidence.parts)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the generated kernels, as often as they are called."""
        return tuple(self._evidence.kernel_names)


class FullBuild(_CompiledBuild):
    """One graph through Inductor, without graphs: what `torch.compile(fullgraph=True)` gives."""

    variant = "full"
    graph_kind = ""
    pool_bytes = 0

    def __init__(self, request: Request) -> None:
        self._request = request
        self._evidence = Evidence()
        with request.meter.phase("model"):
            self.module = make_module(request.model, request.dtype, request.device, request.seed)
        self._watch = CompileWatch(self._evidence)
        self.layouts: list[Layout] = []
        backend = FullBackend(self._evidence, request.model.splitting_ops, self.layouts if request.observed else None)
        self._compiled = compile_dynamic(self.module, backend, request.model, self._evidence)

    def prepare(self) -> None:
        """Compiles at the largest captured size, and once more for size 1 if the model wants that apart."""
        model = self._request.model
        with preserved_state(model, self.module), self._request.meter.phase("compile"):
            for call in warmup_calls(model):
                self._run(call, mark=call.size != 1)
        self._watch.warm()

    def run(self, call: Call, *, graphs: bool = True) -> dict[str, torch.Tensor]:
        """The compiled module's outputs at the call's real size."""
        return as_returned(flatten(self._run(call)), self.module)

    @contextmanager
    def stepping(self, size: int) -> Iterator[Callable[[], Any]]:
        """The bare step at a size, for a clock: the compiled module on inputs that are already in place."""
        request, call = self._request, dummy_call(size)
        inputs = make_inputs(request.model, size, call.seed, request.dtype, request.device)
        with compiling(request.model), call_context(request.model, call):
            yield lambda: self._compiled(*inputs)

    def results(self, call: Call) -> tuple[Sequence[Any], Any]:
        """The arguments of one call and what the compiled module returned for them, neither copied."""
        arguments = self._arguments(call)
        return arguments, self._called(call, arguments)

    def _arguments(self, call: Call) -> tuple[Any, ...]:
        request = self._request
        inputs = make_inputs(request.model, call.size, call.seed, request.dtype, request.device)
        return strided(inputs) if call.strided else inputs

    def _called(self, call: Call, arguments: Sequence[Any]) -> Any:
        with compiling(self._request.model), call_context(self._request.model, call):
            return self._compiled(*arguments)

    def _run(self, call: Call, mark: bool = False) -> Any:
        request, inputs = self._request, self._arguments(call)
        if mark:
            mark_sizes(request.model, inputs, sized_inputs(request.model, inputs, call.size))
        outputs = self._called(call, inputs)
        note_mutations(self._evidence, request, call, inputs)
        return outputs

    def close(self) -> None:
        """Drops the compiled code."""
        del self._compiled


class PiecewiseBuild(_CompiledBuild):
    """Split at the splitting ops; every distinct piece compiled once; every piece captured for every size."""

    variant = "piecewise"

    def __init__(self, request: Request) -> None:
        self._request = request
        self._evidence = Evidence()
        with request.meter.phase("model"):
            self.module = make_module(request.model, request.dtype, request.device, request.seed)
        self._watch = CompileWatch(self._evidence)
        self._stage = Stage(pool=GraphPool(request.device), frozen=ExitStack, weights=weight_storages(self.module))
        self.graph_kind = self._stage.pool.kind
        self.layouts: list[Layout] = []
        self._compiled = compile_dynamic(self.module, self._backend(), request.model, self._evidence)
        self._inputs, self._outputs = StaticInputs(request), SizedOutputs()
        self._current = dummy_call(request.model.capture_sizes[-1])

    def _backend(self) -> Any:
        layouts = self.layouts if self._request.observed else None
        return PiecewiseBackend(self._evidence, self._request.model.splitting_ops, self._stage, layouts)

    def prepare(self) -> None:
        """Compiles, then captures all sizes, largest first. Warm-up and capture leave the model's state as it was."""
        request = self._request
        with preserved_state(request.model, self.module):
            with request.meter.phase("compile"):
                for call in (*warmup_calls(request.model), *_observed_calls(request.model)):
                    outputs = self._call(call, self._inputs.place(call), "compiled", mark=call.size != 1)
                    self._outputs.observe(outputs, call.size)
            with request.meter.phase("capture"), self._stage.pool.capturing():
                for size in reversed(request.model.capture_sizes):
                    call = dummy_call(size)
                    self._outputs.observe(self._call(call, self._inputs.place(call), "capture"), size)
        self._watch.warm()

    def run(self, call: Call, *, graphs: bool = True) -> dict[str, torch.Tensor]:
        """The outputs of one call. With `graphs`, it is padded to `call.padded_size` and replayed; without, the same
        compiled code runs at the same padded size. Calls beyond the captured sizes run unpadded."""
        mode = "replay" if graphs and call.padded_size else "compiled"
        outputs = flatten(self._call(call, self._inputs.place(call), mode))
        note_mutations(self._evidence, self._request, call, self._inputs.real_rows(call))
        return owned(self._outputs.real_rows(outputs, call))

    @contextmanager
    def stepping(self, size: int) -> Iterator[Callable[[], Any]]:
        """The bare step at a captured size, for a clock, on inputs that are already in place. Recorded graphs are left
        out of it: what they add is the price of a stand-in."""
        call = dummy_call(size)
        arguments = self._inputs.place(call)
        self._call(call, arguments, "replay" if self.graph_kind == "cuda graphs" else "compiled")
        with compiling(self._request.model), call_context(self._request.model, call):
            yield lambda: self._compiled(*arguments)

    def results(self, call: Call) -> tuple[Sequence[Any], Any]:
        """The static arguments of one call and what a replay returned for them, neither copied."""
        arguments = self._inputs.place(call)
        return arguments, self._call(call, arguments, "replay" if call.padded_size else "compiled")

    def _call(self, call: Call, arguments: Sequence[Any], mode: str, mark: bool = False) -> Any:
        model, stage = self._request.model, self._stage
        stage.size, stage.padded_size, stage.mode = call.size, call.padded_size or call.size, mode
        # Poison within the graph needs ops that know how many rows are real, which only a context can tell them.
        stage.poison = call.padding == "nan" and model.context is not None
        self._current = call
        if mode == "capture":
            stage.frozen = lambda: self._metadata_of_capture(call)
        if mark:
            mark_sizes(model, arguments, self._inputs.sized)
        with compiling(model), call_context(model, call):
            return self._compiled(*arguments)

    @contextmanager
    def _metadata_of_capture(self, captured: Call) -> Iterator[None]:
        """The captured call's context inside that of the call under way, which is then entered once more: a context that
        does not restore what was set before it would otherwise leave the capture's metadata to the ops that follow."""
        with call_context(self._request.model, captured):
            yield
        with call_context(self._request.model, self._current):
            pass

    @property
    def pool_bytes(self) -> int:
        """Bytes of the graph pool's segments."""
        return self._stage.pool.pool_bytes()

    def close(self) -> None:
        """Drops graphs and compiled code."""
        del self._compiled


def note_mutations(evidence: Evidence, request: Request, call: Call, inputs: Sequence[Any]) -> None:
    """Notes which arguments are no longer what they were before the call."""
    fresh = make_inputs(request.model, call.size, call.seed, request.dtype, request.device)
    for index, (before, after) in enumerate(zip(fresh, inputs, strict=True)):
        if isinstance(before, torch.Tensor) and not torch.equal(before.nan_to_num(), after.nan_to_num()):
            evidence.mutated_inputs[f"argument {index}"] = None


def owned(outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies that no later call can write: a graph's outputs lie where its next replay puts the next ones."""
    return {name: tensor.clone() for name, tensor in outputs.items()}


def as_returned(outputs: dict[str, torch.Tensor], module: nn.Module) -> dict[str, torch.Tensor]:
    """What a build without graphs returns, which is the caller's to keep; copies only of what is a part of weights and
    buffers, since these are changed by the protocol itself."""
    held = weight_storages(module)
    return {
        name: tensor.clone() if tensor.untyped_storage().data_ptr() in held else tensor
        for name, tensor in outputs.items()
    }


def dummy_call(size: int) -> Call:
    """The call with which a size is compiled or captured: data of its own, seen by no protocol step."""
    # Far from the protocol's seeds: a replay of the very data of the capture would hide a stale input.
    return Call(index=-1, phase="warm-up", size=size, padded_size=size, seed=3_000_000_000 + size)


def warmup_calls(model: Model) -> Sequence[Call]:
    """The calls that compile everything: the largest captured size, and size 1 where the model has it compiled apart."""
    sizes = [model.capture_sizes[-1] if model.capture_sizes[-1] > 1 else model.largest]
    if model.dynamic_shapes == "backed" and model.capture_sizes[0] == 1 and sizes != [1]:
        sizes.append(1)
    return [dummy_call(size) for size in sizes]


def _observed_calls(model: Model) -> Sequence[Call]:
    """With a single captured size, one more: which dimension of an output carries the size takes two to tell."""
    (size, *more) = model.capture_sizes
    return [] if more or size == 1 else [dataclasses.replace(dummy_call(size - 1), padded_size=0)]


@contextmanager
def preserved_state(model: Model, module: Any) -> Iterator[None]:
    """Restores the model's state on the way out, in place, so that dummy runs do not advance it."""
    before = {name: tensor.clone() for name, tensor in state_tensors(model, module).items()}
    try:
        yield
    finally:
        for name, tensor in state_tensors(model, module).items():
            tensor.copy_(before[name])
