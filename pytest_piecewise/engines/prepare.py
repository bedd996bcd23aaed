"""What every engine needs before it builds: pinned numerics, the module, the inputs of a call, outputs by name."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from pytest_piecewise.errors import ModelError
from pytest_piecewise.models import Model
from pytest_piecewise.records import Call

UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Largest relative error of rounding to a dtype: half its epsilon."""

PINNED_INDUCTOR = {
    "max_autotune": False,
    "max_autotune_gemm": False,
    "coordinate_descent_tuning": False,
    "fallback_random": True,
}


@contextmanager
def pinned_numerics(threads: int, device: torch.device) -> Iterator[None]:
    """Pins what can change results or generated code from run to run: threads, TF32, reduced-precision sums, autotuning,
    the aliasing check that torch otherwise makes an error only where `CI` is set. Restored on the way out."""
    import torch._functorch.config as functorch_config  # noqa: PLC0415 - heavy, and private
    import torch._inductor.config as inductor_config  # noqa: PLC0415

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    flags = [
        (matmul, "allow_tf32", False),
        (matmul, "allow_bf16_reduced_precision_reduction", False),
        (matmul, "allow_fp16_reduced_precision_reduction", False),
        (cudnn, "allow_tf32", False),
        (cudnn, "benchmark", False),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in flags]
    threads_before = torch.get_num_threads()
    # CPU code is compiled in this process, so that its CPU seconds can be counted; Triton's kernels are compiled aside.
    workers = os.cpu_count() or 1 if device.type == "cuda" else 1
    with ExitStack() as stack:
        stack.enter_context(inductor_config.patch(PINNED_INDUCTOR | {"compile_threads": workers}))
        stack.enter_context(functorch_config.patch(error_on_custom_op_aliasing=True))
        stack.enter_context(torch.no_grad())
        try:
            for owner, name, value in flags:
                setattr(owner, name, value)
            torch.set_num_threads(threads)
            yield
        finally:
            torch.set_num_threads(threads_before)
            for owner, name, value in before:
                setattr(owner, name, value)


def limit_gpu_memory(device: str, budget: int) -> None:
    """Lets this process allocate no more than `budget` bytes of its GPU, if it was given some: beyond that the build that
    asks runs out of memory, and none of those that share the GPU with it."""
    if budget and device.startswith("cuda"):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total))


def make_module(model: Model, dtype: torch.dtype, device: torch.device, seed: int, *arguments: Any) -> nn.Module:
    """The module of a build: the same weights for the same seed, floating-point tensors in `dtype`, in eval mode. Complex
    ones keep their dtype, and with it their imaginary part, which `Module.to(dtype)` would drop.

    `arguments` are what the engine gives to `Model.build`.
    """
    torch.manual_seed(seed)
    module = model.build(*arguments)
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"Model {model.name!r}: expected build() to return an nn.Module, found {type(module).__name__}"
        )
    module.to(device)._apply(
        lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor
    )  # as `float` does
    return module.eval().requires_grad_(False)


def make_inputs(model: Model, size: int, seed: int, dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    """The arguments of one call at `size` rows. Floating-point tensors are cast to `dtype`."""
    arguments = model.inputs(size, torch.Generator().manual_seed(seed))
    if not isinstance(arguments, tuple):
        raise ModelError(f"Model {model.name!r}: expected inputs() to return a tuple, found {type(arguments).__name__}")
    return tuple(_place(argument, dtype, device) for argument in arguments)


def _place(argument: Any, dtype: torch.dtype, device: torch.device) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.to(device=device, dtype=dtype if argument.is_floating_point() else argument.dtype)


def strided(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same values in tensors that are not contiguous: every other column, or row of a vector, of larger ones."""
    return tuple(
        value.repeat_interleave(2, -1)[..., ::2] if isinstance(value, torch.Tensor) and value.dim() else value
        for value in arguments
    )


def sized_inputs(model: Model, arguments: tuple[Any, ...], size: int) -> dict[int, int]:
    """`{argument index: dimension}` of the arguments that carry the size, declared or found."""
    if model.dynamic is not None:
        return dict(model.dynamic)
    sizes = (model.capture_sizes[0], model.capture_sizes[-1], model.largest)
    other = next((known for known in sizes if known != size), size)
    others = model.inputs(other, torch.Generator().manual_seed(0))
    return {
        index: 0
        for index, (argument, again) in enumerate(zip(arguments, others, strict=True))
        if isinstance(argument, torch.Tensor)
        and argument.dim()
        and (argument.shape[0], again.shape[0]) == (size, other)
    }


def call_context(model: Model, call: Call) -> Any:
    """The context manager that sets the metadata of one call."""
    return model.context(call) if model.context is not None else nullcontext()


def state_tensors(model: Model, module: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that a call may change, by name. A pattern that matches none is an error."""
    buffers = dict(module.named_buffers())
    found: dict[str, torch.Tensor] = {}
    for pattern in model.state:
        names = fnmatch.filter(buffers, pattern)
        if not names:
            raise ModelError(
                f"Model {model.name!r}: state pattern {pattern!r} matches no buffer; "
                f"expected one of {', '.join(sorted(buffers)) or 'none, as the module has no buffers'}"
            )
        found.update((name, buffers[name]) for name in names)
    return found


def frozen_tensors(model: Model, module: nn.Module) -> dict[str, torch.Tensor]:
    """Weights and the buffers that no call may change."""
    state = state_tensors(model, module)
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: tensor for name, tensor in tensors.items() if name not in state}


def is_weightless(model: Model, module: nn.Module) -> bool:
    """Whether results cannot follow weights, since there are none; tensors that are only attributes count as such."""
    tensors = [*frozen_tensors(model, module).values()]
    tensors += [value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Tensor)]
    return not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)


