"""What is measured: phases, Python calls whatever the load, steps, a yardstick; and what is not measured is absent."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise.measure import (
    Meter,
    WorkMeter,
    directory_bytes,
    fast_share,
    largest,
    step_samples,
    yardstick,
)


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_phase_has_wall_and_cpu_seconds() -> None:
    meter = Meter()
    with meter.phase("sleep"):
        time.sleep(0.2)
    with meter.phase("burn"):
        burn(0.2)
    sleep, busy = meter.phases
    assert sleep.seconds >= 0.2
    assert sleep.cpu_seconds < 0.1
    assert busy.cpu_seconds >= 0.19


def test_phase_that_did_not_take_place_is_none_and_one_that_failed_is_there() -> None:
    meter = Meter()
    assert meter.seconds("compile") is None
    with pytest.raises(ZeroDivisionError), meter.phase("compile"):
        raise ZeroDivisionError
    assert meter.seconds("compile") is not None


def calls(count: int) -> int:
    def called(number: int) -> int:
        return number

    meter = WorkMeter()
    with meter.phase("capture"):
        called(0)
    with meter.phase("compile"):
        for number in range(count):
            called(number)
    return meter.calls.total()


def test_work_is_the_python_calls_of_compilation_alone() -> None:
    assert calls(1000) - calls(500) == 500
    assert calls(0) < 20


def test_work_is_told_apart_by_package() -> None:
    torch = pytest.importorskip("torch")  # a part of every set-up that can compile
    meter = WorkMeter()
    with meter.phase("compile"):
        torch.fx.symbolic_trace(lambda x: x.sin())
    assert meter.calls["torch.fx"] > 50
    assert meter.calls["other"] > 0


def test_largest_parts_and_the_rest_add_up() -> None:
    parts = {"a": 5, "b": 9, "c": 1, "d": 2}
    assert largest(parts, 2) == {"b": 9, "a": 5, "rest": 3}
    assert largest(parts, 4) == {"b": 9, "a": 5, "d": 2, "c": 1}


def test_yardstick_is_the_same_work_each_time() -> None:
    found = [yardstick() for _ in range(3)]
    assert 0.01 < min(found) < 2
    assert max(found) < 2 * min(found)


def test_steps_in_whose_way_something_was_do_not_count() -> None:
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        time.sleep(0.02 if count % 2 else 0.002)

    samples = step_samples(step)
    assert len(samples) >= 10
    assert count == len(samples) + 3
    assert 0.002 <= fast_share(samples) < 0.01


class Event:
    """A device's event, whose clock runs ten times as fast."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds, as torch has it."""
        return (other.at - self.at) * 1e4


def test_device_is_timed_by_its_own_events() -> None:
    synchronized: list[bool] = []

    class Cuda:
        Event: Any = Event

        @staticmethod
        def synchronize() -> None:
            synchronized.append(True)

    samples = step_samples(lambda: time.sleep(0.002), Cuda)
    assert min(samples) >= 0.02
    assert len(synchronized) == 2


def test_bytes_of_a_directory(tmp_path: Path) -> None:
    assert directory_bytes(tmp_path / "none") == 0
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"12345")
    assert directory_bytes(tmp_path) == 5
