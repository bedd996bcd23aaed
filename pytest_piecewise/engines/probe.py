"""Is a model usable as declared? Asked at collection, in a child, without building the model three ways."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._library.utils import has_fake_kernel

from pytest_piecewise import hooks
from pytest_piecewise.engines.prepare import make_inputs
from pytest_piecewise.errors import ModelError
from pytest_piecewise.models import Model, find_model
from pytest_piecewise.records import BuildRecord, Case, Settings


def probe(case: Case, settings: Settings) -> BuildRecord:
    """Raises `ModelError` for the first thing that is wrong: an op, an input, a dtype that the device cannot do."""
    model = find_model(case.model, case.file)
    if case.dtype not in model.dtypes:
        raise ModelError(
            f"Model {model.name!r}: expected one of its dtypes {', '.join(model.dtypes)}, found {case.dtype!r}; "
            "add it to dtypes, or ask for another one"
        )
    _check_device(case)
    if not hasattr(hooks.find_engine(case.engine), "tasks"):  # a whole engine registers its ops when it starts
        _check_ops(model)
    _check_inputs(model, getattr(torch, case.dtype))
    return BuildRecord(variant="probe", outcome="ok")


def _check_device(case: Case) -> None:
    dtype = getattr(torch, case.dtype)
    if case.device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError("expected a CUDA device, found none; use --piecewise-device=cpu or auto")
    try:
        square = torch.ones(8, 8, dtype=dtype, device=case.device)
        (square @ square).sum().item()
    except RuntimeError as error:
        raise ModelError(
            f"expected {case.device} to compute in {case.dtype}, found: {error}; use another dtype"
        ) from error


def _check_ops(model: Model) -> None:
    missing = [op for op in model.splitting_ops if not _is_registered(op)]
    if missing:
        # They may be registered by what build() imports; on the meta device that costs no memory.
        with contextlib.suppress(Exception), torch.device("meta"):
            model.build()
        missing = [op for op in model.splitting_ops if not _is_registered(op)]
    if missing:
        raise ModelError(
            f"Model {model.name!r}: expected registered ops in splitting_ops, found no op {', '.join(missing)}; "
            "correct the name, or import the module that registers it where the model is defined"
        )
    if faceless := [op for op in model.splitting_ops if not any(map(has_fake_kernel, _overloads(op)))]:
        raise ModelError(
            f"Model {model.name!r}: expected splitting ops with a fake kernel, from which Dynamo learns what they "
            f"return, found none of {', '.join(faceless)}; register one with "
            f'@torch.library.register_fake("{faceless[0].partition(".")[0]}")'
        )


def _is_registered(op: str) -> bool:
    return bool(_overloads(op))


def _overloads(op: str) -> list[torch._ops.OpOverload]:
    """The overloads that a name stands for: all of a packet, or the one that it names; none if there is no such op."""
    namespace, _, name = op.partition("::")
    packet, _, overload = name.partition(".")
    found: Any = getattr(getattr(torch.ops, namespace), packet, None)
    names = [] if found is None else found.overloads()
    return [getattr(found, known) for known in names if overload in ("", known)]


def _check_inputs(model: Model, dtype: torch.dtype) -> None:
    sizes = sorted({model.capture_sizes[0], model.capture_sizes[-1], model.largest})
    cpu = torch.device("cpu")
    carrying: set[int] | None = None
    for size in sizes:
        first, second = (make_inputs(model, size, 7, dtype, cpu) for _ in range(2))
        if not all(_equal(a, b) for a, b in zip(first, second, strict=True)):
            raise ModelError(
                f"Model {model.name!r}: expected inputs() to give the same tensors for the same generator state, found two "
                f"calls at size {size} that differ; draw everything random from the generator that is passed in"
            )
        shapes = {i: tuple(a.shape) for i, a in enumerate(first) if isinstance(a, torch.Tensor)}
        if model.dynamic is not None:
            for index, dimension in model.dynamic.items():
                if index not in shapes or len(shapes[index]) <= dimension or shapes[index][dimension] != size:
                    raise ModelError(
                        f"Model {model.name!r}: dynamic says that dimension {dimension} of argument {index} is the size, "
                        f"found shape {shapes.get(index)} at size {size}; correct `dynamic` or `inputs`"
                    )
        here = {index for index, shape in shapes.items() if shape and shape[0] == size}
        carrying = here if carrying is None else carrying & here
    if model.dynamic is None and not carrying:
        raise ModelError(
            f"Model {model.name!r}: expected the leading dimension of some input to be the size, found none at sizes "
            f"{sizes}; let inputs() follow its first argument, or say where the size is with dynamic={{argument: dimension}}"
        )


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and torch.equal(first.nan_to_num(), second.nan_to_num())
    return bool(first == second)
