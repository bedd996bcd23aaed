"""POOL: memory that a captured graph still uses is given to somebody else."""

from __future__ import annotations

import itertools
from typing import Any

from pytest_piecewise.faults.catalogue import FRESH, PIECES, SIZES, fault
from pytest_piecewise.faults.plant import Plant


@fault("POOL", "pytorch#170604", "kept_outputs", "bits_repeat", engines=("native", "vllm"))
def outputs_not_copied(plant: Plant) -> None:
    """The caller is given the memory of a graph instead of a copy, and the next replay writes it."""

    def without_copies(outputs: dict[str, Any]) -> dict[str, Any]:
        plant.note()
        return outputs

    plant.set("engines.builds.owned", without_copies)  # from where vLLM's builds take it when they are imported


@fault("POOL", "sglang#37606", "kept_outputs", "bits_graphs", "equivalence", needs=(SIZES,))
def outputs_of_sizes_shared(plant: Plant) -> None:
    """The outputs of all sizes lie in one block, and the caller is given that: a later size writes over an earlier one's."""
    outputs_not_copied.plant(plant)
    blocks: dict[tuple[str, int], Any] = {}

    @plant.wrap("capture.StaticGraph.replay")
    def replay(original: Any, graph: Any, arguments: Any) -> Any:
        outputs, moved = original(graph, arguments)
        piece = graph._names[0].partition(",")[0]
        shared = []
        for position, tensor in enumerate(outputs if isinstance(outputs, (tuple, list)) else [outputs]):
            if not hasattr(tensor, "untyped_storage") or not tensor.is_contiguous():
                shared.append(tensor)
                continue
            block = blocks.get((piece, position))
            if block is None or block.numel() < tensor.numel() or block.dtype != tensor.dtype:
                block = blocks[piece, position] = tensor.new_empty(tensor.numel())
            shared.append(block[: tensor.numel()].view(tensor.shape).copy_(tensor))
            plant.note()
        return (type(outputs)(shared) if isinstance(outputs, (tuple, list)) else shared[0]), moved


@fault("POOL", "vllm#10048", "bits_graphs", "equivalence", needs=(PIECES,))
def boundary_released(plant: Plant) -> None:
    """Tensors between pieces are only weakly held while the rest is captured: their blocks are used by later pieces."""
    if plant.on_cuda:

        @plant.wrap("capture.GraphPool._record_cuda")
        def record_cuda(original: Any, pool: Any, function: Any, arguments: Any) -> Any:
            replay, _, kept = original(pool, function, arguments)
            plant.note()
            return replay, kept, kept  # what this run returned dies here, and its blocks are free

        return
    blocks: set[int] = set()

    @plant.wrap("capture.StaticGraph.replay")
    def replay(original: Any, graph: Any, arguments: Any) -> Any:
        own = [tensor for tensor in _tensors(graph._outputs) if tensor.is_floating_point() and tensor.numel()]
        boundary = [value for value in _tensors(arguments) if value.untyped_storage().data_ptr() in blocks]
        if own and boundary:
            _overwrite(plant, boundary[-1], own[0])
        blocks.update(tensor.untyped_storage().data_ptr() for tensor in own)
        return original(graph, arguments)


def _tensors(values: Any) -> list[Any]:
    flat = values if isinstance(values, (tuple, list)) else [values]
    return [value for value in flat if hasattr(value, "untyped_storage")]


def _overwrite(plant: Plant, block: Any, foreign: Any) -> None:
    """Writes what a piece computes into a block of an earlier one that it has yet to read."""
    before = block.clone()
    repeats = -(-block.numel() // foreign.numel())
    block.copy_(foreign.reshape(-1).repeat(repeats)[: block.numel()].view(block.shape))
    plant.note(plant.differs(before, block))


@fault("POOL", "flashinfer#4553", "bits_graphs", "equivalence", needs=(FRESH,))
def workspace_resized(plant: Plant) -> None:
    """A buffer that captured graphs read is allocated anew after capture, and filled there."""
    seen: dict[int, Any] = {}

    @plant.wrap("capture.StaticGraph.replay")
    def replay(original: Any, graph: Any, arguments: Any) -> Any:
        if id(graph) not in seen:
            seen[id(graph)] = graph
            graph._copied = {index: buffer.clone() for index, buffer in graph._copied.items()}
        plant.note(bool(graph._copied))
        return original(graph, arguments)


@fault("POOL", "TensorRT-LLM#16591", "second_build")
def captures_shared_by_builds(plant: Plant) -> None:
    """What a capture recorded is kept in one table for all builds of the process: a second build replaces the first's."""
    recorded: dict[int, Any] = {}
    numbers = [itertools.count()]

    @plant.wrap("capture.GraphPool.__init__")
    def init(original: Any, pool: Any, *arguments: Any, **options: Any) -> None:
        original(pool, *arguments, **options)
        numbers[0] = itertools.count()

    @plant.wrap("capture.GraphPool.record")
    def record(original: Any, pool: Any, function: Any, arguments: Any, frozen: Any) -> Any:
        number = next(numbers[0])
        plant.note(number in recorded)
        replay, outputs, kept = original(pool, function, arguments, frozen)
        recorded[number] = (replay, outputs)  # and what it wrote stays alive, as in the pool that it has left behind

        def replay_what_is_there() -> None:
            recorded[number][0]()
            if recorded[number][1] is not outputs:
                _copy_all(recorded[number][1], kept)

        return replay_what_is_there, outputs, kept


def _copy_all(source: Any, target: Any) -> None:
    pairs = zip(source, target, strict=True) if isinstance(source, (tuple, list)) else [(source, target)]
    for one, other in pairs:
        if hasattr(one, "copy_") and one.shape == other.shape and one.data_ptr() != other.data_ptr():
            other.copy_(one)


@fault("POOL", "ROCm/aiter#5393", "bits_graphs", "equivalence", needs=(SIZES,))
def workspace_of_first_graph(plant: Plant) -> None:
    """Every size but the first captured one writes its results into a workspace that its readers do not know of."""
    first: list[Any] = []

    @plant.wrap("capture.GraphPool.record")
    def record(original: Any, pool: Any, function: Any, arguments: Any, frozen: Any) -> Any:
        replay, outputs, kept = original(pool, function, arguments, frozen)
        first[:] = first or [plant.call.size if plant.call else 0]
        if plant.call is not None and plant.call.size != first[0]:
            plant.note()
            stale = [(tensor, tensor.clone()) for tensor in _tensors(kept)]

            def replay_elsewhere() -> None:
                replay()
                for tensor, old in stale:
                    tensor.copy_(old)

            return replay_elsewhere, outputs, kept
        return replay, outputs, kept

    plant.follow_calls()
