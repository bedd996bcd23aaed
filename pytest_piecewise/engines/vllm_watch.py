"""A look through the seams of vLLM's compilation: what it splits, what it compiles and for how long, its graph wrappers."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import fx
from torch._inductor import utils as inductor_utils
from vllm.compilation import backends

from pytest_piecewise.engines.layout import Layout, remember_names
from pytest_piecewise.engines.pieces import Evidence, Stage, operations
from pytest_piecewise.engines.poison import sized_placeholders
from pytest_piecewise.engines.vllm_graphs import PieceInputs, WatchedGraphs
from pytest_piecewise.engines.vllm_segments import note_layout
from pytest_piecewise.records import Part
from pytest_piecewise.split import custom_ops, is_free, op_names, structural_key


@contextmanager
def observed(
    evidence: Evidence, stage: Stage, declared: frozenset[str], layouts: list[Layout] | None = None
) -> Iterator[list[Any]]:
    """Within it, what vLLM splits is noted, and its graph wrappers are watched. Gives vLLM's `PiecewiseBackend`s.

    The functions are vLLM's and Inductor's, and are called as ever; they are the seams that vLLM's own tests look through.
    """
    compiled: list[Any] = []
    pieces: list[PieceInputs] = []
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    split, wrap = backends.split_graph, backends.wrap_with_cudagraph_if_needed
    set_wrapper = inductor_utils.set_customized_partition_wrappers

    def noted_split(graph: fx.GraphModule, splitting_ops: list[str]) -> Any:
        module, items = split(remember_names(graph), splitting_ops)
        note_layout(layouts, graph, module, items, compiled, declared)
        for item in items:
            ops = [name for node in item.graph.graph.nodes for name in sorted(declared.intersection(op_names(node)))]
            if item.is_splitting_graph or not splitting_ops:
                evidence.splitting_ops += ops
            if item.is_splitting_graph:
                evidence.parts.append(Part(name=", ".join(ops), compiled=False, ops=len(ops)))
                continue
            pieces.append(_note_piece(evidence, len(pieces), item.graph))
            name = pieces[-1].label if splitting_ops else "graph"
            evidence.parts.append(Part(name=name, compiled=True, ops=operations(item.graph.graph)))
        if not splitting_ops:
            evidence.captured_ops.clear()  # of a graph that stays whole nothing is captured
        return module, items

    def watched(piece: Any, *arguments: Any, **options: Any) -> Any:
        compiled.append(piece)
        graphs, index = wrap(piece, *arguments, **options), piece.piecewise_compile_index
        if graphs is piece:
            return piece
        # What vLLM loads from its cache of whole models has never been split here.
        inputs = pieces[index] if index < len(pieces) else PieceInputs(f"piece {index}")
        return WatchedGraphs(graphs, inputs, stage, evidence)

    def set_watched(wrapper: Any) -> None:
        set_wrapper(wrapper and _watching_partitions(wrapper, stage, evidence))

    with (
        mock.patch.multiple(backends, split_graph=noted_split, wrap_with_cudagraph_if_needed=watched),
        mock.patch.object(inductor_utils, "set_customized_partition_wrappers", set_watched),
        mock.patch.object(backends.CompilerManager, "compile", _timing_compiles(seconds)),
    ):
        yield compiled
    evidence.parts = _with_costs(evidence.parts, compiled, seconds)


def _timing_compiles(seconds: dict[tuple[int, int], float]) -> Callable[..., Any]:
    """vLLM's way to compile a piece; adds what it took to `seconds`, by the graph's manager and the piece's number in it."""
    compile_graph = backends.CompilerManager.compile
    signature = inspect.signature(compile_graph)

    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return compile_graph(*arguments, **options)
        finally:
            asked = signature.bind(*arguments, **options).arguments
            seconds[id(asked["self"]), asked.get("graph_index", 0)] += time.perf_counter() - start

    return timed


def _with_costs(parts: Sequence[Part], compiled: Sequence[Any], seconds: dict[tuple[int, int], float]) -> list[Part]:
    """The parts with their compile seconds. vLLM compiles every piece, unless its cache has what an equal one gave."""
    taken = iter(
        [seconds[id(piece.vllm_backend.compiler_manager), piece.piecewise_compile_index] for piece in compiled]
    )
    return [dataclasses.replace(part, compile_seconds=next(taken, 0.0)) if part.compiled else part for part in parts]


def _watching_partitions(wrapper: Any, stage: Stage, evidence: Evidence) -> Any:
    """vLLM's wrapper of Inductor's partitions, its results watched."""

    def watched(partition: Any, metadata: Any) -> WatchedGraphs:
        evidence.partitions = metadata.num_partitions
        inputs = PieceInputs(f"partition {metadata.partition_index}", is_partition=True)
        return WatchedGraphs(wrapper(partition, metadata), inputs, stage, evidence)

    return watched


def _note_piece(evidence: Evidence, position: int, module: fx.GraphModule) -> PieceInputs:
    label = f"piece {position}"
    evidence.distinct.add(structural_key(module))
    evidence.captured_ops.update((f"{op} in {label}", None) for op in custom_ops(module.graph))
    compute = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    evidence.empty_pieces += [label] if is_free(compute) else []
    names = tuple(node.name for node in module.graph.find_nodes(op="placeholder"))
    return PieceInputs(label, names, tuple(sized_placeholders(module)))
