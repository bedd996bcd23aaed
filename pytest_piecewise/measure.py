"""What a build costs: phases in wall and CPU seconds, memory. A phase that was not measured is absent, never zero."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_piecewise.records import Phase


def cpu_seconds() -> float:
    """User and system CPU seconds of this process and of its finished children (g++, Triton's workers)."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def peak_memory_bytes() -> int:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Meter:
    """Times the phases of one build, and tells `on_phase` when one begins, for the live line."""

    def __init__(self, on_phase: Callable[[str], None] = lambda name: None) -> None:
        self._on_phase = on_phase
        self._phases: list[Phase] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures what runs inside. A phase that ends by an exception is recorded too."""
        self._on_phase(name)
        wall, cpu = time.perf_counter(), cpu_seconds()
        try:
            yield
        finally:
            self._phases.append(Phase(name=name, seconds=time.perf_counter() - wall, cpu_seconds=cpu_seconds() - cpu))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Finished phases in order."""
        return tuple(self._phases)

    def seconds(self, name: str) -> float | None:
        """Wall seconds of a phase, summed over its occurrences; None if it did not take place."""
        found = [phase.seconds for phase in self._phases if phase.name == name]
        return sum(found) if found else None