def weight_storages(module: nn.Module) -> frozenset[int]:
    """Addresses of the storages of all weights and buffers."""
    tensors = (*module.parameters(), *module.buffers())
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)


def checksum(tensor: torch.Tensor) -> int:
    """A sum over the bytes that any single change alters; computed on the tensor's own device."""
    tensor = as_real(tensor)
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.detach().contiguous().reshape(-1).view(width).to(torch.int64)
    weights = torch.arange(1, bits.numel() + 1, device=bits.device) % 8191 + 1
    return int((bits * weights).sum())


def update_weights(model: Model, module: nn.Module, seed: int, version: int) -> None:
    """Changes weights and buffers that are no state, in place: addresses stay, and results must follow.

    Version 1 scales the rows of every floating-point one by factors between 0.5 and 1. Version 2 rolls those others by one
    row that may be: masks, and index tables that hold each index once. Offsets or counts would be wrong in other places.
    """
    generator = torch.Generator().manual_seed(seed)
    seen: set[int] = set()
    for tensor in frozen_tensors(model, module).values():
        if tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())  # tied weights are changed once
        if version == 2 and (is_mask(tensor) or is_permutation(tensor)):
            tensor.data.copy_(tensor.roll(1, 0))
        if version == 2 or not tensor.is_floating_point() or _overlaps_itself(tensor):
            continue
        rows = 0.5 + 0.5 * torch.rand(tensor.shape[0] if tensor.dim() else 1, generator=generator)
        factors = rows.reshape(-1, *[1] * (tensor.dim() - 1)) if tensor.dim() else rows[0]
        tensor.data.mul_(factors.to(device=tensor.device, dtype=tensor.dtype))


def is_mask(tensor: torch.Tensor) -> bool:
    """Whether a buffer is a boolean with rows."""
    return tensor.dtype is torch.bool and tensor.dim() > 0


def is_permutation(tensor: torch.Tensor) -> bool:
    """Whether a vector holds each of 0, 1, ... once, as tables of positions, orders and experts do."""
    if tensor.dim() != 1 or tensor.is_complex() or tensor.dtype is torch.bool or tensor.numel() < 2:
        return False
    return torch.equal(tensor.sort().values, torch.arange(tensor.numel(), device=tensor.device).to(tensor.dtype))


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, as those of an expanded tensor do: scaling one would scale the others."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as a last dimension of two, so that they round like others; any other tensor as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def flatten(outputs: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors of a model's result by name: `output` for a single one, else the path of keys and positions.

    Python numbers count as tensors. `None` is left out. Anything else is an error.
    """
    if isinstance(outputs, torch.Tensor):
        return {prefix or "output": as_real(outputs)}
    if isinstance(outputs, (bool, int, float)):
        return {prefix or "output": torch.tensor(outputs)}
    if outputs is None:
        return {}
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, Mapping):
        items: Any = ((field.name, getattr(outputs, field.name)) for field in dataclasses.fields(outputs))
    elif isinstance(outputs, Mapping):
        items = outputs.items()
    elif isinstance(outputs, (tuple, list)):
        items = enumerate(outputs)
    else:
        raise ModelError(
            f"expected tensors, numbers, tuples, lists, dicts or dataclasses as outputs, found {type(outputs).__name__} "
            f"at {prefix or 'the top'}; return the tensors that matter"
        )
    found: dict[str, torch.Tensor] = {}
    for key, value in items:
        found.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return found
