"""What was built, segment by segment: for whoever has to look into a build that is wrong. Kept only where asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from pytest_piecewise.records import Call

Compile = Callable[[fx.GraphModule], Callable[..., Any]]

TRACED_AS = "pytest_piecewise_traced_as"
"""Key in the `meta` of a node of a segment: the name that it has in the whole graph. Splitting renames nodes."""


@dataclass(frozen=True, slots=True)
class Section:
    """One segment: what it should compute, and where the dispatch calls what computes it."""

    name: str
    """Attribute of `Layout.dispatch` that is called."""
    label: str
    """`piece 3`, or the names of the splitting ops."""
    ops: tuple[str, ...]
    """Splitting ops; none in a piece."""
    graph: fx.GraphModule
    compiled: Callable[..., Any] | None
    """A piece's code, called without graphs."""

    @property
    def is_piece(self) -> bool:
        """Whether the segment is compiled."""
        return self.compiled is not None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values that it takes: those that they have in the whole graph."""
        return tuple(node.name for node in self.graph.graph.find_nodes(op="placeholder"))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values that it returns, likewise."""
        return tuple(str(node.meta.get(TRACED_AS, node.name)) for node in output_nodes(self.graph))

    @property
    def computes(self) -> frozenset[str]:
        """Names in the whole graph of the nodes that the segment consists of."""
        nodes = (node for node in self.graph.graph.nodes if node.op not in ("placeholder", "output"))
        return frozenset(str(node.meta.get(TRACED_AS, node.name)) for node in nodes)

    @property
    def output_nodes(self) -> list[fx.Node]:
        """The nodes of `graph` that it returns."""
        return output_nodes(self.graph)

    @property
    def outputs_as_named(self) -> list[str]:
        """Their names in `graph`."""
        return [node.name for node in output_nodes(self.graph)]


@dataclass(frozen=True, slots=True)
class Layout:
    """One traced graph, its sections in the order of `graph`, the object that calls them, and how pieces are compiled."""

    graph: fx.GraphModule
    sections: tuple[Section, ...]
    dispatch: Any
    compile: Compile


class Segmented(Protocol):
    """A build that can be looked into, made with `Request.observed`."""

    @property
    def layouts(self) -> Sequence[Layout]:
        """One per traced graph."""

    def within(self, call: Call) -> AbstractContextManager[Any]:
        """The context in which ops find the metadata of a call, and in which pieces are compiled."""


class Whole:
    """Stands where a dispatch would, for a graph that stays whole: `code` is what is called."""

    def __init__(self, code: Callable[..., Any]) -> None:
        self.code = code

    def __call__(self, *arguments: Any) -> Any:
        """The compiled graph's outputs."""
        return self.code(*arguments)


def remember_names(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph, about to be split, with a note in every node of what it is called."""
    for node in graph.graph.nodes:
        node.meta[TRACED_AS] = node.name
    return graph


def output_nodes(graph: fx.GraphModule) -> list[fx.Node]:
    """The nodes that a graph returns, one level of tuple opened."""
    (returned,) = graph.graph.output_node().args
    nodes = returned if isinstance(returned, (tuple, list)) else (returned,)
    return [node for node in nodes if isinstance(node, fx.Node)]


def copy_graph(graph: fx.GraphModule) -> fx.GraphModule:
    """A copy of the nodes, attributes shared: a compiler may rewrite the graph that it is given."""
    copy = fx.Graph()
    returned = copy.graph_copy(graph.graph, {})
    copy.output(returned)
    return fx.GraphModule(graph, copy)


def read_address(address: int, like: torch.Tensor) -> torch.Tensor:
    """A copy of what lies at an address, laid out as another tensor is. The memory must still belong to somebody."""
    extent = like.element_size() * extent_of(like)
    storage = torch._C._construct_storage_from_data_pointer(address, like.device, extent)
    there = torch.empty(0, dtype=like.dtype, device=like.device).set_(storage, 0, like.shape, like.stride())
    copy: torch.Tensor = duplicate(there)
    return copy


def duplicate(value: Any) -> Any:
    """A copy of a tensor with the same strides, whatever they are; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    flat = value.detach().as_strided((extent_of(value),), (1,), value.storage_offset()).clone()
    return flat.as_strided(value.shape, value.stride(), 0)


def extent_of(tensor: torch.Tensor) -> int:
    """How many elements of its storage a tensor spans."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def home_of_op(name: str) -> str:
    """The module whose function `torch.library.custom_op` made the op `namespace::op` of; empty if it was made otherwise."""
    from torch._library.custom_ops import OPDEFS  # noqa: PLC0415 - private, asked only when something is wrong

    definition = OPDEFS.get(name)
    return str(definition._init_fn.__module__) if definition is not None else ""
