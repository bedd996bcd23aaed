"""Do custom ops what their schema says? `torch.library.opcheck` on every one of them, on arguments of a real call."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from pytest_piecewise.engines import Build, Request, describe
from pytest_piecewise.engines.prepare import call_context, make_inputs
from pytest_piecewise.findings import finding
from pytest_piecewise.protocol import calls
from pytest_piecewise.records import Finding, Status
from pytest_piecewise.split import is_builtin

TESTS = ("test_schema", "test_faketensor")
"""Of opcheck's tests those that concern inference: undeclared mutation or aliasing, and a wrong fake kernel."""


class _Recorder(TorchDispatchMode):
    """Keeps the arguments of the first call of every custom op."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[str, tuple[Any, Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if not is_builtin(name) and name not in self.found:
            self.found[name] = (func, *tree_map(_copy, (args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def schema_findings(build: Build, request: Request) -> list[Finding]:
    """One finding for all custom ops of the eager model; a SKIP if it has none."""
    model = request.model
    call = calls(model, request.seed)[0]
    inputs = make_inputs(model, call.size, call.seed, request.dtype, request.device)
    recorder = _Recorder()
    with call_context(model, call):
        state = {name: tensor.clone() for name, tensor in build.module.named_buffers()}
        with recorder:
            build.module(*inputs)
        for name, tensor in build.module.named_buffers():
            tensor.copy_(state[name])
        problems = [
            f"{name}: {describe(problem)}"
            for name, (op, args, kwargs) in recorder.found.items()
            if (problem := _opcheck(op, args, kwargs))
        ]
    if not recorder.found:
        return [Finding(check="schema", status=Status.SKIP, variant="eager", summary="the model calls no custom op")]
    summary = f"{len(recorder.found)} custom op(s) checked by torch.library.opcheck"
    if problems:
        summary = f"{summary}; {problems[0]}"
    action = "declare what the op writes in mutates_args, return no alias of an input, make the fake kernel agree"
    return [finding("schema", "eager", not problems, summary, problems, action)]


def _opcheck(op: Any, args: Any, kwargs: Any) -> Exception | None:
    try:
        torch.library.opcheck(op, args, kwargs, test_utils=TESTS)
    except Exception as error:  # noqa: BLE001 - opcheck reports by raising whatever the failed test raised
        return error
    return None
