"""The first op of a wrong piece: compiled with every value returned, or, where that changes the outcome, by bisection."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pytest_piecewise.compare import gain_comparison, scale_of
from pytest_piecewise.engines.layout import Compile, duplicate
from pytest_piecewise.engines.sources import generated_sources, kernel_of
from pytest_piecewise.localize.inspection import Suspect
from pytest_piecewise.localize.place import source_of
from pytest_piecewise.localize.truth import Judge, results_of, truth_of
from pytest_piecewise.located import Localization
from pytest_piecewise.split import op_names

MANY_ROWS = 256
"""Rows on which an error that is only seen as a whole is looked for."""
_NO_COMPUTE = frozenset(
    ["getitem", "getattr", "size", "shape", "view", "reshape", "unflatten", "flatten", "chunk", "split", "unbind", "empty",
     "empty_like", "new_empty", "unsqueeze", "squeeze", "transpose", "permute", "expand", "t", "narrow"]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FoundOp:
    """A node of the piece, how many compilations it took, and the generated source of the piece."""

    node: fx.Node
    compiles: int
    source: str
    alone: bool
    """Whether the op is wrong with its neighbours cut off, too; if not, it takes their fusion."""


class OpSearch:
    """Looks for the first op whose compiled value is wrong, on the arguments of the failing call."""

    def __init__(self, suspect: Suspect, compile_: Compile, judge: Judge) -> None:
        self._graph, self._compile, self._judge = suspect.step.section.graph, compile_, judge
        self._systematic = suspect.comparison is None or not suspect.comparison.index
        self._arguments = list(suspect.step.passed)
        if self._systematic:
            self._arguments = _many_rows(self._graph, self._arguments, judge)
            self._judge = dataclasses.replace(judge, call=dataclasses.replace(judge.call, size=1, padded_size=0))
        self._compiles = 0

    def run(self) -> FoundOp | None:
        """The op, if any prefix of the piece shows one."""
        nodes = [node for node in self._graph.graph.nodes if _computes(node)]
        if not nodes:
            return None
        wrong = self._first_wrong(self._graph.graph, nodes)
        alone = wrong is not None
        if wrong is None:
            wrong = self._bisect(nodes)
        if wrong is None:
            return None
        return FoundOp(wrong, self._compiles, self._source(), alone)

    def _first_wrong(self, graph: fx.Graph, wanted: Sequence[fx.Node]) -> fx.Node | None:
        """The first of the nodes that is wrong in a compilation that returns all of them."""
        exposed = returning(self._graph, wanted)
        truth = truth_of(exposed, self._arguments)
        self._compiles += 1
        found = results_of(exposed, self._compile(exposed), self._arguments)
        for node in wanted:
            if node.name in found and self._is_wrong(exposed, truth, node.name, found[node.name]):
                return node
        return None

    def _is_wrong(self, graph: fx.GraphModule, truth: Any, name: str, found: torch.Tensor) -> bool:
        if not self._systematic or not found.is_floating_point():
            verdict = self._judge.against(
                graph, truth, {name: found} | {k: v for k, v in truth.eager.items() if k != name}
            )
            return verdict is not None and not verdict.ok
        reference, eager, value = self._judge.prepared(graph, truth, name, found)
        scale = scale_of([reference], [eager])
        return not gain_comparison(self._judge.variant, name, [reference], [value], scale, self._judge.unit).ok

    def _bisect(self, nodes: Sequence[fx.Node]) -> fx.Node | None:
        """The last node of the shortest prefix that is wrong in a value which is live at its end."""
        order = {node: number for number, node in enumerate(self._graph.graph.nodes)}

        def wrong_at(last: int) -> fx.Node | None:
            end = order[nodes[last]]
            live = [
                node
                for node in nodes[: last + 1]
                if node is nodes[last] or any(order[user] > end for user in node.users)
            ]
            return self._first_wrong(self._graph.graph, live)

        low, high = -1, len(nodes) - 1
        found = wrong_at(high)
        if found is None:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            seen = wrong_at(middle)
            if seen is None:
                low = middle
            else:
                high, found = middle, seen
        return found

    def _source(self) -> str:
        with generated_sources() as sources:
            self._compile(self._graph)
        self._compiles += 1
        return sources[-1] if sources else ""


def with_op(found: Localization, op: FoundOp | None, directory: str) -> Localization:
    """The record with the op, its kernel, and where the generated source lies."""
    if op is None:
        note = "no prefix of the piece is wrong by itself: it takes the piece as it was fused"
        return dataclasses.replace(found, notes=(*found.notes, note))
    name = op_name(op.node)
    kernel, members = kernel_of(op.source, op.node.name, name)
    notes = () if op.alone else ("right when its values are returned: wrong only as it was fused",)
    return dataclasses.replace(
        found,
        op=name if op.node.name == name else f"{name} ({op.node.name})",
        op_source=source_of(op.node),
        kernel=kernel,
        members=members,
        kernel_source=directory,
        compiles=op.compiles,
        notes=(*found.notes, *notes),
    )


def op_name(node: fx.Node) -> str:
    """The name of what a node calls: `ns::op` for custom ops, else the function's or method's own."""
    if names := op_names(node):
        return names[-1].removeprefix("aten::")
    return str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def returning(graph: fx.GraphModule, wanted: Sequence[fx.Node]) -> fx.GraphModule:
    """The graph up to the last of the nodes wanted, returning their values."""
    copy = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    missing = set(wanted)
    for node in graph.graph.nodes:
        if node.op == "output" or (not missing and node.op != "placeholder"):
            break
        values[node] = copy.node_copy(node, values.__getitem__)
        missing.discard(node)
    copy.output(tuple(values[node] for node in wanted))
    copy.eliminate_dead_code(lambda node: node.op == "placeholder" or node.is_impure())
    return fx.GraphModule(graph, copy)


def _computes(node: fx.Node) -> bool:
    if not node.op.startswith("call_") or not isinstance(node.meta.get("example_value"), torch.Tensor):
        return False
    return op_name(node) not in _NO_COMPUTE


def _many_rows(graph: fx.GraphModule, arguments: Sequence[Any], judge: Judge) -> list[Any]:
    """The arguments with many rows: those of the call repeated, with small differences."""
    rows = judge.call.padded_size or judge.call.size
    made = []
    for node, value in zip(graph.graph.find_nodes(op="placeholder"), arguments, strict=True):
        example = node.meta.get("example_value")
        if isinstance(example, torch.SymInt):
            made.append(MANY_ROWS * value // rows if isinstance(value, int) else value)
            continue
        sized = [d for d, e in enumerate(getattr(example, "shape", ())) if isinstance(e, torch.SymInt)]
        made.append(_repeated(value, sized[0], rows) if sized else duplicate(value))
    return made


def _repeated(value: torch.Tensor, dimension: int, rows: int) -> torch.Tensor:
    times = -(-MANY_ROWS // rows)
    many = torch.cat([value] * times, dim=dimension)
    many = many.narrow(dimension, 0, value.shape[dimension] // rows * MANY_ROWS).clone()
    if many.is_floating_point():
        generator = torch.Generator(many.device).manual_seed(0)
        many += torch.randn(many.shape, generator=generator, device=many.device).to(many.dtype) * many.std()
    return many
