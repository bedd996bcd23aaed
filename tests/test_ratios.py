"""Ratios of paired samples: intervals that cover as they say, and a gate that is quiet and yet sees."""

from __future__ import annotations

import datetime
import math
import random

import pytest

from pytest_piecewise.baselines.entries import Entry, Measured, verdict
from pytest_piecewise.ratios import FULL, PAIRS, PIECEWISE, WARM, Spec, noise, order_of, ratios, specs, t95
from pytest_piecewise.records import Metric, Ratio, Sample, Status

SPEC = Spec("piecewise/full.x", "x", PIECEWISE, FULL)


def samples(over: list[float], under: list[float], unit: float = 0.0) -> list[Sample]:
    """Rounds from 0 on with these values on both sides."""
    found = []
    for round_, values in enumerate(zip(over, under, strict=True)):
        for (variant, cache), value in zip((PIECEWISE, FULL), values, strict=True):
            metrics = [Metric(name="x", kind="cpu_seconds", value=value)]
            metrics += [Metric(name="yardstick", kind="cpu_seconds", value=unit)] if unit else []
            found.append(Sample(round=round_, variant=variant, cache=cache, metrics=tuple(metrics)))
    return found


def only(over: list[float], under: list[float], spec: Spec = SPEC, unit: float = 0.0) -> Ratio:
    (found,) = ratios(samples(over, under, unit), [spec])
    return found


def test_first_pair_is_dropped_and_the_rest_is_a_geometric_mean() -> None:
    found = only([99.0, 1.0, 4.0], [1.0, 1.0, 1.0])
    assert (found.value, found.pairs) == (pytest.approx(2.0), 2)
    assert found.spread == pytest.approx(math.log(4) / math.sqrt(2))
    assert noise(found) == pytest.approx(math.log(4) / 2)
    assert found.low == pytest.approx(2 / math.exp(6.314 * math.log(4) / 2))
    assert found.low * found.high == pytest.approx(4.0)


def test_common_slowdown_of_a_pair_cancels() -> None:
    found = only([1.0, 0.8, 1.6, 8.0], [1.0, 1.0, 2.0, 10.0])
    assert (found.value, found.spread) == (pytest.approx(0.8), pytest.approx(0.0, abs=1e-9))


def test_sides_are_in_yardsticks_where_there_is_one() -> None:
    found = only([1.0, 0.8, 0.8], [1.0, 1.0, 1.0], Spec("a/b.x", "x", PIECEWISE, FULL, "yardstick"), unit=0.1)
    assert (found.over, found.under) == (pytest.approx(8.0), pytest.approx(10.0))


@pytest.mark.parametrize("rounds", [1, 2])
def test_too_few_pairs_make_no_ratio(rounds: int) -> None:
    assert list(ratios(samples([1.0] * rounds, [1.0] * rounds), [SPEC])) == []


def test_metric_that_one_side_lacks_makes_no_ratio() -> None:
    half = [sample for sample in samples([1.0] * 5, [1.0] * 5) if sample.variant == "full"]
    assert list(ratios(half, [SPEC])) == []


def test_full_and_piecewise_take_turns_and_warm_follows_its_cold() -> None:
    orders = [order_of(round_) for round_ in range(4)]
    assert [order.index(FULL) < order.index(PIECEWISE) for order in orders] == [True, False, True, False]
    assert all(order.index(WARM) == order.index(PIECEWISE) + 1 for order in orders)
    assert all(len(set(order)) == 4 for order in orders)


def test_steps_are_compared_at_the_smallest_and_largest_size() -> None:
    names = [spec.name for spec in specs((1, 2, 8))]
    assert [name for name in names if ".step_" in name] == [
        "piecewise/full.step_1",
        "piecewise/full.step_8",
        "full/eager.step_1",
        "full/eager.step_8",
    ]


@pytest.mark.parametrize("degrees", [1, 2, 4, 9, 19, 30])
def test_quantile_leaves_one_in_twenty_above_it(degrees: int) -> None:
    # The tail of Student's density, integrated with x = sqrt(degrees) * tan(angle).
    scale = math.gamma((degrees + 1) / 2) / (math.gamma(degrees / 2) * math.sqrt(math.pi))
    begin, steps = math.atan(t95(degrees) / math.sqrt(degrees)), 20_000
    width = (math.pi / 2 - begin) / steps
    tail = sum(math.cos(begin + (i + 0.5) * width) ** (degrees - 1) for i in range(steps)) * width * scale
    assert tail == pytest.approx(0.05, abs=2e-4)


def failing_share(change: float, spread: float, pairs: int, runs: int = 2000) -> float:
    """How often the gate, its confirmation included, fails a case whose ratio is `change` times what is stored."""
    rng, entry = random.Random(f"{change} {spread} {pairs}"), Entry(gate="ratio", value=1.0)

    def fails(count: int) -> bool:
        made = only([1.0, *(change * math.exp(rng.gauss(0, spread)) for _ in range(count))], [1.0] * (count + 1))
        now = Measured(gate="ratio", value=made.value, low=made.low, high=made.high)
        return verdict("r", entry, now, datetime.date(2026, 1, 1)).status is Status.FAIL

    return sum(fails(pairs) and fails(2 * pairs) for _ in range(runs)) / runs


def test_gate_sees_half_as_much_again_and_is_quiet_on_the_same() -> None:
    pairs = PAIRS["fastcheck"]
    for spread in (0.03, 0.07):
        assert failing_share(1.5, spread, pairs) >= 0.95
        assert failing_share(1.0, spread, pairs) == 0.0
    assert failing_share(1.1, 0.07, pairs) < 0.01
