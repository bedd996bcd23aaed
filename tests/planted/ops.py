"""Ops of the planted models. `scale` is per-call metadata that they read, as attention reads its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor

from pytest_piecewise import Call

METADATA: dict[str, int] = {"rows": 0, "shift": 0}


@contextmanager
def metadata(call: Call) -> Iterator[None]:
    """The number of real rows, and a shift that differs between calls of one size."""
    before = dict(METADATA)
    METADATA.update(rows=call.size, shift=call.seed % 7)
    try:
        yield
    finally:
        METADATA.update(before)


@torch.library.custom_op("planted::mix_into", mutates_args=("out",))
def mix_into(x: Tensor, out: Tensor) -> None:
    """Adds the mean of the real rows to each of them, and the call's shift. The clean op."""
    rows = x[: METADATA["rows"]]
    out[: METADATA["rows"]] = rows + rows.mean(0) + METADATA["shift"]


@mix_into.register_fake
def _(x: Tensor, out: Tensor) -> None:
    return None


@torch.library.custom_op("planted::mix_fresh", mutates_args=())
def mix_fresh(x: Tensor) -> Tensor:
    """The same in a fresh tensor."""
    out = torch.zeros_like(x)
    mix_into(x, out)
    return out


@mix_fresh.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("planted::mix_all_rows", mutates_args=("out",))
def mix_all_rows(x: Tensor, out: Tensor) -> None:
    """Takes padding rows into the mean: what a kernel without the number of real rows does."""
    out.copy_(x + x.mean(0))


@mix_all_rows.register_fake
def _(x: Tensor, out: Tensor) -> None:
    return None


@torch.library.custom_op("planted::scribble", mutates_args=())
def scribble(x: Tensor) -> Tensor:
    """Writes into its argument without saying so."""
    result = x * 2
    x.add_(1)
    return result


@scribble.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("planted::shift", mutates_args=())
def shift(x: Tensor) -> Tensor:
    """Reads per-call metadata, and must therefore be a splitting op."""
    return x + METADATA["shift"]


@shift.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


LIBRARY = torch.library.Library("planted_lib", "DEF")
LIBRARY.define("into_workspace(Tensor x) -> Tensor")
WORKSPACES: dict[torch.dtype, Tensor] = {}


@torch.library.impl(LIBRARY, "into_workspace", "CompositeExplicitAutograd")
def into_workspace(x: Tensor) -> Tensor:
    """Returns a view of memory that the next call writes again."""
    workspace = WORKSPACES.setdefault(x.dtype, torch.zeros(64, x.shape[-1], dtype=x.dtype))
    workspace[: x.shape[0]] = x * 2
    return workspace[: x.shape[0]]


@torch.library.register_fake("planted_lib::into_workspace", lib=LIBRARY)
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("planted::off_in_float32", mutates_args=())
def off_in_float32(x: Tensor) -> Tensor:
    """A kernel that is wrong by a hundredth in one dtype, for every build that calls it."""
    return x * (1 + 0.01 * torch.sin(37 * x)) if x.dtype == torch.float32 else x * 1.0


@off_in_float32.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


PACKED: dict[int, Tensor] = {}


@torch.library.custom_op("planted::packed_linear", mutates_args=())
def packed_linear(x: Tensor, weight: Tensor, owner: int) -> Tensor:
    """A product with what was made of the weight in the first call, as kernels keep it that want another layout."""
    if owner not in PACKED:
        PACKED[owner] = weight.t().contiguous()
    return x @ PACKED[owner].to(x.dtype)


@packed_linear.register_fake
def _(x: Tensor, weight: Tensor, owner: int) -> Tensor:
    return torch.empty_like(x)


CALLS = count()


@torch.library.custom_op("planted::unsteady", mutates_args=())
def unsteady(x: Tensor) -> Tensor:
    """Rounds otherwise in each call, as atomic additions in another order do."""
    return x * (1 + 2e-7 * (next(CALLS) % 3))


@unsteady.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)
