"""Trials of a canary run that are made at the same time: their order, who makes them, and how they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_piecewise.canary import MAX_SIDE_BY_SIDE, side_by_side
from pytest_piecewise.records import Trial


@dataclass
class Bench:
    """A worker that only says who it is, and keeps those made after it."""

    twins: bool = True
    made: list[Bench] = field(default_factory=list)
    closed: bool = False
    gpus: int = 0

    def do(self, *arguments: Any) -> Any:
        raise AssertionError("no trial of this file builds anything")

    def alike(self) -> Bench | None:
        if not self.twins:
            return None
        self.made.append(Bench())
        return self.made[-1]

    def close(self) -> None:
        self.closed = True


def trial(name: str) -> Trial:
    return Trial(fault=name, outcome="caught", kind="POOL")


def meeting(parties: int) -> list[Callable[[Any], Trial]]:
    """Attempts of which none ends before all are under way."""
    barrier = threading.Barrier(parties)

    def attempt(name: str, worker: Any) -> Trial:
        barrier.wait(10)
        return trial(f"{name} by {id(worker)}")

    return [lambda worker, name=str(number): attempt(name, worker) for number in range(parties)]  # type: ignore[misc]


def test_trials_run_at_the_same_time_each_with_a_worker_of_its_own() -> None:
    worker = Bench()
    names = [item.fault for item in side_by_side(meeting(3), worker, 3)]
    assert [name.partition(" ")[0] for name in names] == ["0", "1", "2"]
    assert len({name.partition("by ")[2] for name in names}) == 3
    assert [made.closed for made in worker.made] == [True, True]
    assert not worker.closed  # the session goes on with it


@pytest.mark.parametrize(("number", "attempts", "made"), [(1, 3, 0), (4, 2, 1), (100, 50, MAX_SIDE_BY_SIDE - 1)])
def test_no_more_workers_than_processors_trials_and_memory_allow(number: int, attempts: int, made: int) -> None:
    worker = Bench()
    assert len(list(side_by_side([lambda worker: trial("x")] * attempts, worker, number))) == attempts
    assert len(worker.made) == made


def test_where_there_is_one_process_trials_run_in_the_thread_that_asks() -> None:
    def attempt(worker: Any) -> Trial:
        return trial(threading.current_thread().name)

    found = list(side_by_side([attempt] * 2, Bench(twins=False), 4))
    assert [item.fault for item in found] == [threading.main_thread().name] * 2


def test_what_ends_one_trial_ends_all_workers_and_starts_no_other() -> None:
    worker, begun = Bench(), []

    def interrupted(worker: Any) -> Trial:
        raise KeyboardInterrupt

    def counted(worker: Any) -> Trial:
        begun.append(worker)
        time.sleep(0.01)
        return trial("x")

    with pytest.raises(KeyboardInterrupt):
        list(side_by_side([interrupted, *[counted] * 1000], worker, 2))
    assert worker.closed
    assert all(made.closed for made in worker.made)
    assert len(begun) < 1000
