"""FALLBACK: what should have been compiled or replayed is silently not."""

from __future__ import annotations

from typing import Any

from pytest_piecewise.faults.catalogue import COMPILED, SPLIT, fault
from pytest_piecewise.faults.plant import Plant


@fault("FALLBACK", "vllm#54957", "compiles", "executed", variants=COMPILED)
def backend_gives_up(plant: Plant) -> None:
    """The backend hands back the graph as it is, uncompiled."""

    @plant.wrap("engines.pieces.compile_fx")
    def compile_fx(original: Any, graph: Any, inputs: Any) -> Any:
        plant.note()
        return graph.forward

    @plant.wrap("engines.pieces.standalone_compile")
    def standalone_compile(original: Any, graph: Any, inputs: Any, **options: Any) -> Any:
        plant.note()
        return graph.forward


@fault("FALLBACK", "vllm#23739", "graphs", "executed", "build", variants=COMPILED)
def compilation_disabled(plant: Plant) -> None:
    """The model is never given to the compiler: a decorator was commented out."""

    @plant.wrap("engines.builds.compile_dynamic")
    def compile_dynamic(original: Any, module: Any, *more: Any) -> Any:
        plant.note()
        return module


@fault("FALLBACK", "vllm#27178", "executed", "replays", variants=COMPILED)
def eager_after_limit(plant: Plant) -> None:
    """After a number of calls, as when the recompile limit is reached, the model runs eagerly without a word."""

    @plant.wrap("engines.builds.compile_dynamic")
    def compile_dynamic(original: Any, module: Any, *more: Any) -> Any:
        compiled = original(module, *more)
        calls: list[None] = []

        def call(*arguments: Any) -> Any:
            calls.append(None)
            if len(calls) <= 2 * len(plant.request.model.capture_sizes) + 4:
                return compiled(*arguments)
            plant.note()
            return module(*arguments)

        return call


@fault("FALLBACK", "PriorLabs/TabPFN#1166", "graph_breaks", "graphs", variants=("full",), cached=False)
def graph_broken(plant: Plant) -> None:
    """Something in the model breaks the graph."""

    @plant.wrap("engines.builds.make_module")
    def make_module(original: Any, *arguments: Any) -> Any:
        import torch  # only in the process that builds

        module = original(*arguments)
        forward = module.forward

        def broken(*inputs: Any) -> Any:
            torch._dynamo.graph_break()
            return forward(*inputs)

        module.forward = broken
        plant.note()
        return module


@fault("FALLBACK", "sglang#23468", "compiles", needs=(SPLIT,))
def one_piece_eager(plant: Plant) -> None:
    """The compiler refuses one piece, which then runs as it is."""
    refused: list[Any] = []

    @plant.wrap("engines.pieces.standalone_compile")
    def standalone_compile(original: Any, graph: Any, inputs: Any, **options: Any) -> Any:
        if refused:
            return original(graph, inputs, **options)
        refused.append(graph)
        plant.note()
        return graph.forward


@fault("FALLBACK", "pytorch#132714", "replays", "captures")
def graphs_skipped(plant: Plant) -> None:
    """Capture is skipped altogether, as for mutated inputs: every call runs compiled code without graphs."""

    @plant.wrap("engines.pieces.Piece._capture")
    def _capture(original: Any, piece: Any, arguments: Any) -> Any:
        plant.note()
        return piece._compiled(*arguments)
