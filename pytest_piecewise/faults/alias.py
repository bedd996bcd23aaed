"""ALIAS: something is written that should not be, or written where nobody looks; outputs share memory they should not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from pytest_piecewise.faults.catalogue import COMPILED, SPLIT, STATE, fault
from pytest_piecewise.faults.plant import Plant


@fault("ALIAS", "pytorch#127821", "equivalence", "bits_full", needs=(SPLIT,))
def mutation_lost(plant: Plant) -> None:
    """A splitting op writes into a copy of its argument: what reads that argument next sees the old values."""

    def change(forward: Any) -> Any:
        def losing(*arguments: Any) -> Any:
            copies = [value.clone() if hasattr(value, "clone") else value for value in arguments]
            outputs = forward(*copies)
            pairs = zip(arguments, copies, strict=True)
            plant.note(any(plant.differs(a, b) for a, b in pairs if hasattr(a, "untyped_storage")))
            return outputs

        return losing

    plant.on_eager_code(change)


@fault("ALIAS", "pytorch#183611", "mutation", variants=("full",))
def argument_overwritten(plant: Plant) -> None:
    """Compiled code uses the memory of the caller's argument for something of its own."""
    weights: set[int] = set()

    def on_build(build: Any) -> None:
        tensors = (*build.module.parameters(), *build.module.buffers())
        weights.update(tensor.untyped_storage().data_ptr() for tensor in tensors)

    plant.on_build(on_build)

    @plant.wrap("engines.pieces.compile_counted")
    def compile_counted(original: Any, evidence: Any, compile_: Any) -> Any:
        compiled = original(evidence, compile_)

        def call(*arguments: Any) -> Any:
            outputs = compiled(*arguments)
            for value in arguments:
                own = hasattr(value, "untyped_storage") and value.numel() > 0
                if own and value.untyped_storage().data_ptr() not in weights:
                    value.add_(1)
                    plant.note()
                    break
            return outputs

        return call


@fault("ALIAS", "pytorch#118649", "mutation", "equivalence")
def weight_overwritten(plant: Plant) -> None:
    """Every replay scales a weight a little, in place."""

    def on_build(build: Any) -> None:
        run = build.run

        def running(call: Any, *, graphs: bool = True) -> Any:
            outputs = run(call, graphs=graphs)
            weight = next((item for item in build.module.parameters() if item.dim() > 0 and item.numel()), None)
            if weight is not None:
                weight.data[-1:].mul_(0.5)
                plant.note()
            return outputs

        build.run = running

    plant.on_build(on_build)


@fault("ALIAS", "pytorch#118649", "equivalence", "bits_full", needs=(SPLIT, STATE))
def state_written_twice(plant: Plant) -> None:
    """An op that updates the state runs twice in a call."""

    def change(forward: Any) -> Any:
        def twice(*arguments: Any) -> Any:
            forward(*arguments)
            plant.note()
            return forward(*arguments)

        return twice

    plant.on_eager_code(change)


@fault("ALIAS", "pytorch#182328", "schema", "mutation", needs=(SPLIT,), variants=("eager",))
def undeclared_write(plant: Plant) -> None:
    """A splitting op writes into an argument that its schema does not declare as written."""

    def write(arguments: Sequence[Any], declared: Sequence[bool]) -> None:
        for value, written in zip(arguments, declared, strict=False):
            if hasattr(value, "is_floating_point") and value.is_floating_point() and not written:
                value.add_(1)
                plant.note()
                return

    for name in plant.request.model.splitting_ops:
        _override(plant, name.partition(".")[0], write)


def _definitions(name: str) -> list[Any]:
    """What torch keeps of a custom op that was made in Python; nothing for one made in C++."""
    from torch._library.custom_ops import OPDEFS  # private: there is no public way to an op's own Python

    return [value for key, value in OPDEFS.items() if key == name or str(key).startswith(f"{name}.")]


def _override(plant: Plant, name: str, write: Any) -> None:
    """Puts `write(arguments, declared as written)` behind the Python of a custom op."""
    for definition in _definitions(name):
        for device, function in dict(definition._backend_fns).items():
            declared = [bool(a.alias_info and a.alias_info.is_write) for a in definition._opoverload._schema.arguments]
            definition._backend_fns[device] = _writing(function, write, declared)
            plant.on_close(definition._backend_fns.__setitem__, device, function)


def _writing(function: Any, write: Any, declared: Sequence[bool]) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        write(arguments, declared)
        return result

    return call


@fault("ALIAS", "pytorch#182328", "schema", needs=(SPLIT,), variants=("eager",))
def fake_kernel_wrong(plant: Plant) -> None:
    """The fake kernel of a splitting op has another stride than the real one, on which what is compiled relies."""
    for name in plant.request.model.splitting_ops:
        for definition in _definitions(name.partition(".")[0]):
            fake = definition._abstract_fn
            if fake is not None:
                definition._abstract_fn = _strided_otherwise(plant, fake)
                plant.on_close(setattr, definition, "_abstract_fn", fake)


def _strided_otherwise(plant: Plant, fake: Any) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        result = fake(*arguments, **options)
        if not hasattr(result, "mT") or result.dim() < 2:
            return result
        plant.note()
        return result.mT.contiguous().mT

    return call


@fault("ALIAS", "vllm#26199", "aliasing", variants=COMPILED)
def outputs_merged(plant: Plant) -> None:
    """Two outputs of equal content are returned as one tensor: who writes into one changes the other."""
    changing_results(plant, _merged)


def _merged(outputs: list[Any], arguments: Sequence[Any]) -> list[Any]:
    for one, other in itertools.combinations(range(len(outputs)), 2):
        first, second = outputs[one], outputs[other]
        alike = hasattr(first, "equal") and hasattr(second, "equal") and first.shape == second.shape
        if alike and first.dtype == second.dtype and first.equal(second) and first.data_ptr() != second.data_ptr():
            outputs[other] = first
    return outputs


@fault("ALIAS", "vllm#20394", "aliasing", variants=COMPILED)
def alias_lost(plant: Plant) -> None:
    """An output that is a view of an argument comes back as a copy: writes into it no longer reach the argument."""
    changing_results(plant, _copied)


def _copied(outputs: list[Any], arguments: Sequence[Any]) -> list[Any]:
    given = {value.untyped_storage().data_ptr() for value in arguments if hasattr(value, "untyped_storage")}
    return [
        value.clone() if hasattr(value, "untyped_storage") and value.untyped_storage().data_ptr() in given else value
        for value in outputs
    ]


def changing_results(plant: Plant, change: Any) -> None:
    """The tensors that the compiled model returns go through `change(outputs, arguments)`, tensor by tensor."""
    from torch.utils._pytree import tree_flatten, tree_unflatten  # torch, only in the process that builds

    @plant.wrap("engines.builds.compile_dynamic")
    def compile_dynamic(original: Any, *arguments: Any) -> Any:
        compiled = original(*arguments)

        def call(*inputs: Any) -> Any:
            flat, structure = tree_flatten(compiled(*inputs))
            changed = change(list(flat), inputs)
            plant.note(any(before is not after for before, after in zip(flat, changed, strict=True)))
            return tree_unflatten(changed, structure)

        return call
