"""Engines with one fault at one place: `native@scaled@silu`, `vllm@rounded@linear_1`, `native@stale@1` (ENGINE@KIND@PLACE).

`scaled`, `rounded` and `shifted` change what the op of that name (in the traced graph) gives in compiled code; `stale`
captures an input of the piece of that number elsewhere; `swapped` calls a piece with two operands exchanged; `op` makes
the splitting op of that number wrong; `skipped` hands on an input of the piece for its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_piecewise.engines import Build, Request
from pytest_piecewise.hooks import find_engine, hookimpl
from pytest_piecewise.records import Case


class Placed:
    """An engine that is right but for one place in what it builds other than eagerly."""

    segmented = True
    variants = ("eager", "piecewise")

    def __init__(self, name: str) -> None:
        self.name = name
        engine, self._kind, self._place = name.split("@")
        self._engine = find_engine(engine)
        self.preload = self._engine.preload

    def unsupported(self, case: Case) -> str | None:
        return self._engine.unsupported(case)

    def environ(self, case: Case) -> Mapping[str, str]:
        return self._engine.environ(case)

    def build(self, request: Request) -> Build:
        if request.variant != "eager":
            KINDS[self._kind](self._place)
        return self._engine.build(request)


def on_op(change: Callable[[Any], Any]) -> Callable[[str], None]:
    """Plants `change` behind an op, in every graph with it that Inductor is given."""

    def plant(name: str) -> None:
        import torch._inductor
        from torch import fx

        from pytest_piecewise.engines import pieces
        from pytest_piecewise.engines.layout import TRACED_AS, copy_graph

        original = torch._inductor.standalone_compile

        def compiling(graph: fx.GraphModule, *arguments: Any, **options: Any) -> Any:
            changed = copy_graph(graph)
            for node in list(changed.graph.nodes):
                if node.meta.get(TRACED_AS) == name and node.op.startswith("call_"):
                    with changed.graph.inserting_after(node):
                        after = changed.graph.call_function(change, (node,))
                    after.meta = {key: value for key, value in node.meta.items() if key != TRACED_AS}
                    node.replace_all_uses_with(after, delete_user_cb=lambda user, after=after: user is not after)
            changed.recompile()
            return original(changed, *arguments, **options)

        torch._inductor.standalone_compile = compiling
        pieces.standalone_compile = compiling

    return plant


def scaled(value: Any) -> Any:
    return value * 1.01


def rounded(value: Any) -> Any:
    import torch

    return value.to(torch.float8_e4m3fn).to(value.dtype) if value.dtype != torch.float32 else value.half().float()


def shifted(value: Any) -> Any:
    return value.flip(-1)


def stale(number: str) -> None:
    """The first input of the piece that is not a weight is captured in a place that no later call writes."""
    from pytest_piecewise.engines.pieces import Piece

    capture = Piece._capture

    def capturing(piece: Any, arguments: Any) -> Any:
        given = list(arguments)
        if piece._label == f"piece {number}":
            index = next(i for i in piece._rows if given[i].is_floating_point())
            given[index] = given[index].clone()
        return capture(piece, given)

    Piece._capture = capturing


def swapped(number: str) -> None:
    """The piece is called with two operands of one shape exchanged."""
    from pytest_piecewise.engines import pieces

    split_graph = pieces.split_graph

    def splitting(graph: Any, ops: Any) -> Any:
        split = split_graph(graph, ops)
        names = [segment.name for segment in split.segments if segment.is_piece]
        node = next(node for node in split.module.graph.nodes if node.target == names[int(number)])
        seen: dict[str, int] = {}
        arguments = list(node.args)
        for index, argument in enumerate(node.args):
            value = argument.meta.get("example_value")
            other = seen.setdefault(
                f"{getattr(value, 'dtype', '')} {tuple(map(str, getattr(value, 'shape', ())))}", index
            )
            if other != index and getattr(value, "is_floating_point", bool)():
                arguments[index], arguments[other] = arguments[other], arguments[index]
                break
        node.args = tuple(arguments)
        split.module.recompile()
        return split

    pieces.split_graph = splitting


def op(number: str) -> None:
    """The splitting op of that number writes one percent too much."""
    from pytest_piecewise.engines import pieces

    split_graph = pieces.split_graph

    def splitting(graph: Any, ops: Any) -> Any:
        split = split_graph(graph, ops)
        names = [segment.name for segment in split.segments if not segment.is_piece]
        module = getattr(split.module, names[int(number)])
        getattr(module, "real_recompile", lambda: None)()
        forward = module.forward

        def wrong(*arguments: Any) -> Any:
            outputs = forward(*arguments)
            arguments[-1].mul_(1.01)
            return outputs

        module.forward = wrong
        return split

    pieces.split_graph = splitting


def skipped(number: str) -> None:
    """The piece is not computed: its first output of a shape that came in is what came in."""
    from pytest_piecewise.engines.pieces import Piece

    forward = Piece.forward

    def running(piece: Any, *arguments: Any) -> Any:
        outputs = list(forward(piece, *arguments))
        if piece._label == f"piece {number}":
            shapes = [(i, a) for i, o in enumerate(outputs) for a in arguments
                      if getattr(a, "shape", None) == o.shape and a.dtype == o.dtype]  # fmt: skip
            index, value = shapes[0]
            outputs[index] = value.clone()
        return outputs

    Piece.forward = running


KINDS: Mapping[str, Callable[[str], None]] = {
    "scaled": on_op(scaled),
    "rounded": on_op(rounded),
    "shifted": on_op(shifted),
    "stale": stale,
    "swapped": swapped,
    "op": op,
    "skipped": skipped,
}


@hookimpl
def piecewise_engine(name: str) -> Placed | None:
    return Placed(name) if name.count("@") == 2 else None
