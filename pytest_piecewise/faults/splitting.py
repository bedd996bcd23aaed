"""SPLIT: the graph is cut in the wrong places, or put together wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_piecewise.faults.catalogue import PIECES, SPLIT, TWINS, fault
from pytest_piecewise.faults.plant import Plant


@fault("SPLIT", "vllm#53030", "splitting_ops", "bits_graphs", "pieces", needs=(SPLIT,))
def nothing_split(plant: Plant) -> None:
    """The list of splitting ops arrives empty: attention is captured inside one large piece."""

    @plant.wrap("engines.pieces.split_graph")
    def split_graph(original: Any, graph_module: Any, splitting_ops: Any) -> Any:
        plant.note(bool(splitting_ops))
        return original(graph_module, ())


@fault("SPLIT", "local-inference-lab/vllm#600", "splitting_ops", "bits_graphs", needs=(SPLIT, PIECES))
def last_op_captured(plant: Plant) -> None:
    """One call of a splitting op, the last, ends up inside a captured piece; the others are split off as they should be."""

    @plant.wrap("split._group")
    def group(original: Any, graph: Any, splitting_ops: Any) -> Any:
        groups = original(graph, splitting_ops)
        eager = [index for index, item in enumerate(groups) if item.ops]
        if len(eager) > 1 or (eager and len(groups) > 2):
            last = eager[-1]
            plant.note()
            for item in groups[last : last + 2]:
                groups[last - 1].nodes += item.nodes
            del groups[last : last + 2]
        return groups


@fault("SPLIT", "vllm#28044", "pieces", "captures")
def empty_piece(plant: Plant) -> None:
    """A segment that only allocates or makes views is captured as a piece of its own: an empty graph."""

    @plant.wrap("split._merge_free")
    def merge_free(original: Any, groups: Any) -> Any:
        number = len(groups)
        merged = original([type(group)(list(group.nodes), list(group.ops)) for group in groups])
        plant.note(len(merged) < number)
        return groups


@fault("SPLIT", "pytorch#127821", "equivalence", "bits_full", "build")
def order_lost(plant: Plant) -> None:
    """The splitter reorders ops round one that writes into its argument, as `split_module` does when not told otherwise."""

    @plant.wrap("split.split_module")
    def split_module(original: Any, module: Any, root: Any, number: Any, **options: Any) -> Any:
        kept = original(module, root, number, **options)
        lost = original(module, root, number, **(options | {"keep_original_order": False}))
        plant.note(_order(kept) != _order(lost))
        return lost


def _order(module: Any) -> list[str]:
    return [node.target for node in module.graph.nodes if node.op == "call_module"]


def _calls(split: Any) -> Iterator[Any]:
    pieces = {segment.name for segment in split.segments if segment.is_piece}
    return (node for node in split.module.graph.nodes if node.op == "call_module" and node.target in pieces)


@fault("SPLIT", "vllm#28759", "equivalence", "bits_full", needs=(TWINS,))
def layers_swapped(plant: Plant) -> None:
    """Two pieces of one shape change places: each layer computes with the weights of the other."""

    @plant.wrap("engines.pieces.split_graph")
    def split_graph(original: Any, graph_module: Any, splitting_ops: Any) -> Any:
        from pytest_piecewise.split import structural_key  # torch, only in the process that builds

        split = original(graph_module, splitting_ops)
        seen: dict[str, Any] = {}
        for node in _calls(split):
            other = seen.setdefault(structural_key(getattr(split.module, node.target)), node)
            if other is not node:
                _swap_weights(plant, node, other)
                split.module.recompile()
                break
        return split


def _swap_weights(plant: Plant, node: Any, other: Any) -> None:
    first, second = list(node.args), list(other.args)
    for index, (mine, its) in enumerate(zip(node.args, other.args, strict=True)):
        if mine.op == its.op == "placeholder" and mine is not its:
            first[index], second[index] = its, mine
            plant.note()
    node.args, other.args = tuple(first), tuple(second)


@fault("SPLIT", "vllm#37361", "equivalence", "bits_full")
def operands_swapped(plant: Plant) -> None:
    """A piece is wired to the wrong one of two tensors of the same shape."""

    @plant.wrap("engines.pieces.split_graph")
    def split_graph(original: Any, graph_module: Any, splitting_ops: Any) -> Any:
        split = original(graph_module, splitting_ops)
        for node in _calls(split):
            shapes: dict[str, int] = {}
            for index, argument in enumerate(node.args):
                value = argument.meta.get("example_value")
                if not hasattr(value, "is_floating_point") or not value.is_floating_point():
                    continue
                other = shapes.setdefault(f"{value.dtype} {tuple(map(str, value.shape))}", index)
                if other != index and node.args[other] is not argument:
                    arguments = list(node.args)
                    arguments[index], arguments[other] = arguments[other], arguments[index]
                    node.args = tuple(arguments)
                    split.module.recompile()
                    plant.note()
                    return split
        return split


@fault("SPLIT", "sglang#23468", "equivalence", "bits_full", needs=(PIECES,))
def piece_skipped(plant: Plant) -> None:
    """A piece in the middle is not computed: its first output is what came in, where the shapes allow it."""
    skipped: list[str] = []

    @plant.wrap("engines.pieces.Piece.forward")
    def forward(original: Any, piece: Any, *arguments: Any) -> Any:
        outputs = original(piece, *arguments)
        own = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        if skipped and piece._label != skipped[0]:
            return outputs
        for index, output in enumerate(own):
            like = [value for value in arguments if _alike(value, output)]
            if like and plant.differs(output, like[0]):
                plant.note()
                skipped[:] = [piece._label]
                own[index] = like[0].clone()
                return type(outputs)(own) if isinstance(outputs, (tuple, list)) else own[0]
        return outputs


def _alike(value: Any, output: Any) -> bool:
    if not hasattr(value, "is_floating_point") or not hasattr(output, "is_floating_point"):
        return False
    return bool(output.is_floating_point()) and (value.shape, value.dtype) == (output.shape, output.dtype)
