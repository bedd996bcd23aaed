"""VACUOUS: the comparison is made, agrees, and would have agreed on anything."""

from __future__ import annotations

from typing import Any

from pytest_piecewise.faults.catalogue import EVERYTHING, fault
from pytest_piecewise.faults.plant import Plant


@fault("VACUOUS", "vllm#10019", "vacuity", variants=EVERYTHING)
def zero_weights(plant: Plant) -> None:
    """All weights are zero."""
    for module in ("builds", "prepare"):

        @plant.wrap(f"engines.{module}.make_module")
        def make_module(original: Any, *arguments: Any) -> Any:
            module = original(*arguments)
            for parameter in module.parameters():
                parameter.data.zero_()
            plant.note()
            return module


@fault("VACUOUS", "vllm#46657", "vacuity", variants=EVERYTHING)
def same_inputs(plant: Plant) -> None:
    """Every call of one size is given the same data."""
    for module in ("builds", "prepare", "static", "lifted", "perform", "tasks"):

        @plant.wrap(f"engines.{module}.make_inputs")
        def make_inputs(original: Any, model: Any, size: int, seed: int, *more: Any) -> Any:
            plant.note()
            return original(model, size, 1, *more)


@fault("VACUOUS", "vllm#54107", "vacuity", variants=EVERYTHING)
def weights_never_updated(plant: Plant) -> None:
    """The step that updates the weights does nothing."""
    for module in ("perform", "lifted"):

        @plant.wrap(f"engines.{module}.update_weights")
        def update_weights(original: Any, *arguments: Any) -> None:
            plant.note()


@fault("VACUOUS", "vllm#40743", "vacuity", variants=EVERYTHING)
def saturated_outputs(plant: Plant) -> None:
    """Outputs are saturated: they are the same whatever comes in."""
    import torch  # only in the process that builds

    for module in ("builds", "prepare"):

        @plant.wrap(f"engines.{module}.make_module")
        def make_module(original: Any, *arguments: Any) -> Any:
            from torch.utils._pytree import tree_map

            module = original(*arguments)
            forward = module.forward

            def saturated(*inputs: Any) -> Any:
                return tree_map(
                    lambda value: (
                        value * 0 + 1 if isinstance(value, torch.Tensor) and value.is_floating_point() else value
                    ),
                    forward(*inputs),
                )

            module.forward = saturated
            plant.note()
            return module
