"""What a call shares with its caller besides values: the memory of its outputs, and the random state of the process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_piecewise.engines import Build, Request
from pytest_piecewise.engines.prepare import call_context, flatten, make_inputs, state_tensors
from pytest_piecewise.findings import finding
from pytest_piecewise.protocol import calls
from pytest_piecewise.records import Call, Finding, Status

SEED = 20_201
"""Of the random state before the two calls that are compared."""


def sharing_findings(build: Build, request: Request) -> list[Finding]:
    """`aliasing` and `randomness` of a compiled build, each against the module run eagerly in the same process."""
    if not hasattr(build, "results"):
        reason = "the engine does not give the tensors of a call as they are, nor the module to compare them with"
        return [
            Finding(check=check, status=Status.SKIP, variant=build.variant, summary=reason)
            for check in ("aliasing", "randomness")
        ]
    call = calls(request.model, request.seed)[0]
    state = state_tensors(request.model, build.module)
    before = {name: tensor.clone() for name, tensor in state.items()}
    found = _observed(build, request, call, eager=False)
    for name, tensor in state.items():
        tensor.copy_(before[name])
    eager = _observed(build, request, call, eager=True)
    for name, tensor in state.items():
        tensor.copy_(before[name])
    return [_aliasing(build.variant, found, eager), _randomness(build.variant, found, eager)]


@dataclasses.dataclass(frozen=True, slots=True)
class _Observed:
    outputs: int
    shared: frozenset[str]
    random: tuple[Any, ...]


def _observed(build: Any, request: Request, call: Call, *, eager: bool) -> _Observed:
    devices = [request.device] if request.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(SEED)
        fresh = _random_state(request)
        if eager:
            arguments: Sequence[Any] = make_inputs(request.model, call.size, call.seed, request.dtype, request.device)
            with call_context(request.model, call):
                results = build.module(*arguments)
        else:
            arguments, results = build.results(call)
        after = _random_state(request)
    outputs = flatten(results)
    random = (after[0].tolist(), *(torch.equal(*pair) for pair in zip(fresh[1:], after[1:], strict=True)))
    return _Observed(len(outputs), frozenset(shared_memory(outputs, arguments, build.module)), random)


def _random_state(request: Request) -> list[torch.Tensor]:
    """Of the CPU, and of the GPU: there a graph advances it in steps of its own, so only whether it does is compared."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(request.device)] if request.device.type == "cuda" else states


def shared_memory(outputs: Mapping[str, torch.Tensor], arguments: Sequence[Any], module: Any) -> Iterator[str]:
    """A line for each pair of outputs, or output and argument, weight or buffer, that have memory in common."""
    others = {f"argument {index}": value for index, value in enumerate(arguments) if isinstance(value, torch.Tensor)}
    others |= {f"weight {name}": value for name, value in module.named_parameters()}
    others |= {f"buffer {name}": value for name, value in module.named_buffers()}
    listed = list(outputs.items())
    for index, (name, tensor) in enumerate(listed):
        known = {f"output {other}": value for other, value in listed[:index]} | others
        yield from (f"output {name} and {other}" for other, value in known.items() if overlap(tensor, value))


def overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have bytes in common, judged by the range that each of them spans."""
    if not first.numel() or not second.numel():
        return False
    if first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr():
        return False
    (begin, end), (other_begin, other_end) = _span(first), _span(second)
    return begin < other_end and other_begin < end


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + extent * tensor.element_size()


def _aliasing(variant: str, found: _Observed, eager: _Observed) -> Finding:
    lines = [f"{line} share memory, which eager's do not" for line in sorted(found.shared - eager.shared)]
    lines += [f"{line} share no memory, which eager's do" for line in sorted(eager.shared - found.shared)]
    summary = f"{found.outputs} output(s): {len(found.shared)} share memory with others, as in eager"
    return finding(
        "aliasing",
        variant,
        not lines,
        "; ".join(lines[:3]) or summary,
        lines[3:],
        "whoever writes into one of them changes the other, or no longer does: return what eager returns, or clone it",
    )


def _randomness(variant: str, found: _Observed, eager: _Observed) -> Finding:
    ok = found.random == eager.random
    summary = "a call leaves the random state as an eager call does"
    return finding(
        "randomness",
        variant,
        ok,
        summary if ok else "a call leaves another random state than an eager call does",
        action="something draws random numbers at replay that eager does not, or not as many: "
        "give it a generator of its own",
    )
