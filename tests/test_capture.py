"""The contract of a recorded call, which is that of a CUDA graph; on a GPU the same tests run with CUDA graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_piecewise.capture import GraphPool, StaticGraph, capture

DEVICES = (
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def record(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    copied: dict[int, Tensor] | None = None,
    frozen: Callable[[], Any] = nullcontext,
    pool: GraphPool | None = None,
) -> tuple[StaticGraph, Any]:
    device = next(argument.device for argument in arguments if isinstance(argument, Tensor))
    pool = pool or GraphPool(device)
    with torch.no_grad(), pool.capturing():
        function(*arguments)  # a first call may allocate workspaces, which a CUDA graph must not
        return capture(
            pool,
            function,
            arguments,
            names=[f"input {index}" for index in range(len(arguments))],
            copied=copied or {},
            frozen=frozen,
        )


def ones(device: torch.device, value: float = 1.0) -> Tensor:
    return torch.full((4,), value, device=device)


def double(x: Tensor) -> tuple[Tensor]:
    return (x * 2,)


def test_replay_reads_what_lies_in_the_recorded_tensor(device: torch.device) -> None:
    x = ones(device)
    graph, _ = record(double, (x,))
    x.fill_(5)
    (output,), moved = graph.replay((x,))
    assert output.tolist() == [10.0] * 4
    assert moved == []


def test_replay_reads_the_recorded_tensor_even_if_it_is_given_another(device: torch.device) -> None:
    x, other = ones(device), ones(device, 7)
    graph, _ = record(double, (x,))
    (output,), _ = graph.replay((other,))
    assert output.tolist() == [2.0] * 4  # stale, as on a GPU: this is what the recorded graph has to reproduce


def test_moved_input_is_named_with_both_addresses(device: torch.device) -> None:
    x, weight, other = ones(device), ones(device), ones(device, 7)
    graph, _ = record(lambda x, weight: (x * weight,), (x, weight))
    _, moved = graph.replay((x, other))
    assert moved == [f"input 1: recorded at {hex(weight.data_ptr())}, now at {hex(other.data_ptr())}"]
    assert graph.replay((x, weight))[1] == []


def test_view_at_another_offset_has_moved(device: torch.device) -> None:
    base = torch.arange(8.0, device=device)
    graph, _ = record(double, (base[:4],))
    _, moved = graph.replay((base[4:],))
    assert len(moved) == 1
    assert moved[0].startswith("input 0: recorded at ")


def test_recorded_graph_holds_its_tensors() -> None:
    # On a CPU it must: what it reads would otherwise be freed memory, and the crash nobody's fault.
    x = ones(torch.device("cpu"))
    place = x.data_ptr()
    graph, _ = record(double, (x,))
    del x
    others = [ones(torch.device("cpu"), 5) for _ in range(20)]
    assert place not in [other.data_ptr() for other in others]
    (output,), _ = graph.replay((ones(torch.device("cpu"), 3),))
    assert output.tolist() == [2.0] * 4


def test_replay_reads_the_old_memory_of_a_tensor_that_was_given_new(device: torch.device) -> None:
    weight = torch.nn.Parameter(ones(device), requires_grad=False)
    graph, _ = record(double, (weight,))
    old = weight.data
    weight.data = ones(device, 7)
    (output,), moved = graph.replay((weight,))
    assert output.tolist() == [2.0] * 4
    assert old.tolist() == [1.0] * 4
    assert len(moved) == 1


def test_number_that_differs_from_the_recorded_one_is_named(device: torch.device) -> None:
    x = ones(device)
    graph, _ = record(lambda x, factor: (x * factor,), (x, 3))
    (output,), moved = graph.replay((x, 4))
    assert output.tolist() == [3.0] * 4
    assert moved == ["input 1: recorded at value 3, now at value 4"]


@pytest.mark.parametrize("same", [float("nan"), [torch.zeros(2)]], ids=["nan", "tensors"])
def test_value_that_cannot_be_compared_has_not_moved(device: torch.device, same: Any) -> None:
    x = ones(device)
    graph, _ = record(lambda x, _: (x * 2,), (x, same))
    assert graph.replay((x, copy.deepcopy(same)))[1] == []


def test_outputs_of_the_capture_itself_are_computed(device: torch.device) -> None:
    x = ones(device)
    _, (output,) = record(lambda x: (x * 2,), (x,))
    assert output.tolist() == [2.0] * 4


def test_none_is_no_input_that_could_move(device: torch.device) -> None:
    x = ones(device)
    graph, _ = record(lambda x, nothing: (x * 2,), (x, None))
    assert graph.replay((x, None))[1] == []


def test_copied_input_is_followed_wherever_it_lies(device: torch.device) -> None:
    buffer, first = torch.zeros(4, device=device), ones(device)
    graph, _ = record(double, (first,), copied={0: buffer})
    for value in (3.0, 4.0):
        (output,), moved = graph.replay((ones(device, value),))
        assert output.tolist() == [2 * value] * 4
        assert moved == []
        assert buffer.tolist() == [value] * 4


def test_copied_input_beside_one_that_must_stay(device: torch.device) -> None:
    x, weight = ones(device), ones(device, 10)
    graph, _ = record(lambda x, weight: (x + weight,), (x, weight), copied={0: torch.zeros(4, device=device)})
    moved_weight = weight.clone()
    (output,), moved = graph.replay((ones(device, 2), moved_weight))
    assert output.tolist() == [12.0] * 4
    assert [line.partition(":")[0] for line in moved] == ["input 1"]


def test_outputs_are_rewritten_in_place(device: torch.device) -> None:
    x = ones(device)
    graph, recorded = record(lambda x: (x * 2, x + 1), (x,))
    addresses = [output.data_ptr() for output in recorded]
    outputs, _ = graph.replay((x,))
    x.fill_(3)
    again, _ = graph.replay((x,))
    assert [output.data_ptr() for output in outputs] == addresses
    assert [output.data_ptr() for output in again] == addresses
    assert [output.tolist() for output in outputs] == [[6.0] * 4, [4.0] * 4]  # the first replay's result is gone
    assert [output.tolist() for output in recorded] == [[6.0] * 4, [4.0] * 4]


def test_structure_of_the_outputs_is_that_of_the_function(device: torch.device) -> None:
    x = ones(device)
    graph, recorded = record(lambda x: [x * 2, (x + 1, None, 7)], (x,))
    outputs, _ = graph.replay((x,))
    for found in (recorded, outputs):
        assert type(found) is list
        assert type(found[1]) is tuple
        assert found[1][1:] == (None, 7)
    assert outputs[1][0].tolist() == [2.0] * 4


def test_output_that_is_an_input_stays_that_input(device: torch.device) -> None:
    x = ones(device)
    graph, _ = record(lambda x: (x, x[1:], x * 2), (x,))
    x.copy_(torch.arange(4.0))
    (same, view, doubled), _ = graph.replay((x,))
    assert same.data_ptr() == x.data_ptr()
    assert view.tolist() == [1.0, 2.0, 3.0]
    assert doubled.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_what_the_function_writes_into_an_argument_is_written_again(device: torch.device) -> None:
    x, total = ones(device), torch.zeros(4, device=device)

    def accumulate(x: Tensor, total: Tensor) -> tuple[Tensor]:
        return (total.add_(x),)

    graph, _ = record(accumulate, (x, total))
    total.zero_()
    graph.replay((x, total))
    (output,), _ = graph.replay((x, total))
    assert total.tolist() == [2.0] * 4
    assert output.tolist() == [2.0] * 4


METADATA = {"factor": 1.0}


@contextmanager
def metadata(factor: float) -> Iterator[None]:
    before = METADATA["factor"]
    METADATA["factor"] = factor
    try:
        yield
    finally:
        METADATA["factor"] = before


def scale(x: Tensor) -> tuple[Tensor]:
    return (x * METADATA["factor"],)


def test_metadata_are_those_of_the_capture(device: torch.device) -> None:
    x = ones(device)
    with metadata(3.0):
        graph, _ = record(scale, (x,), frozen=lambda: metadata(3.0))
    x.fill_(2)
    with metadata(5.0):
        (output,), _ = graph.replay((x,))
        assert METADATA["factor"] == 5.0  # the replay has put back what the caller had set
    assert output.tolist() == [6.0] * 4


def test_graphs_of_two_sizes_do_not_disturb_each_other(device: torch.device) -> None:
    pool = GraphPool(device)
    large, small = torch.arange(8.0, device=device), torch.arange(2.0, device=device)
    of_large, _ = record(double, (large,), pool=pool)
    of_small, _ = record(double, (small,), pool=pool)
    for _ in range(2):
        assert of_large.replay((large,))[0][0].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
        assert of_small.replay((small,))[0][0].tolist() == [0.0, 2.0]


def test_empty_outputs_are_replayed_too(device: torch.device) -> None:
    x = ones(device)
    graph, _ = record(lambda x: (x[:0] * 2, x * 2), (x,))
    (empty, doubled), _ = graph.replay((x,))
    assert empty.shape == (0,)
    assert doubled.tolist() == [2.0] * 4


def test_cpu_graph_says_that_it_is_recorded_and_takes_no_pool() -> None:
    pool = GraphPool(torch.device("cpu"))
    assert pool.kind == "recorded graphs"
    assert pool.pool_bytes() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_pool_counts_its_own_segments_only() -> None:
    device = torch.device("cuda")
    pool, other = GraphPool(device), GraphPool(device)
    assert pool.kind == "cuda graphs"
    x = torch.ones(1 << 20, device=device)
    graph, _ = record(lambda x: (x * 2,), (x,), pool=pool)
    assert pool.pool_bytes() >= 4 << 20
    assert other.pool_bytes() == 0
    assert float(graph.replay((x,))[0][0].sum()) == 2.0 * (1 << 20)


def test_number_of_arguments_must_be_that_of_the_capture(device: torch.device) -> None:
    x = ones(device)
    graph, _ = record(double, (x,))
    with pytest.raises(ValueError, match="zip"):
        graph.replay((x, x))
