"""Real Dynamo graphs, split at custom ops: what becomes a piece, in which order, and which pieces are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.passes.split_module import split_module

from pytest_piecewise.split import (
    Split,
    custom_ops,
    first_difference,
    is_builtin,
    op_names,
    split_graph,
    structural_key,
    structural_lines,
)

ATTENTION, WRITE, PAIR = "splittest::attention", "splittest::write", "splittest::pair"


@torch.library.custom_op(ATTENTION, mutates_args=())
def attention(x: Tensor) -> Tensor:
    return x.flip(0)


@attention.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op(WRITE, mutates_args=("out",))
def write(x: Tensor, out: Tensor) -> None:
    out.copy_(x * 2)


@torch.library.custom_op(PAIR, mutates_args=())
def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x - 1


@pair.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("splittest2::attention", mutates_args=())
def other_attention(x: Tensor) -> Tensor:
    return x.clone()


@other_attention.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


X = torch.arange(12.0).reshape(4, 3)


def trace(function: Callable[..., Any], *arguments: Any, dynamic: bool = False) -> fx.GraphModule:
    """The graph that Dynamo hands to a backend."""
    torch._dynamo.reset()
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compile(function, backend=keep, fullgraph=True, dynamic=dynamic)(*arguments)
    return graphs[0]


def shape_of(split: Split) -> list[str | tuple[str, ...]]:
    """Segments in order: `piece`, or the ops of a splitting segment."""
    return ["piece" if segment.is_piece else segment.ops for segment in split.segments]


def run(split: Split, *arguments: Any) -> Tensor:
    result: Tensor = split.module(*arguments)[0]
    return result


def call_overload(x: Tensor) -> Tensor:
    return torch.ops.splittest.attention.default(x.sin()).cos()


def call_packet(x: Tensor) -> Tensor:
    return torch.ops.splittest.attention(x.sin()).cos()


def call_definition(x: Tensor) -> Tensor:
    return attention(x.sin()).cos()


@pytest.mark.parametrize("declared", [ATTENTION, f"{ATTENTION}.default"])
@pytest.mark.parametrize("function", [call_overload, call_packet, call_definition])
def test_op_is_found_however_it_is_called_and_declared(function: Callable[[Tensor], Tensor], declared: str) -> None:
    split = split_graph(trace(function, X), (declared,))
    assert shape_of(split) == ["piece", (ATTENTION,), "piece"]
    assert torch.equal(run(split, X), X.sin().flip(0).cos())


def test_names_of_overload_and_packet() -> None:
    graph = trace(call_overload, X)
    names = [op_names(node) for node in graph.graph.nodes if op_names(node)]
    assert names == [(f"{ATTENTION}.default", ATTENTION)]
    packets = [node for node in trace(call_packet, X).graph.nodes if op_names(node)]
    assert isinstance(packets[0].target, torch._ops.OpOverloadPacket)
    assert op_names(packets[0])[-1] == ATTENTION


def test_op_of_another_namespace_or_overload_does_not_split() -> None:
    graph = trace(call_overload, X)
    for declared in ("splittest2::attention", "splittest::attention.out", "attention"):
        assert shape_of(split_graph(graph, (declared,))) == ["piece"]


def test_op_declared_by_both_of_its_names_counts_once() -> None:
    split = split_graph(trace(call_overload, X), (ATTENTION, f"{ATTENTION}.default"))
    assert shape_of(split) == ["piece", (ATTENTION,), "piece"]


def test_without_splitting_ops_everything_is_one_piece() -> None:
    split = split_graph(trace(call_overload, X), ())
    assert shape_of(split) == ["piece"]
    assert torch.equal(run(split, X), X.sin().flip(0).cos())


def test_consecutive_ops_share_a_segment() -> None:
    split = split_graph(trace(lambda x: attention(attention(x.sin())).cos(), X), (ATTENTION,))
    assert shape_of(split) == ["piece", (ATTENTION, ATTENTION), "piece"]


def test_two_different_ops_in_a_row_share_a_segment_and_are_both_named() -> None:
    split = split_graph(
        trace(lambda x: other_attention(attention(x.sin())).cos(), X), (ATTENTION, "splittest2::attention")
    )
    assert shape_of(split) == ["piece", (ATTENTION, "splittest2::attention"), "piece"]


def test_graph_may_begin_and_end_with_splitting_ops() -> None:
    split = split_graph(trace(lambda x: attention(attention(x).sin()), X), (ATTENTION,))
    assert shape_of(split) == [(ATTENTION,), "piece", (ATTENTION,)]


def layers(x: Tensor) -> Tensor:
    for _ in range(3):
        x = attention(x.sin() * 2).cos()
    return x


def test_layers_alternate_and_give_the_result_of_the_whole() -> None:
    split = split_graph(trace(layers, X), (ATTENTION,))
    assert shape_of(split) == ["piece", (ATTENTION,)] * 3 + ["piece"]
    assert torch.equal(run(split, X), layers(X))


def test_segments_are_listed_in_the_order_in_which_the_module_calls_them() -> None:
    split = split_graph(trace(layers, X), (ATTENTION,))
    called = [node.target for node in split.module.graph.nodes if node.op == "call_module"]
    assert called == [segment.name for segment in split.segments]


def test_tuple_result_stays_with_its_producer() -> None:
    def function(x: Tensor) -> Tensor:
        first, second = pair(x.sin())
        return first.cos() * second

    split = split_graph(trace(function, X), (PAIR,))
    assert shape_of(split) == ["piece", (PAIR,), "piece"]
    assert torch.equal(run(split, X), function(X))
    middle = getattr(split.module, split.segments[1].name)
    taken = [node for node in middle.graph.nodes if "getitem" in str(node.target)]
    assert len(taken) == 2
    # A tuple may not cross a boundary: pieces take tensors and sizes only.
    for segment in split.segments:
        placeholders = getattr(split.module, segment.name).graph.find_nodes(op="placeholder")
        assert all(isinstance(node.meta["example_value"], Tensor) for node in placeholders)


def test_tuple_result_stays_with_its_producer_when_taken_apart_late() -> None:
    def function(x: Tensor) -> Tensor:
        both = pair(x.sin())
        x = attention(x.cos())
        return both[0] * x + both[1]

    split = split_graph(trace(function, X), (PAIR, ATTENTION))
    assert torch.equal(run(split, X), function(X))
    for segment in split.segments:
        placeholders = getattr(split.module, segment.name).graph.find_nodes(op="placeholder")
        assert all(isinstance(node.meta["example_value"], Tensor) for node in placeholders)


FREE_BETWEEN: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("view", lambda x: attention(attention(x.sin()).view(3, 4)).cos()),
    ("transpose", lambda x: attention(attention(x.sin()).transpose(0, 1)).cos()),
    ("unsqueeze", lambda x: attention(attention(x.sin()).unsqueeze(0)).cos()),
    ("size", lambda x: attention(attention(x.sin()).view(x.shape[0] * x.shape[1])).cos()),
    ("chunk", lambda x: attention(attention(x.sin()).chunk(2)[0]).cos()),
    ("empty", lambda x: attention(attention(x.sin())[:1]).cos() + torch.empty_like(x)[:1] * 0),
]


@pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in FREE_BETWEEN])
def test_nothing_but_views_between_two_ops_is_no_piece(function: Callable[[Tensor], Tensor]) -> None:
    split = split_graph(trace(function, X), (ATTENTION,))
    assert shape_of(split) == ["piece", (ATTENTION, ATTENTION), "piece"]
    assert not any(segment.is_free for segment in split.segments if segment.is_piece)


def test_arithmetic_on_sizes_alone_is_no_piece() -> None:
    def function(x: Tensor) -> Tensor:
        rows = x.shape[0]
        return attention(attention(x.sin()).view(rows * 3 + 0)).cos()

    split = split_graph(trace(function, X, dynamic=True), (ATTENTION,))
    assert shape_of(split) == ["piece", (ATTENTION, ATTENTION), "piece"]


@pytest.mark.parametrize(
    "function",
    [lambda x: attention(attention(x.sin()) + 1).cos(), lambda x: attention(attention(x.sin()) * x).cos()],
    ids=["add", "mul"],
)
def test_arithmetic_on_tensors_between_two_ops_is_a_piece(function: Callable[[Tensor], Tensor]) -> None:
    split = split_graph(trace(function, X), (ATTENTION,))
    assert shape_of(split) == ["piece", (ATTENTION,), "piece", (ATTENTION,), "piece"]
    assert torch.equal(run(split, X), function(X))


def test_graph_of_views_alone_is_a_free_piece() -> None:
    split = split_graph(trace(lambda x: x.view(12), X), (ATTENTION,))
    assert [(segment.is_piece, segment.is_free) for segment in split.segments] == [(True, True)]


def mutating(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    y = x.sin()
    write(y, out)
    first = out.clone()
    write(first, out)
    return out.cos() + first


def test_order_is_kept_round_an_op_that_writes_into_its_argument() -> None:
    split = split_graph(trace(mutating, X), (WRITE,))
    assert shape_of(split) == ["piece", (WRITE,), "piece", (WRITE,), "piece"]
    assert torch.equal(run(split, X), mutating(X))


def test_without_the_original_order_the_result_would_be_wrong() -> None:
    # Proof that the test above can fail: the same partition, as split_module would order it by itself.
    split = split_graph(trace(mutating, X), (WRITE,))
    segments = [getattr(split.module, segment.name) for segment in split.segments]
    sizes = [sum(node.op not in ("placeholder", "output") for node in segment.graph.nodes) for segment in segments]
    graph = trace(mutating, X)
    nodes = [node for node in graph.graph.nodes if node.op not in ("placeholder", "output")]
    number = dict(zip(nodes, [index for index, size in enumerate(sizes) for _ in range(size)], strict=True))
    reordered = split_module(graph, None, lambda node: number[node], keep_original_order=False)  # type: ignore[arg-type]
    assert not torch.equal(reordered(X)[0], mutating(X))


def test_custom_ops_are_named_once_and_torchs_own_not_at_all() -> None:
    graph = trace(lambda x: torch.ops.aten.sin(attention(attention(x)).cos()), X)
    assert custom_ops(graph.graph) == (ATTENTION,)


@pytest.mark.parametrize(
    ("name", "builtin"), [("aten::mm", True), ("prims::sin", True), (ATTENTION, False), ("atenx::mm", False)]
)
def test_builtin_ops_are_known_by_their_namespace(name: str, builtin: bool) -> None:
    assert is_builtin(name) is builtin


def keys(function: Callable[..., Any], *arguments: Any, dynamic: bool = False) -> list[str]:
    split = split_graph(trace(function, *arguments, dynamic=dynamic), (ATTENTION,))
    return [structural_key(getattr(split.module, segment.name)) for segment in split.segments if segment.is_piece]


@pytest.mark.parametrize("dynamic", [False, True])
def test_equal_layers_have_one_key(dynamic: bool) -> None:
    first, second, third, last = keys(layers, X, dynamic=dynamic)
    assert second == third
    assert len({first, second, last}) == 3


def test_layers_of_a_module_with_weights_of_their_own_have_one_key() -> None:
    modules = torch.nn.ModuleList(torch.nn.Linear(3, 3, bias=False) for _ in range(3))

    def function(x: Tensor) -> Tensor:
        for module in modules:
            x = attention(module(x).relu())
        return x.sin()

    with torch.no_grad():
        found = keys(function, X)
    assert len(found) == 4
    assert len(set(found[:3])) == 1


def scaled(x: Tensor, factor: Any) -> Tensor:
    return x.sin() * factor


DIFFERENT: list[tuple[str, Callable[[Tensor], Any], Callable[[Tensor], Any], Tensor, Tensor]] = [
    ("constant", lambda x: x.sin() * 2.0, lambda x: x.sin() * 2.5, X, X),
    ("kind of constant", lambda x: x.sin() * 2.0, lambda x: x.sin() * 2, X, X),
    ("sign of zero", lambda x: x.sin() + 0.0, lambda x: x.sin() + -0.0, X, X),
    ("op", lambda x: x.sin(), lambda x: x.cos(), X, X),
    ("namespace", lambda x: attention(x).sin(), lambda x: other_attention(x).sin(), X, X),
    ("wiring", lambda x: x.sin() - x.cos(), lambda x: x.cos() - x.sin(), X, X),
    ("order of operands", lambda x: x.sin() - x, lambda x: x - x.sin(), X, X),
    ("keyword", lambda x: x.sum(0, keepdim=True), lambda x: x.sum(0, keepdim=False), X, X),
    ("dtype argument", lambda x: x.to(torch.float64), lambda x: x.to(torch.bfloat16), X, X),
    ("outputs", lambda x: (x.sin(), x.cos()), lambda x: (x.cos(), x.sin()), X, X),
    ("shape", torch.sin, torch.sin, X, X[:2].clone()),
    ("stride", torch.sin, torch.sin, X, X.t().contiguous().t()),
    ("dtype", torch.sin, torch.sin, X, X.double()),
    ("rank", torch.sin, torch.sin, X, X.reshape(4, 3, 1)),
]


@pytest.mark.parametrize(("first", "second", "x", "y"), [pytest.param(*case, id=name) for name, *case in DIFFERENT])
def test_different_pieces_have_different_keys(
    first: Callable[[Tensor], Any], second: Callable[[Tensor], Any], x: Tensor, y: Tensor
) -> None:
    def key(function: Callable[[Tensor], Any], argument: Tensor) -> str:
        split = split_graph(trace(function, argument), ())
        return structural_key(getattr(split.module, split.segments[0].name))

    assert key(first, x) == key(first, x)
    assert key(first, x) != key(second, y)


def graph_with_attribute(value: Any, name: str = "held") -> fx.GraphModule:
    """What Dynamo leaves for a constant tensor: an attribute of the graph, read by get_attr."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = X
    held = graph.get_attr(name)
    graph.output((graph.call_function(torch.mul, (x, held)),))
    root = torch.nn.Module()
    root.register_buffer(name, value)
    return fx.GraphModule(root, graph)


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.0, 2.0, 3.5]),
        torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
        torch.tensor([[1.0, 2.0, 3.0]]),
        torch.tensor([1.0, 2.0, float("nan")]),
        torch.tensor([True, False, True]),
        torch.tensor(1.0),
        torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16),
    ],
    ids=["value", "dtype", "shape", "nan", "bool", "scalar", "bfloat16"],
)
def test_tensors_that_the_graph_holds_count_by_their_bytes(value: Tensor) -> None:
    held = torch.tensor([1.0, 2.0, 3.0])
    assert structural_key(graph_with_attribute(held)) == structural_key(graph_with_attribute(held.clone(), "renamed"))
    assert structural_key(graph_with_attribute(held)) != structural_key(graph_with_attribute(value))
    assert structural_key(graph_with_attribute(value)) == structural_key(graph_with_attribute(value.clone()))


