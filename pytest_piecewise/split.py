"""FX graph -> segments: pieces to compile, and the splitting ops between them. Pure: a graph in, data out."""

from __future__ import annotations

import hashlib
import inspect
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch.fx.passes.split_module import split_module
from torch.utils._pytree import tree_map

# split_module can return a tuple from every submodule since torch 2.12; before, one output comes back bare. Both work.
_TUPLE_RETURN = {"tuple_return": True} if "tuple_return" in inspect.signature(split_module).parameters else {}

# What neither computes nor moves data. A segment of nothing else is no piece: its graph would be empty.
_FREE_VIEWS = (
    "view reshape size shape stride unsqueeze squeeze transpose permute expand flatten unflatten t chunk split "
    "split_with_sizes narrow select unbind movedim view_as expand_as sym_size getitem getattr"
)
_FREE_ALLOCATIONS = "empty empty_like empty_strided new_empty"
_FREE_ON_TENSORS = frozenset(f"{_FREE_VIEWS} {_FREE_ALLOCATIONS}".split())
_FREE = _FREE_ON_TENSORS | {"add", "sub", "mul", "floordiv", "mod", "sym_int"}  # on sizes, which are Python numbers


@dataclass(frozen=True, slots=True)
class Segment:
    """A submodule of the split graph. `ops` names the splitting ops in it; a segment without any is a piece."""

    name: str
    ops: tuple[str, ...]
    is_free: bool

    @property
    def is_piece(self) -> bool:
        """Whether the segment is compiled and captured; the others stay eager."""
        return not self.ops


@dataclass(frozen=True, slots=True)
class Split:
    """The split graph: `module` calls the segments, in `segments` order."""

    module: fx.GraphModule
    segments: tuple[Segment, ...]


def op_names(node: fx.Node) -> tuple[str, ...]:
    """The names under which a splitting op may be declared: `ns::op.overload` and `ns::op`; none for other nodes."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        packet = target._schema.name
        return (f"{packet}.{target._overloadname}", packet)
    if isinstance(target, torch._ops.OpOverloadPacket):
        packet = target._qualified_op_name
        overloads = target.overloads()  # which of several is called shows only when it runs
        return (f"{packet}.{overloads[0]}", packet) if len(overloads) == 1 else (packet,)
    return ()


def custom_ops(graph: fx.Graph) -> tuple[str, ...]:
    """Names of the ops in a graph that are neither torch's own nor Python: those whose inside nobody sees."""
    names = (op_names(node)[-1] for node in graph.nodes if node.op == "call_function" and op_names(node))
    return tuple(dict.fromkeys(name for name in names if not is_builtin(name)))


def is_builtin(name: str) -> bool:
    """Whether `namespace::op` belongs to torch itself."""
    return name.partition("::")[0] in (
        "aten",
        "prims",
        "prim",
        "inductor",
        "higher_order",
        "profiler",
        "_c10d_functional",
    )


def split_graph(graph_module: fx.GraphModule, splitting_ops: Iterable[str]) -> Split:
    """Splits at `splitting_ops`; order is kept, neighbours among them share a segment, and no piece is free of compute.

    A tuple result stays with its producer. `keep_original_order` is not a nicety: without it `split_module` reorders
    round an op that writes into its argument, which is silently wrong.
    """
    groups = _merge_free(_group(graph_module.graph, frozenset(splitting_ops)))
    number = {node: index for index, group in enumerate(groups) for node in group.nodes}
    module = split_module(
        graph_module,
        None,  # type: ignore[arg-type]  # declared as a module, used by nobody
        lambda node: number[node],
        keep_original_order=True,
        **_TUPLE_RETURN,  # type: ignore[arg-type]
    )
    segments = tuple(
        Segment(f"submod_{index}", tuple(group.ops), is_free(group.nodes))
        for index, group in enumerate(groups)
        if hasattr(module, f"submod_{index}")
    )
    return Split(module, segments)


@dataclass(slots=True)
class _Group:
    nodes: list[fx.Node]
    ops: list[str]


def _group(graph: fx.Graph, splitting_ops: frozenset[str]) -> list[_Group]:
    groups: list[_Group] = [_Group([], [])]
    home: dict[fx.Node, _Group] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        declared = splitting_ops.intersection(op_names(node)) if node.op == "call_function" else frozenset()
        if node.target is operator.getitem and node.args[0] in home:
            group = home[node.args[0]]
        elif bool(declared) == bool(groups[-1].ops) and groups[-1].nodes:
            group = groups[-1]
        else:
            group = groups[-1] if not groups[-1].nodes else _Group([], [])
            if group is not groups[-1]:
                groups.append(group)
        group.nodes.append(node)
        group.ops += op_names(node)[-1:] if declared else ()
        home[node] = group
    return groups


