"""What a fault is: a record with the function that plants it, and what a case must have for it to apply. No torch here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_piecewise import protocol
from pytest_piecewise.models import Model
from pytest_piecewise.records import Case, Counts

if TYPE_CHECKING:
    from pytest_piecewise.faults.plant import Plant

KINDS = (
    "STALE",
    "POOL",
    "PAD",
    "SPLIT",
    "ALIAS",
    "SHAPE",
    "CACHE",
    "CAPTURE",
    "NUM",
    "FALLBACK",
    "VACUOUS",
    "COST",
)
"""What can go wrong: memory that moved, memory that was shared, padding that leaks, a wrong split, aliasing, shapes, a wrong
artefact from a cache, capture, numerics, a silent fallback, a check with nothing behind it, cost."""

COMPILED = ("full", "piecewise")
EVERYTHING = ("reference", "eager", "full", "piecewise", "comparison")


@dataclass(frozen=True, slots=True)
class Need:
    """What a case must have for a fault to have any effect on it. `counts` are those of its clean piecewise build."""

    reason: str
    """Why the fault does not apply where it is missing."""
    met: Callable[[Case, Model, Counts], bool] = field(repr=False)


CONTEXT = Need("the model has no per-call metadata", lambda case, model, counts: model.context is not None)
STATE = Need("the model has no state", lambda case, model, counts: bool(model.state))
PADDED = Need(
    "no size has to be padded", lambda case, model, counts: bool(protocol.padded_sizes(tuple(model.capture_sizes)))
)
SIZES = Need("only one size is captured", lambda case, model, counts: len(model.capture_sizes) > 1)
UNJUDGED = Need(
    "every captured size is judged in every phase",
    lambda case, model, counts: len(model.capture_sizes) > protocol.MAX_JUDGED_SIZES,
)
BEYOND = Need(
    "no call is larger than the largest captured size",
    lambda case, model, counts: model.largest > model.capture_sizes[-1],
)
SIZE_ONE = Need(
    "no size 1, or it is compiled apart by declaration",
    lambda case, model, counts: (
        (model.capture_sizes[0] == 1 or model.largest == 1) and model.dynamic_shapes == "backed_size_oblivious"
    ),
)
SPLIT = Need("the graph has no splitting op", lambda case, model, counts: counts.splitting_ops > 0)
PIECES = Need("there is only one piece", lambda case, model, counts: counts.pieces > 1)
TWINS = Need("no two pieces are alike", lambda case, model, counts: counts.pieces > counts.distinct_pieces)
FRESH = Need(
    "no eager op between pieces returns a fresh tensor", lambda case, model, counts: bool(counts.copied_inputs)
)
FLOAT32 = Need("only float32 has the precision that is lost", lambda case, model, counts: case.dtype == "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A small, reversible change of what a build does, under which at least one check must fail."""

    name: str
    kind: str
    summary: str
    """One sentence: what goes wrong."""
    report: str
    """A public report of the same, as `repository#number`; without an owner those of vLLM, PyTorch and the like."""
    caught_by: tuple[str, ...]
    """Checks that are expected to fail, at least one of them."""
    plant: Callable[[Plant], None] = field(repr=False, compare=False)
    """Changes the process that builds; undone by `Plant.close`."""
    variants: tuple[str, ...] = ("piecewise",)
    """What has to be built, or referred to, anew."""
    engines: tuple[str, ...] = ("native",)
    devices: tuple[str, ...] = ("cpu", "cuda")
    needs: tuple[Need, ...] = ()
    cached: bool = True
    """Whether the builds may start from the clean builds' compiled code."""

    def inapplicable(self, case: Case, model: Model, counts: Counts) -> str:
        """Why the fault cannot be planted in a case; empty if it can. `counts` are those of the clean piecewise build."""
        if case.engine not in self.engines:
            return f"made for the engine {' and '.join(self.engines)}"
        if case.device.partition(":")[0] not in self.devices:
            return f"made for {' and '.join(self.devices)}"
        return next((need.reason for need in self.needs if not need.met(case, model, counts)), "")


@dataclass(frozen=True, slots=True)
class Declaration:
    """What `fault` is told, and the decorator that makes a `Fault` of the function that plants it."""

    options: dict[str, object]

    def __call__(self, plant: Callable[[Plant], None]) -> Fault:
        """The fault, named after the function and described by its docstring."""
        summary = " ".join((inspect.getdoc(plant) or "").split())
        return Fault(name=plant.__name__, summary=summary, plant=plant, **self.options)  # type: ignore[arg-type]


def fault(kind: str, report: str, *caught_by: str, **options: object) -> Declaration:
    """Declares the function below it as a fault. `options` are further fields of `Fault`."""
    return Declaration({"kind": kind, "report": report, "caught_by": caught_by, **options})
