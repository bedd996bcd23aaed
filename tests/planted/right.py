"""Right models that a checking tool may take for wrong ones. Each raised a false alarm once, or nearly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

import torch
from torch import Tensor, nn

from pytest_piecewise import Model

from . import ops
from .models import WIDTH, Network, mix_in_place, model


class PositionTable(Network):
    """A slice of a buffer is an input of two pieces: padding rows of it are rows of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(32, WIDTH))
        self.gate = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table[: x.shape[0]]
        gate = self.gate.expand(x.shape[0], -1)
        return self.second(mix_in_place(torch.tanh(self.first(x) + rows) * gate)) * rows * gate


class Convolution(Network):
    """A bias beside an activation of another dtype is refused in Python and C++, before any operation is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = mix_in_place(torch.tanh(self.first(x)))
        return self.second(self.convolution(hidden.unsqueeze(1)).sum(1))


class Factory(Network):
    """A tensor without a dtype argument, filled through views; and a guard that size is at least 2."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = mix_in_place(torch.tanh(self.first(x)))
        out = torch.zeros(x.shape[0], WIDTH + 4)
        out[:, :WIDTH] = hidden
        out[:, WIDTH:] = hidden[:, :4] * 2
        return out


class Shapes(Network):
    """Outputs with a fixed leading 1, the size twice, a multiple of it, and one that follows no weight."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        hidden = mix_in_place(torch.tanh(self.first(x)))
        return hidden @ hidden.t(), hidden.flatten(), x.cos(), self.second.bias.reshape(1, -1)


class Masked(Network):
    """Returned scores that are masked by minus infinity in one output and by the least number in another."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.second(mix_in_place(torch.tanh(self.first(x))))
        mask = torch.arange(WIDTH, device=x.device) > 11
        return scores.masked_fill(mask, float("-inf")), scores.masked_fill(mask, torch.finfo(scores.dtype).min)


def scaled_by(factor: float) -> Callable[[Tensor], Tensor]:
    def scaled(x: Tensor) -> Tensor:
        return torch.mul(x, factor)

    return torch._dynamo.allow_in_graph(scaled)


class Closures(nn.Module):
    """Pieces that differ by nothing but what a function closes over."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.scaled = [scaled_by(factor) for factor in (1.0, 2.0, -1.5)]

    def forward(self, x: Tensor) -> Tensor:
        for linear, scaled in zip(self.linear, self.scaled, strict=True):
            x = mix_in_place(torch.tanh(scaled(linear(x))))
        return x


def rows_and_table(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(size, WIDTH, generator=generator), torch.randn(8, WIDTH, generator=generator)


class Beside(Network):
    """A second input that always has as many rows as the largest captured size."""

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return super().forward(x) + table.mean(0)


def forgetful(call: object) -> object:
    """A context that does not restore what was set before it."""
    from contextlib import contextmanager

    @contextmanager
    def context() -> object:
        ops.METADATA.update(rows=call.size, shift=call.seed % 7)
        yield

    return context()


class OddOutputs(Network):
    """A sum of weights alone, complex numbers, no columns, no rows, truths, nothing at all."""

    def forward(self, x: Tensor) -> dict[str, object]:
        hidden = super().forward(x)
        return {
            "hidden": (hidden, [x]),
            "sum": self.first.weight.sum(),
            "complex": torch.complex(hidden, hidden.sin()),
            "no columns": hidden[:, :0],
            "no rows": hidden[:0],
            "positive": hidden > 0,
            "nothing": None,
        }


class Weightless(nn.Module):
    """Results cannot follow weights that there are not."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(mix_in_place(torch.cos(x) * 2))


class Rotary(Network):
    """Angles as complex numbers in a buffer, whose imaginary part a cast to the dtype of the case would drop."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(64.0), 100.0 ** (-torch.arange(WIDTH // 2) / WIDTH))
        self.register_buffer("angles", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pairs = torch.view_as_complex(super().forward(x).unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.angles[: x.shape[0]]).flatten(1), self.angles.imag


class Packed(Network):
    """A weight in another layout, made at the first call and kept: no build follows an update of it, nor does eager."""

    numbers = count()

    def __init__(self) -> None:
        super().__init__()
        self.third, self.number = nn.Linear(WIDTH, WIDTH, bias=False), next(self.numbers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.planted.packed_linear(super().forward(x), self.third.weight, self.number)


right = partial(model, dtypes=("float32",))
ODD_OUTPUTS = right(name="odd-outputs", build=OddOutputs)
WEIGHTLESS = right(name="weightless", build=Weightless)
ROTARY = right(name="rotary", build=Rotary, allow={"bits_full": "sin and cos round by how they are fused"})
POSITION_TABLE = right(name="position-table", build=PositionTable)
CONVOLUTION = right(name="convolution", build=Convolution)
FACTORY = right(name="factory", build=Factory)
SHAPES = right(name="shapes", build=Shapes)
MASKED = right(name="masked", build=Masked, dtypes=("float32", "bfloat16"))
CLOSURES = right(name="closures", build=Closures)
BESIDE = right(name="beside", build=Beside, inputs=rows_and_table)
ONE_CAPTURED = right(name="one-captured", capture_sizes=(1,), max_size=4)
PACKED = right(name="packed", build=Packed)
FORGETFUL = right(name="forgetful", context=forgetful)
RIGHT: tuple[Model, ...] = (
    POSITION_TABLE,
    CONVOLUTION,
    FACTORY,
    SHAPES,
    MASKED,
    CLOSURES,
    BESIDE,
    ONE_CAPTURED,
    PACKED,
    FORGETFUL,
    ODD_OUTPUTS,
    WEIGHTLESS,
    ROTARY,
)
