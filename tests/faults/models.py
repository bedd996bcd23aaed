"""Three small models that between them have what a fault may need: twins, state, scalars, tables, outliers, aliases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from pytest_piecewise import Call, Model

WIDTH = 16
ROWS: ContextVar[int] = ContextVar("rows")
SHIFT: ContextVar[float] = ContextVar("shift")


@contextmanager
def metadata(call: Call) -> Iterator[None]:
    tokens = ROWS.set(call.size), SHIFT.set(call.seed % 7 / 8)
    try:
        yield
    finally:
        ROWS.reset(tokens[0])
        SHIFT.reset(tokens[1])


@torch.library.custom_op("faults::mix", mutates_args=("out",))
def mix(x: Tensor, out: Tensor) -> None:
    """The mean of the real rows, and the call's shift, added to each of them."""
    rows = x[: ROWS.get()]
    out[: ROWS.get()] = rows + rows.mean(0) + SHIFT.get()


@mix.register_fake
def _(x: Tensor, out: Tensor) -> None:
    return None


@torch.library.custom_op("faults::remember", mutates_args=("state",))
def remember(x: Tensor, state: Tensor) -> Tensor:
    """A running mean of the real rows, which outlives the call; returned in a fresh tensor."""
    out = torch.zeros_like(x)
    for row in range(ROWS.get()):
        state.copy_(0.75 * state + 0.25 * x[row])
        out[row] = state
    return out


@remember.register_fake
def _(x: Tensor, state: Tensor) -> Tensor:
    return torch.empty_like(x)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        total = x.float()
        return (total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = Norm(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(self.norm(x))
        out = torch.empty_like(hidden)
        torch.ops.faults.mix(hidden, out)
        return x + self.outer(torch.tanh(out)) * self.scale


class Layered(nn.Module):
    """Equal layers with a residual stream: an index table before them, and larger calls than are captured."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.register_buffer("order", torch.randperm(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, self.order]
        for layer in self.layers:
            x = layer(x)
        return x


class Stateful(nn.Module):
    """State that every call advances, and an eager op whose result is fresh in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), Norm()
        self.register_buffer("state", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.before(x))
        return self.after(self.norm(torch.ops.faults.remember(hidden, self.state) + hidden))


class Outputs(nn.Module):
    """Many sizes and many kinds of output: choices, masked scores, equal ones, a view of the argument, an outlier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        loud = torch.ones(WIDTH)
        loud[3] = 4096
        self.register_buffer("loud", loud)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        hidden = self.first(x)
        once, out = torch.empty_like(hidden), torch.empty_like(hidden)
        torch.ops.faults.mix(hidden, once)
        torch.ops.faults.mix(once.view(-1, WIDTH), out)  # between the two ops there is nothing to compute
        scores = self.second(torch.tanh(out))
        masked = scores.masked_fill(scores < 0, float("-inf"))
        return scores, masked, scores.argmax(-1), scores * self.loud, scores.clone(), x.view(-1)


def rows(size: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(size, WIDTH, generator=generator),)


LAYERED = Model(
    name="layered",
    build=Layered,
    inputs=rows,
    splitting_ops=("faults::mix",),
    capture_sizes=(1, 4, 8),
    max_size=12,
    context=metadata,
)
STATEFUL = Model(
    name="stateful",
    build=Stateful,
    inputs=rows,
    splitting_ops=("faults::remember",),
    capture_sizes=(1, 4, 8),
    context=metadata,
    state=("state",),
)
OUTPUTS = Model(
    name="outputs",
    build=Outputs,
    inputs=rows,
    splitting_ops=("faults::mix",),
    capture_sizes=(1, 2, 3, 4, 6, 8, 10, 12, 16, 20),
    context=metadata,
    ties={"2": "0"},
)
