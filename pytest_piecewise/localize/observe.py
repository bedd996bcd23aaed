"""Looks over the shoulder of a dispatch: what every segment was given in one call, what it read, and what it returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pytest_piecewise.engines.layout import Layout, Section, duplicate, read_address


@dataclass(frozen=True, slots=True)
class Step:
    """One segment in one call. Tensors are copies, unless said otherwise."""

    layout: Layout
    section: Section
    code: Callable[..., Any]
    """What the dispatch called."""
    passed: tuple[Any, ...]
    reads: tuple[Any, ...] | None
    """What a replay read in place of `passed`; None where no graph was replayed."""
    moved: Mapping[int, tuple[str, str]]
    """By position of the input: the address recorded at capture, and the one of this call."""
    after: tuple[Any, ...]
    """The arguments after the call, which may have written to them."""
    outputs: tuple[Any, ...]
    live: tuple[Any, ...]
    """The outputs themselves."""
    arguments: tuple[Any, ...]
    """The arguments themselves."""

    @property
    def position(self) -> int:
        """Place of the segment in the traced graph."""
        return self.layout.sections.index(self.section)

    def given(self) -> dict[str, Any]:
        """The arguments by name, before the call."""
        return dict(zip(self.section.inputs, self.passed, strict=True))


Look = Callable[[Step], None]
Begin = Callable[[Mapping[str, Any]], None]


@contextmanager
def watching(
    layouts: Sequence[Layout], look: Look, untouched: frozenset[int], begin: Begin = lambda inputs: None
) -> Iterator[None]:
    """Within it, `look` is told of every segment that a dispatch has called, within the context of the call; before them,
    `begin` of the whole graph's inputs by name.

    `untouched` are addresses of storages that no call changes, whose tensors need no copies.
    """
    with ExitStack() as stack:
        for layout in layouts:
            if isinstance(layout.dispatch, fx.GraphModule):
                stack.enter_context(_announced(layout.dispatch, begin))
            for section in layout.sections:
                stack.enter_context(_shadowed(layout, section, look, untouched))
        yield


@contextmanager
def _shadowed(layout: Layout, section: Section, look: Look, untouched: frozenset[int]) -> Iterator[None]:
    """An instance attribute is found before a submodule: it stands before what the dispatch would call."""
    code = getattr(layout.dispatch, section.name)

    def copied(value: Any) -> Any:
        is_tensor = isinstance(value, torch.Tensor)
        return value if is_tensor and value.untyped_storage().data_ptr() in untouched else duplicate(value)

    def call(*arguments: Any) -> Any:
        passed = tuple(map(copied, arguments))
        reads, moved = _reads(code, arguments, passed)
        outputs = code(*arguments)
        live = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
        after, kept = tuple(map(copied, arguments)), tuple(map(copied, live))
        look(Step(layout, section, code, passed, reads, moved, after, kept, live, arguments))
        return outputs

    with _standing_before(layout.dispatch, section.name, call):
        yield


@contextmanager
def _announced(dispatch: fx.GraphModule, begin: Begin) -> Iterator[None]:
    forward = dispatch.forward
    names = [node.name for node in dispatch.graph.find_nodes(op="placeholder")]

    def call(*arguments: Any) -> Any:
        begin(dict(zip(names, map(duplicate, arguments), strict=False)))
        return forward(*arguments)

    with _standing_before(dispatch, "forward", call):
        yield


@contextmanager
def _standing_before(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__.get(name)
    owner.__dict__[name] = value
    try:
        yield
    finally:
        if before is None:
            del owner.__dict__[name]
        else:
            owner.__dict__[name] = before


def _reads(
    code: Any, arguments: Sequence[Any], passed: Sequence[Any]
) -> tuple[tuple[Any, ...] | None, dict[int, tuple[str, str]]]:
    """What a replay will read, and which inputs it will read elsewhere than this call has put them."""
    recorded = code.recorded(arguments) if hasattr(code, "recorded") else None
    if recorded is None:
        return None, {}
    reads, moved = list(passed), {}
    for index, (address, value) in enumerate(zip(recorded, arguments, strict=True)):
        if not isinstance(value, torch.Tensor) or not isinstance(address, int) or address == value.data_ptr():
            continue
        moved[index] = (hex(address), hex(value.data_ptr()))
        reads[index] = read_address(address, value)
    return tuple(reads), moved
