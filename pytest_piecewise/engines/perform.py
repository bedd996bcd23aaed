"""Takes one build through the protocol: outputs for the comparison with the reference, bit comparisons made on the spot."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from pytest_piecewise.bitwise import bit_comparison
from pytest_piecewise.engines import Build, Request
from pytest_piecewise.engines.prepare import (
    as_real,
    call_context,
    checksum,
    frozen_tensors,
    make_inputs,
    state_tensors,
    strided,
    update_weights,
)
from pytest_piecewise.measure import Meter
from pytest_piecewise.protocol import PADDINGS
from pytest_piecewise.records import Call, Comparison

Outputs = dict[str, torch.Tensor]


@dataclass(slots=True)
class Performance:
    """What came out of a build. `outputs` holds those of the judged calls, state included, on the CPU."""

    outputs: dict[int, Outputs] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Weights and undeclared buffers that calls have changed."""
    plain_calls: int = 0
    graph_calls: int = 0


def perform(build: Build, request: Request, steps: Sequence[Call]) -> Performance:
    """Every call of the protocol, in order, on a build that is prepared."""
    stage = Stage(build, request)
    for call in steps:
        stage.advance(call)
    return stage.finish()


def perform_strided(build: Build, request: Request, steps: Sequence[Call]) -> dict[int, Outputs]:
    """The outputs of calls whose arguments are not contiguous, where the eager module takes such arguments.

    They come last, since a compiled variant may rightly be compiled again for them.
    """
    found: dict[int, Outputs] = {}
    state = state_tensors(request.model, build.module)
    for call in steps:
        if not getattr(build, "takes_strided", False) or not _takes_strided(build, request, call):
            continue
        with request.meter.phase(f"protocol: {call.phase}"):
            outputs = build.run(call)
        found[call.index] = {name: tensor.cpu() for name, tensor in outputs.items()}
        found[call.index] |= {f"state:{name}": as_real(tensor).cpu().clone() for name, tensor in state.items()}
    return found


def _takes_strided(build: Build, request: Request, call: Call) -> bool:
    inputs = strided(make_inputs(request.model, call.size, call.seed, request.dtype, request.device))
    state = state_tensors(request.model, build.module)
    before = _copies(state)
    try:
        with call_context(request.model, call):
            build.module(*inputs)
    except RuntimeError:
        return False
    finally:
        for name, tensor in before.items():
            state[name].copy_(tensor)
    return True


def disturb(build: Build, request: Request, make_second: Callable[[Request], Build], call: Call) -> Comparison:
    """The same call of `build` before and after another build, of other weights, came to life beside it and ran."""
    stage = Stage(build, request)
    before = stage.repeatable(call)
    with request.meter.phase("second build"):
        other = dataclasses.replace(request, seed=request.seed + 1, meter=Meter())
        second = make_second(other)
        try:
            second.prepare()
            second.run(call)
            after = stage.repeatable(call)
        finally:
            second.close()
    return bit_comparison("second_build", build.variant, "the same call with a second build alive", call, before, after)


def keeps_old_weights(build: Build, request: Request, make_second: Callable[[Request], Build], call: Call) -> bool:
    """Whether a module of its own, with the weights and the state that `build` has by now, gives other results in a call:
    then `build` goes on using what it made of weights before they were updated."""
    stage = Stage(build, request)
    before = stage.repeatable(call)
    with request.meter.phase("module of its own"):
        second = make_second(dataclasses.replace(request, meter=Meter()))
        try:
            second.prepare()
            for version in range(1, call.weights + 1):
                update_weights(request.model, second.module, request.seed, version)
            for name, tensor in state_tensors(request.model, second.module).items():
                tensor.copy_(state_tensors(request.model, build.module)[name])
            after = Stage(second, request).repeatable(call)
        finally:
            second.close()
    return not bit_comparison("bits_repeat", build.variant, "a module of its own", call, before, after).ok