def _merge_free(groups: list[_Group]) -> list[_Group]:
    """Segments without compute join the splitting ops beside them, which may bring two of those together."""
    if not any(group.ops for group in groups):
        return groups
    merged: list[_Group] = []
    for group in groups:
        eager = bool(group.ops) or is_free(group.nodes)
        if merged and eager and (merged[-1].ops or is_free(merged[-1].nodes)):
            merged[-1].nodes += group.nodes
            merged[-1].ops += group.ops
        else:
            merged.append(group)
    return merged


def is_free(nodes: Iterable[fx.Node]) -> bool:
    """Whether the nodes neither compute nor move data."""
    return all(_node_is_free(node) for node in nodes)


def _node_is_free(node: fx.Node) -> bool:
    if node.op == "get_attr":
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    on_tensors = isinstance(node.meta.get("example_value"), torch.Tensor)
    return str(name).split(".")[0] in (_FREE_ON_TENSORS if on_tensors else _FREE)


def structural_key(piece: fx.GraphModule) -> str:
    """Equal for pieces that one compiled artefact can serve: ops, wiring, constants and input metadata, not names.

    Tensors that the graph holds as attributes count by their bytes; a nested graph counts by its own key.
    """
    return hashlib.sha256("\n".join(structural_lines(piece)).encode()).hexdigest()[:16]


def structural_lines(piece: fx.GraphModule) -> list[str]:
    """What `structural_key` is made of, a line per node."""
    position: dict[fx.Node, int] = {}
    lines: list[str] = []
    for index, node in enumerate(piece.graph.nodes):
        position[node] = index
        if node.op == "placeholder":
            lines.append("input " + _describe_value(node.meta.get("example_value")))
        elif node.op == "get_attr":
            lines.append("attribute " + _describe_attribute(piece, str(node.target)))
        else:
            arguments = tree_map(lambda value: _wire(value, position), (node.args, node.kwargs))
            lines.append(f"{node.op} {_describe_target(node.target)} {arguments!r}")
    return lines


def first_difference(lines: Sequence[str], earlier: Sequence[str]) -> str:
    """Where two pieces that call the same ops in the same order first differ; empty if they call others."""
    if [_op_of(line) for line in lines] != [_op_of(line) for line in earlier]:
        return ""
    for line, other in zip(lines, earlier, strict=True):
        if line != other:
            return f"{_op_of(line).replace('._VariableFunctionsClass', '')}: {_apart(line, other)}"
    return ""


def _op_of(line: str) -> str:
    kind, _, rest = line.partition(" ")
    return kind if kind in ("input", "attribute") else rest.partition(" ")[0]


def _apart(line: str, other: str) -> str:
    """What the two have where they part, with the words round it."""
    start = next((i for i, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), min(len(line), len(other)))
    begin = max(line.rfind(" ", 0, start), line.rfind("(", 0, start)) + 1
    return f"{_word(line, begin)} where that has {_word(other, begin)}"


def _word(line: str, begin: int) -> str:
    return line[begin : begin + 60].partition(", ")[0].rstrip(")") or "nothing"


def _wire(value: object, position: dict[fx.Node, int]) -> object:
    """An argument as it is printed: the value of an earlier node by that node's place, which no name can hide."""
    if isinstance(value, fx.Node):
        return f"%{position[value]}"
    if isinstance(value, slice):
        return tuple(_wire(part, position) for part in (slice, value.start, value.stop, value.step))
    return value


def _describe_target(target: object) -> str:
    if isinstance(target, str):
        return target
    name = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', None) or target}"
    # Functions made by one function share a name but not what they close over.
    return f"{name} {id(target)}" if "<locals>" in name or "<lambda>" in name else name


def _describe_value(value: object) -> str:
    if isinstance(value, torch.Tensor):
        shape, stride = tuple(map(str, value.shape)), tuple(map(str, value.stride()))
        return f"{value.dtype} {shape} {stride} {value.storage_offset()} {value.device} {value.requires_grad}"
    return f"{type(value).__name__} {value}"


def _describe_attribute(piece: fx.GraphModule, name: str) -> str:
    value: object = piece
    for part in name.split("."):
        value = getattr(value, part)
    if isinstance(value, fx.GraphModule):
        return structural_key(value)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch._subclasses.FakeTensor):
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return _describe_value(value) + hashlib.sha256(content).hexdigest()
    return f"{name} {value!r}"
