"""Planted faults, by name: proof that each check can fail. One module per kind; a fault is a small function in it.

A fault is planted in the process that builds and undone at its end. It notes when it changed something, so that one that
had no effect is told apart from one that no check saw. Importing this imports no torch; planting does.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_piecewise.errors import ModelError
from pytest_piecewise.faults import (
    alias,
    cache,
    capturing,
    cost,
    fallback,
    numerics,
    padding,
    pool,
    shape,
    splitting,
    stale,
    vacuous,
)
from pytest_piecewise.faults.catalogue import KINDS, Fault
from pytest_piecewise.faults.plant import Plant

if TYPE_CHECKING:
    from pytest_piecewise.engines import Request

__all__ = ["FAULTS", "KINDS", "Fault", "Plant", "chosen_faults", "find_fault", "planted"]

_MODULES = (stale, pool, padding, splitting, alias, shape, cache, capturing, numerics, fallback, vacuous, cost)

FAULTS: Mapping[str, Fault] = MappingProxyType(
    {item.name: item for module in _MODULES for item in vars(module).values() if isinstance(item, Fault)}
)
"""Every fault by name, in the order of the kinds."""


def find_fault(name: str) -> Fault:
    """The fault of that name; an unknown one is an error that shows similar names."""
    if name not in FAULTS:
        near = difflib.get_close_matches(name, FAULTS, 5, 0.4)
        raise ModelError(
            f"expected the name of a fault, found {name!r}; {'did you mean ' + ', '.join(near) + '? ' if near else ''}"
            "`pytest-piecewise faults` prints all"
        )
    return FAULTS[name]


def chosen_faults(choices: str) -> tuple[Fault, ...]:
    """The faults of a canary run: `all`, those of a kind, or the one of a name; several with commas."""
    return tuple(dict.fromkeys(item for choice in choices.split(",") for item in _chosen(choice)))


def _chosen(choice: str) -> tuple[Fault, ...]:
    if choice == "all":
        return tuple(FAULTS.values())
    if choice in KINDS:
        return tuple(item for item in FAULTS.values() if item.kind == choice)
    if choice not in FAULTS and choice.upper() in KINDS:
        raise ModelError(f"expected a kind out of {', '.join(KINDS)}, found {choice!r}; did you mean {choice.upper()}?")
    return (find_fault(choice),)


@contextmanager
def planted(name: str, request: Request, part: str = "") -> Iterator[Plant]:
    """Within it the fault of that name, if any, is at work on what is built by `request`.

    Gives what counts its effects. A variant that the fault does not touch is built as ever; `part` stands for the variant
    where it is none: `reference`, `comparison` or `cache`.
    """
    part = part or request.variant
    plant = Plant(request)
    try:
        if name and part in (found := find_fault(name)).variants:
            found.plant(plant)
        yield plant
    finally:
        plant.close()
