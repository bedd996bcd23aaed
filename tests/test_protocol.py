"""The list of calls: every size three times, in three orders, always with other data than before."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pytest_piecewise import Model
from pytest_piecewise.engines.builds import dummy_call
from pytest_piecewise.protocol import (
    HORIZON,
    MAX_SWEPT_SIZES,
    calls,
    interleaved,
    judged_sizes,
    padded_sizes,
    replayed,
)
from pytest_piecewise.records import Call

SIZES_51 = (1, 2, 4, *range(8, 392, 8))
"""As many as vLLM captures by default for a batch of 384."""


def model(**changes: Any) -> Model:
    return Model(**({"name": "m", "build": dict, "inputs": lambda size, generator: ()} | changes))


def phase(steps: tuple[Call, ...], name: str) -> list[Call]:
    return [call for call in steps if call.phase == name]


@pytest.mark.parametrize("sizes", [(1,), (3, 7), (1, 2, 4, 8, 16), SIZES_51], ids=len)
def test_every_size_is_replayed_at_least_three_times_in_three_orders(sizes: tuple[int, ...]) -> None:
    steps = calls(model(capture_sizes=sizes), 0)
    assert [call.size for call in phase(steps, "capture order")] == list(sizes[::-1])
    assert [call.size for call in phase(steps, "reverse")] == list(sizes)
    assert [call.size for call in phase(steps, "interleaved")] == list(interleaved(sizes))
    replays = Counter(call.padded_size for call in steps if call.size == call.padded_size)
    assert set(replays) == set(sizes)
    assert min(replays.values()) >= 3


def test_first_call_is_of_the_largest_captured_size_and_without_graphs() -> None:
    assert calls(model(capture_sizes=(2, 8)), 0)[0] == Call(index=0, phase="first", size=8, padded_size=0, seed=1)


def test_interleaved_neighbours_are_far_apart() -> None:
    assert interleaved((1, 2, 4, 8, 16)) == (16, 1, 8, 2, 4)
    assert interleaved((1, 2, 4, 8)) == (8, 1, 4, 2)
    assert interleaved((5,)) == (5,)


def test_indices_count_the_calls() -> None:
    steps = calls(model(), 0)
    assert [call.index for call in steps] == list(range(len(steps)))


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 4, 8, 16), SIZES_51], ids=len)
def test_no_data_come_twice_before_the_weights_change(sizes: tuple[int, ...]) -> None:
    seeds = [call.seed for call in calls(model(capture_sizes=sizes), 3) if not call.weights]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 4, 8, 16), (1, 2, 3, 4), SIZES_51], ids=len)
def test_no_call_repeats_the_data_that_its_size_was_captured_with(sizes: tuple[int, ...]) -> None:
    # A graph that replays the inputs of its capture would be right for such a call.
    steps = replayed(calls(model(capture_sizes=sizes), 0))
    repeated = [call for call in steps if call.seed == dummy_call(call.padded_size).seed]
    assert repeated == []


def test_another_session_seed_gives_other_data_throughout() -> None:
    first, second = (calls(model(capture_sizes=SIZES_51), seed) for seed in (0, 1))
    assert not {call.seed for call in first} & {call.seed for call in second}


def test_calls_after_the_weight_update_repeat_the_data_of_an_earlier_call_of_their_size() -> None:
    steps = calls(model(), 5)
    updated = phase(steps, "weights updated")
    assert [call.size for call in updated] == [16, 1]
    assert all(call.weights == 1 for call in updated)
    assert updated == list(steps[-3:-1])
    for call in updated:
        twins = [step for step in steps if not step.weights and step.seed == call.seed]
        assert [(twin.phase, twin.size) for twin in twins] == [("reverse", call.size)]


def test_index_tables_change_by_themselves_last_of_all() -> None:
    steps = calls(model(), 5)
    (tables,) = phase(steps, "tables updated")
    assert tables == steps[-1]
    assert (tables.size, tables.weights) == (16, 2)
    assert tables.seed == next(call.seed for call in phase(steps, "weights updated") if call.size == 16)


def test_one_size_gets_one_call_after_the_weight_update() -> None:
    assert [call.size for call in phase(calls(model(capture_sizes=(4,)), 0), "weights updated")] == [4]


@pytest.mark.parametrize(
    ("sizes", "padded"),
    [
        ((1, 2), ()),
        ((1, 2, 4, 8, 16), (3, 5, 9, 15)),
        ((4, 8), (1, 5, 7)),
        ((1, 2, 4, 8, 16, 32, 64), (3, 9, 33, 63)),
        ((1,), ()),
        ((2,), (1,)),
    ],
)
def test_padded_sizes_lie_just_above_the_captured_size_below_and_once_just_below_the_next(
    sizes: tuple[int, ...], padded: tuple[int, ...]
) -> None:
    assert padded_sizes(sizes) == padded
    steps = phase(calls(model(capture_sizes=sizes), 0), "padded")
    assert [(call.size, call.padded_size) for call in steps] == [
        (size, min(captured for captured in sizes if captured >= size)) for size in padded
    ]
    assert all(call.size < call.padded_size and call.judged for call in steps)


def test_call_beyond_the_captured_sizes_uses_no_graph() -> None:
    steps = calls(model(capture_sizes=(1, 4), max_size=9), 0)
    beyond = phase(steps, "beyond captured")
    assert [(call.size, call.padded_size, call.judged) for call in beyond] == [(5, 0, True), (9, 0, True)]
    assert [call.phase for call in steps if call not in list(replayed(steps))] == [
        "first",
        "beyond captured",
        "beyond captured",
    ]


def test_no_such_call_where_the_largest_size_is_captured() -> None:
    assert not phase(calls(model(capture_sizes=(1, 4)), 0), "beyond captured")


def test_few_sizes_are_all_judged() -> None:
    assert judged_sizes((1, 2, 4, 8, 16)) == (1, 2, 4, 8, 16)
    assert all(call.judged for call in calls(model(), 0))


def test_of_51_sizes_eight_are_judged_in_every_phase_and_all_of_them_once() -> None:
    assert len(SIZES_51) == 51
    judged = judged_sizes(SIZES_51)
    assert judged == (1, 40, 96, 152, 216, 272, 328, 384)
    steps = calls(model(capture_sizes=SIZES_51), 0)
    assert {call.size for call in phase(steps, "reverse") if call.judged} == set(judged)
    assert {call.size for call in phase(steps, "interleaved") if call.judged} == set(SIZES_51)
    assert len(list(replayed(steps))) == 3 * 51 + 4 + 3
    assert sum(call.judged for call in steps) == 1 + 2 * 8 + 51 + 4 + 3


def test_deep_protocol_sweeps_the_neighbours_of_all_sizes() -> None:
    steps = calls(model(capture_sizes=(1, 4, 16), max_size=20), 0, deep=True)
    assert [call.size for call in phase(steps, "sweep")] == [3, 19]
    assert {1, 2, 3, 4, 5, 15, 16, 17, 19, 20} <= {call.size for call in steps}
    assert all(call.judged for call in phase(steps, "sweep"))
    assert not phase(calls(model(), 0), "sweep")


def test_sweep_is_limited() -> None:
    swept = phase(calls(model(capture_sizes=SIZES_51), 0, deep=True), "sweep")
    assert len(swept) == MAX_SWEPT_SIZES


def test_model_with_state_has_a_long_horizon_whose_end_is_judged() -> None:
    steps = phase(calls(model(state=("s",)), 0, deep=True), "long horizon")
    assert len(steps) == HORIZON
    assert [call.judged for call in steps] == [False] * (HORIZON - 2) + [True, True]
    assert not phase(calls(model(), 0, deep=True), "long horizon")
    assert not phase(calls(model(state=("s",)), 0), "long horizon")


def test_deep_protocol_ends_with_arguments_that_are_not_contiguous() -> None:
    steps = calls(model(), 0, deep=True)
    assert [call.phase for call in steps if call.strided] == ["strided"]
    assert steps[-1].strided
    assert not any(call.strided for call in calls(model(), 0))


def test_protocol_is_the_same_every_time() -> None:
    assert calls(model(), 2) == calls(model(), 2)
