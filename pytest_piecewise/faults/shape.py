"""SHAPE: code made for one size serves another, or is made again when it should not be."""

from __future__ import annotations

import dataclasses
from typing import Any

from pytest_piecewise.faults.catalogue import BEYOND, COMPILED, SIZE_ONE, SIZES, UNJUDGED, fault
from pytest_piecewise.faults.plant import Plant


def static_sizes(plant: Plant) -> None:
    """The size is never made symbolic, and Dynamo does not make it so by itself."""
    import torch  # only in the process that builds

    @plant.wrap("engines.builds.mark_sizes")
    def mark_sizes(original: Any, *arguments: Any) -> None:
        plant.note()

    plant.set("torch._dynamo.config.automatic_dynamic_shapes", False)
    plant.set("torch._dynamo.config.assume_static_by_default", True)
    plant.set("torch._dynamo.config.recompile_limit", max(64, torch._dynamo.config.recompile_limit))


@fault("SHAPE", "pytorch#161119", "graphs", "recompiles", "build", variants=("full",), needs=(SIZES,), cached=False)
def specialised_size(plant: Plant) -> None:
    """The size is compiled in as a constant: every size is compiled anew."""
    static_sizes(plant)


@fault("SHAPE", "vllm#26199", "equivalence", "build", "captures", needs=(SIZES,), cached=False)
def guards_dropped(plant: Plant) -> None:
    """The size is compiled in as a constant, and the guards that would say so are dropped."""
    static_sizes(plant)

    @plant.wrap("torch.compile")
    def compile_(original: Any, module: Any = None, **options: Any) -> Any:
        drop = {"guard_filter_fn": lambda guards: [False for _ in guards]}
        return original(module, **(options | {"options": drop}))


@fault("SHAPE", "sglang#23428", "graphs", "recompiles", "pieces", variants=COMPILED, needs=(SIZE_ONE,), cached=False)
def size_one_specialised(plant: Plant) -> None:
    """Size 1 is taken for a constant, as by default, and compiled apart when it first comes."""

    @plant.wrap("engines.builds.compiling")
    def compiling(original: Any, model: Any) -> Any:
        plant.note()
        return original(dataclasses.replace(model, dynamic_shapes="backed"))

    @plant.wrap("engines.builds.compile_dynamic")
    def compile_dynamic(original: Any, module: Any, backend: Any, model: Any, evidence: Any) -> Any:
        return original(module, backend, dataclasses.replace(model, dynamic_shapes="backed"), evidence)


@fault("SHAPE", "sglang#13469", "recompiles", "graphs", variants=COMPILED)
def recompiled_after_capture(plant: Plant) -> None:
    """Something that Dynamo guards on, here grad mode, differs in later calls: the model is compiled again."""
    import torch  # only in the process that builds

    def on_build(build: Any) -> None:
        run = build.run

        def running(call: Any, *, graphs: bool = True) -> Any:
            if call.phase != "reverse":
                return run(call, graphs=graphs)
            plant.note()
            with torch.enable_grad():
                return run(call, graphs=graphs)

        build.run = running

    plant.on_build(on_build)


def at_size(plant: Plant, chosen: Any) -> None:
    """Outputs are wrong at the sizes for which `chosen(call)` holds: two features change places."""

    def change(tensor: Any, call: Any) -> Any:
        return tensor.roll(1, -1) if chosen(call) and tensor.dim() else tensor

    plant.on_outputs(change)


@fault("SHAPE", "vllm#57720", "equivalence", needs=(SIZE_ONE, SIZES), variants=COMPILED, engines=("native", "vllm"))
def wrong_at_size_one(plant: Plant) -> None:
    """A broadcast at size 1 goes wrong; every other size is right."""
    at_size(plant, lambda call: call.size == 1)


@fault("SHAPE", "pytorch#186090", "equivalence", needs=(UNJUDGED,), engines=("native", "vllm"))
def wrong_at_unjudged_size(plant: Plant) -> None:
    """Code is wrong at one captured size, with graphs and without, that is not among those judged in every phase."""
    from pytest_piecewise.protocol import judged_sizes

    sizes = plant.request.model.capture_sizes
    hidden = next((size for size in sizes if size not in judged_sizes(tuple(sizes))), 0)
    at_size(plant, lambda call: call.size == hidden)


@fault("SHAPE", "vllm-ascend#16049", "equivalence", needs=(BEYOND,), engines=("native", "vllm"))
def truncated_beyond_captured(plant: Plant) -> None:
    """A call one row larger than the largest graph is run by it all the same, and its last row repeated."""
    largest = plant.request.model.capture_sizes[-1]

    def change(tensor: Any, call: Any) -> Any:
        if call.size != largest + 1 or not tensor.dim() or tensor.shape[0] != call.size:
            return tensor
        changed = tensor.clone()
        changed[-1] = changed[-2]
        return changed

    plant.on_outputs(change)


@fault("SHAPE", "pytorch#136640", "equivalence", variants=COMPILED, engines=("native", "vllm"))
def wrong_shape(plant: Plant) -> None:
    """An output keeps a dimension that it should have lost; its values are right."""
    plant.on_outputs(lambda tensor, call: tensor.unsqueeze(0))
