"""vLLM's split graph as a `Layout`: what localisation needs to look into its builds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import fx

from pytest_piecewise.engines.layout import Layout, Section, copy_graph
from pytest_piecewise.engines.pieces import Evidence, compile_piece
from pytest_piecewise.split import op_names


def note_layout(
    layouts: list[Layout] | None,
    graph: fx.GraphModule,
    module: fx.GraphModule,
    items: Sequence[Any],
    backends: Sequence[Any],
    declared: frozenset[str],
) -> None:
    """Appends what vLLM made of `graph`, if anybody wants it.

    `backends` fills with vLLM's `PiecewiseBackend`s as it compiles, in the order of the pieces.
    """
    if layouts is None:
        return
    sections, first = [], len(backends)
    pieces = 0
    for item in items:
        ops = tuple(op_names(node)[-1] for node in item.graph.graph.nodes if declared.intersection(op_names(node)))
        as_traced = copy_graph(item.graph)
        if item.is_splitting_graph:
            sections.append(Section(item.submod_name, "/".join(ops), ops, as_traced, None))
            continue
        label = f"piece {pieces}" if len(items) > 1 else "the whole graph"
        sections.append(Section(item.submod_name, label, (), as_traced, _called(backends, first + pieces)))
        pieces += 1
    layouts.append(Layout(copy_graph(graph), tuple(sections), module, partial(compile_piece, Evidence())))


def _called(backends: Sequence[Any], index: int) -> Callable[..., Any]:
    """The code of a piece without its graphs."""
    return lambda *arguments: backends[index](*arguments)
