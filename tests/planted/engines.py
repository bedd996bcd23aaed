"""Engines with one planted fault each, provided as a user's plugin provides one: through the hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_piecewise.engines import Build, Request
from pytest_piecewise.hooks import hookimpl
from pytest_piecewise.records import Case


class Planted:
    """The native engine with something changed in the process that builds."""

    segmented = True

    def __init__(self, name: str, plant: Callable[[], None]) -> None:
        self.name, self._plant = name, plant

    def unsupported(self, case: Case) -> str | None:
        return None

    def environ(self, case: Case) -> Mapping[str, str]:
        return {}

    def build(self, request: Request) -> Build:
        from pytest_piecewise.engines.native import NativeEngine

        if request.variant != "eager":
            self._plant()
        return NativeEngine().build(request)


def stale_inputs() -> None:
    """Results of eager ops are captured where they lie, instead of being copied to one place."""
    from pytest_piecewise.engines import pieces

    pieces._eager_results = lambda split: {segment.name: {} for segment in split.segments}


def silent_eager() -> None:
    """The backend hands back the graph as it is."""
    from pytest_piecewise.engines import pieces

    pieces.compile_fx = lambda graph, inputs: graph.forward
    pieces.standalone_compile = lambda graph, inputs, **options: graph.forward


def overwritten_outputs() -> None:
    """Outputs of all sizes lie in one place, and the caller is given that instead of a copy."""
    import torch

    from pytest_piecewise import capture
    from pytest_piecewise.engines import builds

    place: dict[tuple[Any, ...], torch.Tensor] = {}
    record = capture._record_cpu

    def recording(function: Any, arguments: Any, frozen: Any) -> Any:
        replay, _, kept = record(function, arguments, frozen)
        own = capture._tensors(kept)
        shared = []
        for position, tensor in enumerate(own):
            flat = place.setdefault((id(function), position), torch.empty(tensor.numel(), dtype=tensor.dtype))
            shared.append(flat[: tensor.numel()].view(tensor.shape).copy_(tensor))

        def replay_there() -> None:
            replay()
            for target, source in zip(shared, own, strict=True):
                target.copy_(source)

        outputs = type(kept)(shared) if isinstance(kept, (tuple, list)) else shared[0]
        return replay_there, outputs, outputs

    capture._record_cpu = recording
    builds.owned = lambda outputs: outputs


def wrong_row() -> None:
    """One row among many is that of its neighbour."""
    from pytest_piecewise.engines import pieces

    compile_counted = pieces.compile_counted

    def compiling(evidence: Any, compile_: Any) -> Any:
        compiled = compile_counted(evidence, compile_)

        def call(*arguments: Any) -> Any:
            outputs = compiled(*arguments)
            for output in outputs if isinstance(outputs, (tuple, list)) else [outputs]:
                if hasattr(output, "shape") and output.dim() == 2 and output.shape[0] == 512:
                    output[300] = output[301]
            return outputs

        return call

    pieces.compile_counted = compiling


def shared_captures() -> None:
    """What a capture has recorded is kept in one table for all builds of the process, by its number in the build."""
    from itertools import cycle

    from pytest_piecewise import capture

    recorded: dict[int, Any] = {}
    numbers = cycle(range(6))  # two pieces at three sizes
    record = capture._record_cpu

    def recording(function: Any, arguments: Any, frozen: Any) -> Any:
        key = next(numbers)
        recorded[key] = arguments
        return record(lambda *_: function(*recorded[key]), arguments, frozen)

    capture._record_cpu = recording


PLANTS = {
    plant.__name__: plant for plant in (stale_inputs, silent_eager, overwritten_outputs, wrong_row, shared_captures)
}


@hookimpl
def piecewise_engine(name: str) -> Planted | None:
    plant = PLANTS.get(name)
    return Planted(name, plant) if plant else None
