"""Dynamo backends: the whole graph through Inductor, or split, with each distinct piece compiled once and captured."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.utils import counters
from torch._inductor import standalone_compile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_fx import compile_fx

from pytest_piecewise.capture import Frozen, GraphPool, StaticGraph, capture
from pytest_piecewise.engines.guards import note_shape_guards
from pytest_piecewise.engines.kernels import kernels_of
from pytest_piecewise.engines.layout import Layout, Section, Whole, copy_graph, remember_names
from pytest_piecewise.engines.poison import poison_padding, sized_placeholders
from pytest_piecewise.records import Part
from pytest_piecewise.split import (
    Split,
    custom_ops,
    first_difference,
    op_names,
    split_graph,
    structural_key,
    structural_lines,
)

# standalone_compile copies the graph unless it is given away; the argument exists since torch 2.13.
_DONATE: dict[str, Any] = (
    {"donate_graph_module": False} if "donate_graph_module" in inspect.signature(standalone_compile).parameters else {}
)


@dataclass(slots=True)
class Evidence:
    """What a build has really done so far. Filled by the backends and pieces, read by `Build.counts`."""

    graphs: int = 0
    pieces: int = 0
    distinct: set[str] = field(default_factory=set)
    compiles: int = 0
    partitions: int = 0
    """Parts that Inductor has made of a graph by itself; 0 where it makes none."""
    loaded: int = 0
    """Artefacts that came from a cache, compiled by something else."""
    modules: int = 0
    splitting_ops: list[str] = field(default_factory=list)
    captures: int = 0
    replays: int = 0
    compiled_calls: int = 0
    copied_inputs: dict[str, None] = field(default_factory=dict)
    moved_inputs: dict[str, None] = field(default_factory=dict)
    captured_ops: dict[str, None] = field(default_factory=dict)
    empty_pieces: list[str] = field(default_factory=list)
    mutated_inputs: dict[str, None] = field(default_factory=dict)
    captured_sizes: set[int] = field(default_factory=set)
    kernel_names: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    """Those of the first graph."""
    shape_guards: list[str] = field(default_factory=list)
    """Guards on shapes that are more than `size is not 1` or `two arguments have one size`."""


@dataclass(slots=True)
class Stage:
    """What the pieces have to know of the call that is under way. One per build, shared by all of its pieces."""

    pool: GraphPool
    frozen: Frozen
    size: int = 0
    padded_size: int = 0
    mode: str = "compiled"
    """`compiled` (no graphs), `capture` or `replay`."""
    weights: frozenset[int] = frozenset()
    """Addresses of the storages of weights and buffers, which are never poisoned."""
    warm: set[tuple[int, int]] = field(default_factory=set)
    """Compiled code, by identity, and sizes at which it has run: what it loads when first called is loaded."""
    poison: bool = False
    """Whether padding rows at the boundaries of pieces are overwritten with NaN before a piece reads them."""


def compile_counted(evidence: Evidence, compile_: Callable[[], Any]) -> Callable[..., Any]:
    """Runs one Inductor compilation, tallies it and what it generated, and tallies every call of its result."""
    before = _inductor_compilations()
    with generated_code(evidence):
        compiled = compile_()
    evidence.compiles += _inductor_compilations() > before
    return counted(evidence, compiled)


def _inductor_compilations() -> int:
    """How often Inductor has compiled a graph, or found one in its cache: each of these counters moves with no other."""
    return sum(value for name, value in counters["inductor"].items() if name.startswith("fxgraph_cache_")) + len(
        PyCodeCache.modules
    )


@contextmanager
def generated_code(evidence: Evidence) -> Iterator[None]:
    """Tallies the modules that Inductor generates meanwhile, and their kernels.

    Those are read from the code. `generated_kernel_count` of `torch._inductor.metrics` is no number of them on a CPU: it
    was 59 where ten were generated, and 31 for the same model with fusion off.
    """
    before = len(PyCodeCache.modules)
    yield
    for module in PyCodeCache.modules[before:]:
        evidence.modules += 1
        evidence.kernel_names += kernels_of(module)


def counted(evidence: Evidence, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled code with every call of it tallied."""

    def call(*arguments: Any) -> Any:
        evidence.compiled_calls += 1
        return compiled(*arguments)

    return call


