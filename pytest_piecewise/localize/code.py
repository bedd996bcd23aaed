"""A graph as Python that people read and that runs by itself: its class, what that has to import, its constants."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import fx


class NotExpressible(Exception):
    """A graph that cannot be written as text: it holds something that no import gives back."""


@dataclass(frozen=True, slots=True)
class Code:
    """`source` defines a module class of the name asked for; `imports` are lines that it needs; `constants` its tensors."""

    source: str
    imports: tuple[str, ...]
    constants: dict[str, torch.Tensor]


def code_of(graph: fx.GraphModule, name: str) -> Code:
    """The graph as a class called `name`, with a comment before the nodes of every source line."""
    plain = _without_sizes(graph)
    constants: dict[str, torch.Tensor] = {}
    for node in plain.graph.find_nodes(op="get_attr"):
        value: Any = plain
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor) or "." in str(node.target):
            raise NotExpressible(f"attribute {node.target} is a {type(value).__name__}")
        constants[str(node.target)] = value
    source = plain.print_readable(print_output=False).strip()
    source = source.replace("class GraphModule(torch.nn.Module)", f"class {name}(torch.nn.Module)")
    return Code("\n".join(line.rstrip() for line in source.splitlines()), _imports(plain, source), constants)


def _without_sizes(graph: fx.GraphModule) -> fx.GraphModule:
    """A copy without inputs that nothing uses, and whose symbolic sizes are asked of a tensor instead of passed."""
    inputs = graph.graph.find_nodes(op="placeholder")
    bearers = {node: _bearer(graph, node) for node in inputs if node.users and not _is_tensor(node)}
    needed = {bearer[0] for bearer in bearers.values() if bearer}
    copy = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        if (node.users and not bearers.get(node)) or node in needed:
            values[node] = copy.node_copy(node, values.__getitem__)
    for node, bearer in bearers.items():
        if bearer is not None:
            values[node] = copy.call_method("size", (values[bearer[0]], bearer[1]))
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            values[node] = copy.node_copy(node, values.__getitem__)
    return fx.GraphModule(graph, copy)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def _bearer(graph: fx.GraphModule, size: fx.Node) -> tuple[fx.Node, int] | None:
    """An input one of whose dimensions is the size, and which dimension."""
    wanted = str(size.meta.get("example_value"))
    for node in graph.graph.find_nodes(op="placeholder"):
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor):
            for dimension, extent in enumerate(example.shape):
                if isinstance(extent, torch.SymInt) and str(extent) == wanted:
                    return node, dimension
    return None


def kept_inputs(graph: fx.GraphModule) -> list[int]:
    """Positions of the graph's inputs that the class of `code_of` takes, in order."""
    plain = {node.name for node in _without_sizes(graph).graph.find_nodes(op="placeholder")}
    return [index for index, node in enumerate(graph.graph.find_nodes(op="placeholder")) if node.name in plain]


def _imports(graph: fx.GraphModule, source: str) -> tuple[str, ...]:
    lines = []
    for name, value in graph.graph.python_code("self").globals.items():
        if name == "torch" or not re.search(rf"\b{re.escape(name)}\b", source):
            continue
        if isinstance(value, ModuleType):
            lines.append(f"import {value.__name__} as {name}")
            continue
        home, attribute = (
            getattr(value, "__module__", None),
            getattr(value, "__qualname__", getattr(value, "__name__", "")),
        )
        if name in ("inf", "nan"):
            lines.append(f"from math import {name}")
        elif value is None:
            lines.append(f"{name} = None")
        elif home and "<" not in attribute and _found(home, attribute) is value:
            lines.append(f"from {home} import {attribute} as {name}")
        elif getattr(torch, name, None) is value:
            lines.append(f"from torch import {name}")
        else:
            raise NotExpressible(f"{name} is {value!r}, which no import gives back")
    return tuple(lines)


def _found(module: str, attribute: str) -> Any:
    return getattr(sys.modules.get(module), attribute, None)
