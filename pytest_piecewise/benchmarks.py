"""Measured phases as benchmarks of pytest-benchmark, where that is loaded: its table, JSON, comparison and histogram.

Nothing is measured here. The `benchmark` fixture is given a clock of ours as its `timer`, which replays durations.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_piecewise.records import CaseResult, Metric

GROUPS = {"compile": "compile", "capture": "capture"}
"""The group of a phase by its metric; `step_SIZE` is in the group `replay`."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One benchmark: a phase of one variant of one case, with the seconds of every time that it was measured."""

    name: str
    group: str
    seconds: tuple[float, ...]


def timings(result: CaseResult) -> list[Timing]:
    """What was measured of a case. Builds that were made only to be measured count rather than those of the protocol."""
    found: dict[tuple[str, str], list[float]] = {}
    for sample in result.costs.samples:
        if sample.round > 0:
            prefix = "warm " if sample.cache == "warm" else ""
            for label, group, seconds in _phases(sample.metrics):
                found.setdefault((f"{result.case.id} {prefix}{sample.variant} {label}", group), []).append(seconds)
    for build in result.builds:
        for label, group, seconds in _phases(build.metrics):
            found.setdefault((f"{result.case.id} {build.variant} {label}", group), [seconds])
    return [Timing(name, group, tuple(seconds)) for (name, group), seconds in sorted(found.items())]


def _phases(metrics: Sequence[Metric]) -> Iterator[tuple[str, str, float]]:
    for metric in metrics:
        if metric.kind == "seconds" and metric.name in GROUPS:
            yield metric.name, GROUPS[metric.name], metric.value
        elif size := re.fullmatch(r"step_(\d+)", metric.name):
            yield f"step at size {size[1]}", "replay", metric.value


class ReplayedClock:
    """A timer that stands still while a benchmark runs, but for the duration that is being replayed."""

    __name__ = "replayed"

    def __init__(self) -> None:
        self._now = 0.0
        self._durations: list[float] = []

    def __call__(self) -> float:
        """Seconds, as `time.perf_counter` has them."""
        return self._now

    def play(self, seconds: Sequence[float]) -> None:
        """The durations of the next rounds."""
        self._durations = list(seconds)

    def advance(self) -> None:
        """One round: what a benchmark takes for the function that it measures."""
        self._now += self._durations.pop(0) if self._durations else 0.0


def record(benchmark: Any, clock: ReplayedClock, found: Sequence[Timing]) -> None:
    """Makes a benchmark of each timing. `benchmark` is pytest-benchmark's fixture with `clock` as its timer.

    A fixture can measure once. Copies of it, made before, measure as it would have; the last one is itself, which would
    otherwise complain of not having been used.
    """
    for position, timing in enumerate(found):
        one = benchmark if position == len(found) - 1 else copy.copy(benchmark)
        one.name = one.fullname = timing.name
        one.group, one.param, one.params, one.extra_info = timing.group, None, None, {}
        clock.play(timing.seconds)
        one.pedantic(clock.advance, rounds=len(timing.seconds), iterations=1)