class FullBackend:
    """Dynamo backend: the graph as it is, through Inductor."""

    def __init__(self, evidence: Evidence, splitting_ops: Sequence[str], layouts: list[Layout] | None = None) -> None:
        self._evidence, self._splitting_ops, self._layouts = evidence, frozenset(splitting_ops), layouts

    def __call__(self, graph_module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """The compiled graph."""
        evidence = self._evidence
        evidence.graphs += 1
        evidence.pieces += 1
        note_shape_guards(evidence)
        for node in graph_module.graph.nodes:
            evidence.splitting_ops += op_names(node)[-1:] if self._splitting_ops.intersection(op_names(node)) else ()
        as_traced = copy_graph(graph_module) if self._layouts is not None else graph_module
        ops, start = operations(graph_module.graph), time.perf_counter()
        compiled = compile_counted(evidence, lambda: compile_fx(graph_module, example_inputs))
        seconds = time.perf_counter() - start
        evidence.parts = evidence.parts or [Part(name="graph", compiled=True, ops=ops, compile_seconds=seconds)]
        if self._layouts is None:
            return compiled
        whole = Whole(compiled)
        sections = (Section("code", "the whole graph", (), as_traced, compiled),)
        self._layouts.append(Layout(as_traced, sections, whole, partial(compile_piece, evidence)))
        return whole


class PiecewiseBackend:
    """Dynamo backend: splits, compiles each distinct piece once, and puts a `Piece` in place of every one."""

    def __init__(
        self, evidence: Evidence, splitting_ops: Sequence[str], stage: Stage, layouts: list[Layout] | None = None
    ) -> None:
        self._evidence, self._splitting_ops, self._stage = evidence, tuple(splitting_ops), stage
        self._layouts = layouts

    def __call__(self, graph_module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """The split graph, whose generated Python is the dispatch between the pieces."""
        evidence = self._evidence
        evidence.graphs += 1
        note_shape_guards(evidence)
        split = split_graph(remember_names(graph_module), self._splitting_ops)
        compiled: dict[str, tuple[str, Callable[..., Any]]] = {}
        distinct: dict[str, list[str]] = {}
        sections: list[Section] = []
        fresh = _eager_results(split)
        position, parts = 0, []
        for segment in split.segments:
            module = getattr(split.module, segment.name)
            if not segment.is_piece:
                evidence.splitting_ops += segment.ops
                parts.append(Part(name=", ".join(segment.ops), compiled=False, ops=len(segment.ops)))
                sections.append(Section(segment.name, "/".join(segment.ops), segment.ops, module, None))
                continue
            label, key, seconds, differs = f"piece {position}", structural_key(module), 0.0, ""
            if key not in compiled:
                differs = _differs(structural_lines(module), distinct)
                distinct[label] = structural_lines(module)
                start = time.perf_counter()
                compiled[key] = label, compile_piece(evidence, module)
                seconds = time.perf_counter() - start
            first, code = compiled[key]
            parts.append(
                Part(
                    name=label,
                    compiled=True,
                    ops=operations(module.graph),
                    same_as=first if first != label else "",
                    compile_seconds=seconds,
                    differs=differs,
                )
            )
            evidence.pieces += 1
            evidence.distinct.add(key)
            evidence.captured_ops.update((f"{op} in {label}", None) for op in custom_ops(module.graph))
            evidence.empty_pieces += [label] if segment.is_free else []
            piece = Piece(label, code, module, fresh[segment.name], self._stage, evidence)
            sections.append(Section(segment.name, label, (), module, code))
            split.module.delete_submodule(segment.name)
            split.module.add_submodule(segment.name, piece)
            position += 1
        evidence.parts = evidence.parts or parts
        split.module.recompile()
        if self._layouts is not None:
            compile_more = partial(compile_piece, evidence)
            self._layouts.append(Layout(graph_module, tuple(sections), split.module, compile_more))
        return split.module


def compile_piece(evidence: Evidence, module: fx.GraphModule) -> Callable[..., Any]:
    """One graph through Inductor, for the symbolic sizes that its trace has left in it."""
    inputs = [node.meta["example_value"] for node in module.graph.find_nodes(op="placeholder")]
    return compile_counted(evidence, lambda: standalone_compile(module, inputs, dynamic_shapes="from_graph", **_DONATE))


def _differs(lines: Sequence[str], distinct: Mapping[str, Sequence[str]]) -> str:
    """Why a piece is not the same as the latest distinct one that calls the same ops; empty if there is none."""
    found = ((label, first_difference(lines, earlier)) for label, earlier in reversed(list(distinct.items())))
    return next((f"from {label} in {text}" for label, text in found if text), "")


def operations(graph: fx.Graph) -> int:
    """How many calls a graph makes."""
    return sum(node.op.startswith("call_") for node in graph.nodes)


def _eager_results(split: Split) -> dict[str, dict[str, str]]:
    """Per segment, the inputs that come out of eager segments, at a new address in every call, and from which op."""
    producer = {
        segment.name: "/".join(segment.ops) or "eager ops" for segment in split.segments if not segment.is_piece
    }
    found: dict[str, dict[str, str]] = {segment.name: {} for segment in split.segments}
    for node in split.module.graph.nodes:
        if node.op != "call_module" or node.target not in found:
            continue
        placeholders = getattr(split.module, node.target).graph.find_nodes(op="placeholder")
        for placeholder, argument in zip(placeholders, node.args, strict=True):
            source = argument
            while isinstance(source, fx.Node) and source.op == "call_function":
                source = source.args[0]
            if isinstance(source, fx.Node) and source.op == "call_module" and source.target in producer:
                found[node.target][placeholder.name] = producer[source.target]
    return found


class Piece(nn.Module):
    """A compiled piece in its place in the split graph: runs, captures or replays as the stage says."""

    def __init__(
        self,
        label: str,
        compiled: Callable[..., Any],
        module: fx.GraphModule,
        fresh: dict[str, str],
        stage: Stage,
        evidence: Evidence,
    ) -> None:
        super().__init__()
        placeholders = module.graph.find_nodes(op="placeholder")
        self._label, self._compiled, self._stage, self._evidence = label, compiled, stage, evidence
        self._names = [f"{label}, input {node.name}" for node in placeholders]
        self._rows = sized_placeholders(module)
        self._fresh = {index: fresh[node.name] for index, node in enumerate(placeholders) if node.name in fresh}
        self._places: dict[int, torch.Tensor] = {}
        self._graphs: dict[int, StaticGraph] = {}

    def forward(self, *arguments: Any) -> Any:
        """The piece's outputs."""
        stage = self._stage
        if stage.poison:
            poison_padding(stage, arguments, self._rows)
        if stage.mode == "compiled":
            return self._compiled(*arguments)
        if stage.mode == "capture":
            return self._capture(arguments)
        graph = self._graphs.get(stage.padded_size)
        if graph is None:  # traced again after capture: there is no graph for this code
            return self._compiled(*arguments)
        outputs, moved = graph.replay(arguments)
        self._evidence.replays += 1
        self._evidence.moved_inputs.update((line, None) for line in moved)
        return outputs

    def recorded(self, arguments: Sequence[Any]) -> Sequence[Any] | None:
        """Where the graph that the stage asks for reads its inputs, by position; None where no graph is replayed."""
        graph = self._graphs.get(self._stage.padded_size) if self._stage.mode == "replay" else None
        return None if graph is None else graph.recorded

    def _capture(self, arguments: Sequence[Any]) -> Any:
        copied = {}
        for index, op in self._fresh.items():
            if isinstance(arguments[index], torch.Tensor):
                copied[index] = self._buffer(index, arguments[index])
                self._evidence.copied_inputs[f"{self._names[index]} (from {op})"] = None
        size = self._stage.padded_size
        if (id(self._compiled), size) not in self._stage.warm:
            # Once for all layers that share the code: libraries choose kernels and load them at the first call of a shape.
            self._compiled(*arguments)
            self._stage.warm.add((id(self._compiled), size))
        self._graphs[size], outputs = capture(
            self._stage.pool,
            self._compiled,
            arguments,
            names=[f"{name}, size {size}" for name in self._names],
            copied=copied,
            frozen=self._stage.frozen,
        )
        self._evidence.captures += 1
        self._evidence.captured_sizes.add(size)
        return outputs

    def _buffer(self, index: int, like: torch.Tensor) -> torch.Tensor:
        """A static place for one input, shared by all sizes: sizes are never in flight together, the largest is first."""
        extent = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
        held = self._places.get(index)
        if held is None or held.numel() < extent:
            held = self._places[index] = torch.zeros(extent, dtype=like.dtype, device=like.device)
        return held.as_strided(like.shape, like.stride())