def test_attribute_that_is_not_contiguous_counts_by_its_values() -> None:
    held = torch.arange(9.0).reshape(3, 3)
    same_layout = torch.arange(9.0).reshape(3, 3)
    same_layout[2, 0] += 1
    assert structural_key(graph_with_attribute(held.t())) != structural_key(graph_with_attribute(same_layout.t()))
    assert structural_key(graph_with_attribute(held.t())) != structural_key(graph_with_attribute(held.t().contiguous()))


def test_nested_graphs_count_by_their_own_key() -> None:
    def key(factor: float) -> str:
        inner = trace(lambda x: x.sin() * factor, X)
        outer = fx.Graph()
        x = outer.placeholder("x")
        x.meta["example_value"] = X
        outer.output((outer.call_function(torch.ops.higher_order.cond, (True, outer.get_attr("body"), x)),))
        root = torch.nn.Module()
        root.body = inner
        return structural_key(fx.GraphModule(root, outer))

    assert key(2.0) == key(2.0)
    assert key(2.0) != key(3.0)


def test_symbolic_size_is_no_constant() -> None:
    # One compiled artefact serves all sizes, so that the key must not depend on the size of the example.
    def function(x: Tensor) -> Tensor:
        return attention(x.sin()).cos().reshape(x.shape[0] * 3)

    assert keys(function, X, dynamic=True) == keys(function, torch.randn(7, 3), dynamic=True)


# What keeps two pieces apart


def lines_of(function: Callable[..., Tensor]) -> list[str]:
    return structural_lines(fx.symbolic_trace(function))


def test_first_difference_is_the_constant_that_keeps_two_pieces_apart() -> None:
    first = lines_of(lambda x: torch.clamp(x.sin(), 0.5, 1.0))
    second = lines_of(lambda x: torch.clamp(x.sin(), 0.5, 2.0))
    assert first_difference(second, first) == "torch.clamp: 2.0 where that has 1.0"


def test_first_difference_is_the_wiring_where_only_that_differs() -> None:
    first = lines_of(lambda x, y: torch.sub(x.sin(), y))
    second = lines_of(lambda x, y: torch.sub(y, x.sin()))
    assert first_difference(first, second).startswith("torch.sub: '%2' where that has '%1'")


def test_equal_pieces_and_pieces_of_other_ops_have_no_first_difference() -> None:
    one = lines_of(lambda x: x.sin() + 1)
    assert first_difference(one, one) == ""
    assert first_difference(one, lines_of(lambda x: x.cos() + 1)) == ""
    assert first_difference(one, lines_of(lambda x: x.sin() + 1 + 1)) == ""
