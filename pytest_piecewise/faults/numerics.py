"""NUM: values are a little wrong, or wrong in few places, or other ones every time."""

from __future__ import annotations

import itertools
from typing import Any

from pytest_piecewise.faults.catalogue import COMPILED, FLOAT32, fault
from pytest_piecewise.faults.plant import Plant

ANY_ENGINE = ("native", "vllm")


@fault("NUM", "pytorch#168126", "equivalence", variants=COMPILED, engines=ANY_ENGINE, needs=(FLOAT32,))
def rounded_to_bfloat16(plant: Plant) -> None:
    """Results pass through bfloat16 where float32 was asked for."""
    import torch  # only in the process that builds

    plant.on_outputs(lambda tensor, call: tensor.to(torch.bfloat16).to(tensor.dtype))


def rounding_products(plant: Plant, left: Any, right: Any) -> None:
    """Matrix products of compiled code get their operands through `left` and `right` first."""
    for name in ("mm", "addmm", "bmm"):

        @plant.wrap(f"torch._inductor.select_algorithm.extern_kernels.{name}")
        def product(original: Any, *operands: Any, name: str = name, **options: Any) -> Any:
            first = 1 if name == "addmm" else 0
            a, b = operands[first], operands[first + 1]
            rounded = (left(a), right(b))
            plant.note(plant.differs(a, rounded[0]) or plant.differs(b, rounded[1]))
            return original(*operands[:first], *rounded, *operands[first + 2 :], **options)


