"""One small network, and what is done to it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch._inductor.custom_graph_pass import CustomGraphPass

from pytest_piecewise import Call, Model

from . import ops

WIDTH = 16


def mix_in_place(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.ops.planted.mix_into(x, out)
    return out


def mix_everything(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.ops.planted.mix_all_rows(x, out)
    return out


def shift_and_mix(x: Tensor) -> Tensor:
    return mix_in_place(torch.ops.planted.shift(x) * 2)


class Network(nn.Module):
    """Linear, an op between pieces, and a gated residual round a second linear layer."""

    def __init__(self, mix: Callable[[Tensor], Tensor] = mix_in_place) -> None:
        super().__init__()
        self.mix = mix
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)) * 1.5
        mixed = self.mix(hidden)
        return (mixed + torch.sigmoid(self.second(mixed))) * 0.125


class Workspace(Network):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.planted_lib.into_workspace(super().forward(x))


def mix_after_a_wrong_kernel(x: Tensor) -> Tensor:
    return mix_in_place(torch.ops.planted.off_in_float32(x) * 2)


def unsteady(x: Tensor) -> Tensor:
    """Through an op that gives other bits in each call."""
    return mix_in_place(torch.ops.planted.unsteady(x))


class FollowsSize(Network):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 0.1 * x.shape[0])


class Breaking(Network):
    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        torch._dynamo.graph_break()
        return x * 2


class Moody(Network):
    """What it computes hangs on a Python attribute, on which Dynamo guards."""

    mood = 0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + Moody.mood)


def zeroed() -> Network:
    network = Network()
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    return network


def crash() -> Network:
    ctypes.string_at(0)
    return Network()


def hang() -> Network:
    time.sleep(600)
    return Network()


def eat_memory() -> Network:
    eaten = [torch.ones(2**24) for _ in range(200)]
    assert eaten
    return Network()


class ChangedConstant(CustomGraphPass):
    """A graph pass that gets one constant wrong by one part in a thousand."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function" and 0.125 in node.args:
                node.args = tuple(0.125 * 1.001 if argument == 0.125 else argument for argument in node.args)

    def uuid(self) -> str:
        return "changed-constant"


@contextmanager
def changing_mood(call: Call) -> Iterator[None]:
    with ops.metadata(call):
        Moody.mood = 1 if call.phase == "interleaved" else 0
        yield


def rows(size: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(size, WIDTH, generator=generator),)


model = partial(
    Model,
    build=Network,
    inputs=rows,
    splitting_ops=("planted::mix_into",),
    capture_sizes=(1, 4, 8),
    context=ops.metadata,
    dtypes=("float32",),
)

CLEAN = model(name="clean", dtypes=("float32", "bfloat16"))
FRESH = model(name="fresh", build=partial(Network, torch.ops.planted.mix_fresh), splitting_ops=("planted::mix_fresh",))
UNDECLARED_MUTATION = model(
    name="undeclared-mutation", build=partial(Network, torch.ops.planted.scribble), splitting_ops=("planted::scribble",)
)
GRAPH_BREAK = model(name="graph-break", build=Breaking)
RECOMPILE = model(name="recompile", build=Moody, context=changing_mood)
STEADY = model(name="steady", build=Moody)
ZERO_WEIGHTS = model(name="zero-weights", build=zeroed)
LEAKING_PADDING = model(
    name="leaking-padding", build=partial(Network, mix_everything), splitting_ops=("planted::mix_all_rows",)
)
CHANGED_CONSTANT = model(
    name="changed-constant",
    dtypes=("float32", "bfloat16"),
    inductor_config={"post_grad_custom_post_pass": ChangedConstant()},
)
MANY_ROWS = model(name="many-rows", capture_sizes=(512,))
CRASH = model(name="crash", build=crash)
HANG = model(name="hang", build=hang)
EAT_MEMORY = model(name="eat-memory", build=eat_memory)
MISSING_OP = model(name="missing-op", build=partial(Network, shift_and_mix))
LISTED_OP = model(
    name="listed-op",
    build=partial(Network, shift_and_mix),
    splitting_ops=("planted::mix_into", "planted::shift"),
)
FOLLOWS_SIZE = model(name="follows-size", build=FollowsSize)
WORKSPACE = model(name="workspace", build=Workspace, splitting_ops=("planted::mix_into", "planted_lib::into_workspace"))
UNSTEADY = model(
    name="unsteady",
    build=partial(Network, unsteady),
    splitting_ops=("planted::mix_into", "planted::unsteady"),
)
OFF_IN_FLOAT32 = model(
    name="off-in-float32",
    build=partial(Network, mix_after_a_wrong_kernel),
    splitting_ops=("planted::mix_into", "planted::off_in_float32"),
)
NEVER_FOUND = model(name="never-found", splitting_ops=("planted::mix_into", "planted::mix_fresh"))
NOTHING_SPLIT = model(name="nothing-split", splitting_ops=())
