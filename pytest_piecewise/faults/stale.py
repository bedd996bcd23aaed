"""STALE: a captured graph, or the host code round it, goes on with what was true at capture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pytest_piecewise.faults.catalogue import CONTEXT, FRESH, SPLIT, fault
from pytest_piecewise.faults.plant import Plant


@fault("STALE", "vllm#53915", "addresses", "bits_graphs", needs=(FRESH,))
def stale_input(plant: Plant) -> None:
    """The result of an eager op is captured where it lies, instead of being copied to one place before each replay."""

    @plant.wrap("engines.pieces._eager_results")
    def eager_results(original: Any, split: Any) -> Any:
        found = original(split)
        plant.note(any(found.values()))
        return {segment: {} for segment in found}


@fault("STALE", "sglang#26019", "equivalence")
def stale_argument(plant: Plant) -> None:
    """After capture the model's first argument is no longer copied into its static buffer."""
    plant.follow_calls()
    captured: list[bool] = []

    @plant.wrap("engines.static._fill")
    def fill(original: Any, static: Any, value: Any, dimension: Any, call: Any) -> None:
        captured.append(plant.mode == "capture")
        if any(captured) and call.index >= 0 and dimension is not None:
            plant.note(plant.differs(static.narrow(dimension, 0, call.size), value))
            return
        original(static, value, dimension, call)


@fault("STALE", "TensorRT-LLM#13354", "addresses", "bits_graphs")
def moved_argument(plant: Plant) -> None:
    """Replays are given their arguments at new addresses, and read the old ones."""

    @plant.wrap("engines.static.StaticInputs.place")
    def place(original: Any, inputs: Any, call: Any) -> Any:
        placed = original(inputs, call)
        if call.index < 0:
            return placed
        moved = tuple(value.clone() if hasattr(value, "clone") else value for value in placed)
        for old in placed:
            if hasattr(old, "clone"):
                old.zero_()
        plant.note()
        inputs._held[call.padded_size or call.size] = moved
        return moved


def rebinding(plant: Plant, concerns: Callable[[Any], bool]) -> None:
    """The weight update gives some tensors new memory, instead of writing into the old."""

    @plant.wrap("engines.perform.update_weights")
    def update_weights(original: Any, model: Any, module: Any, *which: int) -> None:
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point() and concerns(tensor):
                tensor.data = tensor.data.clone()
                plant.note()
        original(model, module, *which)


@fault("STALE", "vllm#48941", "addresses", "bits_graphs")
def rebound_weights(plant: Plant) -> None:
    """A weight update gives the matrices new memory; graphs go on reading the old."""
    rebinding(plant, lambda tensor: tensor.dim() > 1)


@fault("STALE", "vllm#48312", "addresses", "bits_graphs")
def rebound_vectors(plant: Plant) -> None:
    """A weight update gives vectors and scalars new memory, as code that runs after loading does; matrices stay."""
    rebinding(plant, lambda tensor: tensor.dim() < 2)


def private_copies(plant: Plant, concerns: Callable[[Any], bool]) -> None:
    """Captured graphs read copies, made at capture, of some weights: no address that anybody audits has moved."""
    weights: set[int] = set()
    alive: list[Any] = []  # what a CUDA graph reads must not be given to anybody else

    @plant.wrap("engines.builds.weight_storages")
    def weight_storages(original: Any, module: Any) -> Any:
        found = original(module)
        weights.update(found)
        return found

    @plant.wrap("capture.GraphPool.record")
    def record(original: Any, pool: Any, function: Any, arguments: Any, frozen: Any) -> Any:
        own = []
        for value in arguments:
            taken = hasattr(value, "untyped_storage") and value.untyped_storage().data_ptr() in weights
            taken = taken and concerns(value)
            plant.note(taken)
            own.append(value.clone() if taken else value)
        alive.append(own)
        return original(pool, function, own, frozen)


@fault("STALE", "vllm-ascend#13902", "bits_graphs", "equivalence")
def copied_matrices(plant: Plant) -> None:
    """Captured graphs read private, transformed copies of the weight matrices, which no update reaches."""
    private_copies(plant, lambda tensor: tensor.dim() > 1 and tensor.is_floating_point())


@fault("STALE", "NVIDIA-NeMo/RL#2895", "bits_graphs", "equivalence")
def copied_vectors(plant: Plant) -> None:
    """Captured graphs read private copies of the vectors among weights and buffers, such as norms and biases."""
    private_copies(plant, lambda tensor: tensor.dim() == 1 and tensor.is_floating_point())


@fault("STALE", "vllm#48312", "bits_graphs", "equivalence")
def copied_scalars(plant: Plant) -> None:
    """Captured graphs read private copies of the scalars among weights and buffers, such as quantisation scales."""
    private_copies(plant, lambda tensor: tensor.dim() == 0 and tensor.is_floating_point())


@fault("STALE", "vllm#48312", "bits_graphs", "equivalence")
def copied_integers(plant: Plant) -> None:
    """Captured graphs read private copies of integer buffers, such as index tables and masks."""
    private_copies(plant, lambda tensor: not tensor.is_floating_point())


@fault("STALE", "vllm#44868", "bits_graphs", "equivalence", needs=(CONTEXT, SPLIT))
def stale_metadata(plant: Plant) -> None:
    """Replays run with the metadata of the capture: the eager ops between graphs see the rows of another call."""
    plant.follow_calls()

    @plant.wrap("engines.builds.call_context")
    def call_context(original: Any, model: Any, call: Any) -> Any:
        if plant.mode != "replay" or call.index < 0:
            return original(model, call)
        from pytest_piecewise.engines.builds import dummy_call  # torch, only in the process that builds

        plant.note()
        return original(model, dataclasses.replace(dummy_call(call.padded_size), index=call.index))


@fault("STALE", "pytorch#114844", "bits_graphs", "equivalence", needs=(SPLIT,))
def host_code_frozen(plant: Plant) -> None:
    """The Python between two graphs does not run at replay: the results of its last run are used again."""
    plant.follow_calls()

    def change(forward: Any) -> Any:
        kept: dict[int, Any] = {}

        def remembering(*arguments: Any) -> Any:
            rows = plant.call.padded_size if plant.call else 0
            if plant.mode == "replay" and rows in kept:
                plant.note()
                return kept[rows]
            kept[rows] = forward(*arguments)
            return kept[rows]

        return remembering

    plant.on_eager_code(change)