@fault("NUM", "pytorch#187947", "equivalence", variants=COMPILED, engines=ANY_ENGINE, needs=(FLOAT32,))
def products_in_tf32(plant: Plant) -> None:
    """Compiled matrix products use ten bits of mantissa, as TF32 does; eager's use all."""
    import torch  # only in the process that builds

    def tf32(value: Any) -> Any:
        if value.dtype != torch.float32:
            return value
        return ((value.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)

    rounding_products(plant, tf32, tf32)


@fault("NUM", "intel/torch-xpu-ops#4291", "equivalence", variants=COMPILED, engines=ANY_ENGINE)
def products_in_low_precision(plant: Plant) -> None:
    """Compiled matrix products take their operands rounded to half of the mantissa bits of the model's dtype."""
    import torch  # only in the process that builds

    def halved(value: Any) -> Any:
        if value.dtype not in (torch.float32, torch.bfloat16):
            return value
        exact = value.double()
        exponent = exact.abs().clamp_min(1e-300).log2().floor()
        step = torch.exp2(exponent - (12 if value.dtype == torch.float32 else 4))
        return ((exact / step).round() * step).to(value.dtype)

    rounding_products(plant, halved, halved)


@fault("NUM", "TensorRT-LLM#6485", "exact", "answer", "equivalence", variants=COMPILED, engines=ANY_ENGINE)
def integer_off_by_one(plant: Plant) -> None:
    """A rounding that is lost before a comparison: an integer output differs by one in one place."""

    def on_build(build: Any) -> None:
        run = build.run

        def running(call: Any, *, graphs: bool = True) -> Any:
            outputs = dict(run(call, graphs=graphs))
            for name, tensor in outputs.items():
                if not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel():
                    changed = tensor.clone().reshape(-1)
                    changed[-1] = ~changed[-1] if str(tensor.dtype) == "torch.bool" else changed[-1] ^ 1
                    outputs[name] = changed.view(tensor.shape)
                    plant.note()
            return outputs

        build.run = running

    plant.on_build(on_build)


@fault("NUM", "vllm#27775", "equivalence", variants=COMPILED, engines=ANY_ENGINE)
def rows_shifted(plant: Plant) -> None:
    """Every row is that of its neighbour: off by one."""
    plant.on_outputs(
        lambda tensor, call: tensor.roll(1, 0) if tensor.dim() and tensor.shape[0] == call.size else tensor
    )


@fault("NUM", "sglang#32555", "equivalence", variants=COMPILED, engines=ANY_ENGINE)
def one_row_wrong(plant: Plant) -> None:
    """One row of the largest call is that of its neighbour."""
    largest = plant.request.model.largest

    def change(tensor: Any, call: Any) -> Any:
        if call.size != largest or not tensor.dim() or tensor.shape[0] != call.size or call.size < 2:
            return tensor
        changed = tensor.clone()
        changed[call.size // 2] = changed[call.size // 2 - 1]
        return changed

    plant.on_outputs(change)


def one_element(plant: Plant, change_element: Any) -> None:
    """One element of each floating-point output goes through `change_element`: the one nearest to what is typical."""

    def change(tensor: Any, call: Any) -> Any:
        if not tensor.numel():
            return tensor
        changed = tensor.clone().reshape(-1)
        typical = changed.double().square().nanmean().sqrt()
        index = int((changed.double().abs() - typical).abs().nan_to_num(1e300, 1e300, 1e300).argmin())
        changed[index] = change_element(changed[index])
        return changed.view(tensor.shape)

    plant.on_outputs(change)


@fault("NUM", "vllm#27178", "equivalence", variants=COMPILED, engines=ANY_ENGINE)
def one_element_lost(plant: Plant) -> None:
    """One element among all is 0."""
    one_element(plant, lambda value: value * 0)


@fault("NUM", "pytorch#168186", "equivalence", variants=COMPILED, engines=ANY_ENGINE)
def one_element_off(plant: Plant) -> None:
    """One element among all is off by half of itself."""
    one_element(plant, lambda value: value * 1.5)


@fault("NUM", "pytorch#178084", "equivalence", variants=COMPILED, engines=ANY_ENGINE)
def nan_hidden(plant: Plant) -> None:
    """What is NaN or infinite in eager is an ordinary number."""
    plant.on_outputs(lambda tensor, call: tensor.nan_to_num())


@fault("NUM", "pytorch#178084", "equivalence", variants=COMPILED, engines=ANY_ENGINE)
def nan_made(plant: Plant) -> None:
    """One element is NaN that is a number in eager."""
    one_element(plant, lambda value: value * float("nan"))


@fault("NUM", "pytorch#136181", "equivalence", variants=COMPILED, engines=ANY_ENGINE)
def scale_off(plant: Plant) -> None:
    """Everything is too large by one part in a thousand: a constant that is not quite right."""
    plant.on_outputs(lambda tensor, call: tensor * 1.001)


@fault("NUM", "pytorch#159239", "equivalence", "answer", "exact", variants=COMPILED, needs=(FLOAT32,), cached=False)
def epsilon_changed(plant: Plant) -> None:
    """A small constant of the graph, as the epsilon of a norm, is ten times too large."""

    @plant.wrap("engines.builds.compile_dynamic")
    def compile_dynamic(original: Any, module: Any, backend: Any, *more: Any) -> Any:
        def changed(graph_module: Any, inputs: Any) -> Any:
            for node in graph_module.graph.nodes:
                node.args = tuple(_larger(plant, value) for value in node.args)
                node.kwargs = {name: _larger(plant, value) for name, value in node.kwargs.items()}
            graph_module.recompile()
            return backend(graph_module, inputs)

        return original(module, changed, *more)


def _larger(plant: Plant, value: Any) -> Any:
    small = isinstance(value, float) and 0 < abs(value) < 1e-3
    plant.note(small)
    return value * 10 if small else value


@fault("NUM", "vllm#57365", "equivalence", variants=COMPILED, engines=ANY_ENGINE)
def small_beside_outlier(plant: Plant) -> None:
    """In rows with one element thirty times larger than the rest, a small one is off by half of itself."""

    def change(tensor: Any, call: Any) -> Any:
        if tensor.dim() < 2 or tensor.shape[-1] < 4 or not tensor.isfinite().all():
            return tensor
        size = tensor.double().abs()
        ordered = size.sort(-1).values
        rows = ordered[..., -1] > 30 * ordered[..., -2].clamp_min(1e-30)
        if not bool(rows.any()):
            return tensor
        index = (size - ordered[..., -2:-1]).abs().argmin(-1, keepdim=True)
        factor = tensor.new_ones(tensor.shape).scatter(-1, index, 1.5)
        return (tensor * factor.where(rows.unsqueeze(-1), tensor.new_ones(()))).to(tensor.dtype)

    plant.on_outputs(change)


@fault("NUM", "pytorch#99949", "bits_repeat", "bits_graphs", engines=ANY_ENGINE)
def not_deterministic(plant: Plant) -> None:
    """A reduction is summed in another order each time: every other call differs in its last bits."""
    import torch  # only in the process that builds

    numbers = itertools.count()

    def change(tensor: Any, call: Any) -> Any:
        away = torch.full_like(tensor, float("inf"))
        return tensor if next(numbers) % 2 else torch.nextafter(tensor, away)

    plant.on_outputs(change)


@fault("NUM", "pytorch#141645", "randomness", variants=COMPILED)
def random_state_shared(plant: Plant) -> None:
    """A call draws from the caller's random numbers, which eager does not."""
    import torch  # only in the process that builds

    @plant.wrap("engines.builds.compile_dynamic")
    def compile_dynamic(original: Any, *arguments: Any) -> Any:
        compiled = original(*arguments)

        def call(*inputs: Any) -> Any:
            torch.rand(1, device=plant.request.device)
            plant.note()
            return compiled(*inputs)

        return call