class Stage:
    """The build with the state that calls change, and the outputs that a caller would keep."""

    def __init__(self, build: Build, request: Request) -> None:
        self._build, self._request = build, request
        self._state = state_tensors(request.model, build.module)
        self.kept: list[tuple[Call, Outputs, Outputs]] = []
        """Calls with outputs as they were given to the caller, and as they were then."""
        self.done = Performance()
        self._frozen: dict[str, int] | None = None
        self._version = 0

    def _checksums(self) -> dict[str, int]:
        tensors = frozen_tensors(self._request.model, self._build.module)
        return {name: checksum(tensor) for name, tensor in tensors.items()}

    def advance(self, call: Call) -> None:
        """The next call of the protocol, after a weight update if it is the first one behind it."""
        self._frozen = self._checksums() if self._frozen is None else self._frozen
        self.update_weights(call)
        with self._request.meter.phase(f"protocol: {call.phase}"):
            outputs = self.step(call)
        if call.judged:
            self.done.outputs[call.index] = {name: tensor.cpu() for name, tensor in outputs.items()}

    def update_weights(self, call: Call) -> None:
        """Changes the weights in place if the call is the first that wants them otherwise."""
        if call.weights <= self._version:
            return
        self.done.changed += self.changed_since(self._frozen or {})
        self._version = call.weights
        update_weights(self._request.model, self._build.module, self._request.seed, self._version)
        self._frozen = self._checksums()

    def finish(self) -> Performance:
        """What came of all calls."""
        self.done.changed += [name for name in self.changed_since(self._frozen or {}) if name not in self.done.changed]
        self.compare_kept()
        return self.done

    def step(self, call: Call) -> Outputs:
        """One call as the user would make it, then the same call in the ways that owe the same bits."""
        before = self._snapshot()
        outputs = self._run(call)
        if call.phase == "interleaved" and len(self.kept) < 2:
            self.kept.append((call, outputs, _copies(outputs)))
        result = _copies(outputs) | {f"state:{name}": as_real(tensor) for name, tensor in self._snapshot().items()}
        after = self._snapshot()
        for check, against, variation in self._variations(call):
            self._restore(before)
            again = self._run(variation.call, graphs=variation.graphs, prelude=variation.prelude, before=before)
            again |= {f"state:{name}": as_real(tensor) for name, tensor in self._snapshot().items()}
            self.done.comparisons.append(bit_comparison(check, self._build.variant, against, call, result, again))
        self._restore(after)
        return result

    def repeatable(self, call: Call) -> Outputs:
        """The outputs of a call that leaves no trace."""
        before = self._snapshot()
        outputs = _copies(self._build.run(call))
        self._restore(before)
        return outputs

    def _variations(self, call: Call) -> list[tuple[str, str, _Variation]]:
        found = []
        if self._build.graph_kind and call.padded_size:
            found.append(("bits_graphs", "graphs off", _Variation(call, graphs=False)))
            if call.padded_size != call.size:
                full = dataclasses.replace(call, size=call.padded_size, seed=call.seed + 50_021)
                found += [
                    (
                        "padding",
                        f"{padding} padding",
                        _Variation(dataclasses.replace(call, padding=padding), prelude=full),
                    )
                    for padding in (PADDINGS if self._can_poison(call) else ("stale",))
                ]
        if call.phase in ("first", "capture order"):
            found.append(("bits_repeat", "the same call again", _Variation(call)))
        return found

    def _can_poison(self, call: Call) -> bool:
        """Whether NaN can reach padding rows: through a floating-point input, or at the boundaries of pieces."""
        request = self._request
        inputs = make_inputs(request.model, call.size, call.seed, request.dtype, torch.device("cpu"))
        return request.model.context is not None or any(
            isinstance(value, torch.Tensor) and value.is_floating_point() for value in inputs
        )

    def _run(
        self, call: Call, *, graphs: bool = True, prelude: Call | None = None, before: Outputs | None = None
    ) -> Outputs:
        if prelude is not None:  # leaves real-looking rows where the padding of the call will be
            self._run(prelude)
            self._restore(before or {})
        if self._build.graph_kind and graphs and call.padded_size:
            self.done.graph_calls += 1
        else:
            self.done.plain_calls += 1
        return self._build.run(call, graphs=graphs)

    def _snapshot(self) -> Outputs:
        return _copies(self._state)

    def _restore(self, state: Outputs) -> None:
        for name, tensor in state.items():
            self._state[name].copy_(tensor)

    def changed_since(self, frozen: dict[str, int]) -> list[str]:
        """Names of the tensors whose content is no longer what it was."""
        now = self._checksums()
        return [name for name, before in frozen.items() if now[name] != before]

    def compare_kept(self) -> None:
        """Reads again, at the end, what the caller was given in the middle."""
        for call, outputs, copies in self.kept:
            self.done.comparisons.append(
                bit_comparison(
                    "kept_outputs", self._build.variant, "the same output when returned", call, outputs, copies
                )
            )


@dataclass(frozen=True, slots=True)
class _Variation:
    call: Call
    graphs: bool = True
    prelude: Call | None = None


def _copies(tensors: Outputs) -> Outputs:
    return {name: tensor.clone() for name, tensor in tensors.items()}
