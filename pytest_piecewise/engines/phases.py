"""What a compilation spends its time on, by torch's own events: from the trace to the loading of what was compiled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch._dynamo import utils

from pytest_piecewise.measure import PHASES, Meter, cpu_seconds
from pytest_piecewise.records import Phase

ABSENT = "this torch tells no events of its compilation"
_PHASE_OF: Mapping[str, str] = {
    "dynamo": "trace",
    "backend_compile": "split",
    "create_aot_dispatcher_function": "aot_autograd",
    "inductor_compile": "inductor",
    "compile_fx_inner": "inductor",
    "_recursive_pre_grad_passes": "inductor",
    "_recursive_joint_graph_passes": "inductor",
    "code_gen": "codegen",
    "compile_file": "compilers",
    "async_compile.wait": "compilers",
    "PyCodeCache.load_by_key_path": "load",
}
"""torch's event -> the phase that it begins. What is in no event of these belongs to the phase round it. `split` is what a
backend does beside compiling: splitting the graph, wrapping its pieces."""


@contextmanager
def compile_phases(meter: Meter) -> Iterator[None]:
    """Adds to `meter`, for what compiles inside, `compile: PHASE` with the seconds that belong to no phase within it.

    What the phase `compile` of the meter has beyond torch's events is the first call of the compiled code. The events
    are private, unchanged from torch 2.11 to 2.15; without them nothing is added.
    """
    found = getattr(utils, "get_chromium_event_logger", None)
    if found is None:
        yield
        return
    logger, clock = found(), _Clock()
    begin, end = logger.log_event_start, logger.log_event_end

    def log_event_start(event_name: str, *arguments: Any, **more: Any) -> Any:
        clock.begin(event_name)
        return begin(event_name, *arguments, **more)

    def log_event_end(event_name: str, *arguments: Any, **more: Any) -> Any:
        clock.end()
        return end(event_name, *arguments, **more)

    logger.log_event_start, logger.log_event_end = log_event_start, log_event_end
    try:
        yield
    finally:
        del logger.log_event_start, logger.log_event_end
        _add(meter, clock.spent)


def _add(meter: Meter, spent: Mapping[str, list[float]]) -> None:
    whole = [phase for phase in meter.phases if phase.name == "compile"]
    if not spent or not whole:
        return
    left = [
        sum(getattr(phase, unit) for phase in whole) - sum(times[index] for times in spent.values())
        for index, unit in enumerate(("seconds", "cpu_seconds"))
    ]
    for name in PHASES:
        if name == "first_call" or name in spent:
            wall, cpu = left if name == "first_call" else spent[name]
            meter.add(Phase(name=f"compile: {name}", seconds=max(wall, 0.0), cpu_seconds=max(cpu, 0.0)))


class _Clock:
    """Charges time to the innermost phase. Events of other threads overlap this one's and are left out."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}
        self._stack: list[str] = []
        self._thread = threading.get_ident()
        self._wall = self._cpu = 0.0

    def begin(self, event: str) -> None:
        if threading.get_ident() == self._thread:
            self._charge()
            self._stack.append(_PHASE_OF.get(event) or (self._stack[-1] if self._stack else "trace"))

    def end(self) -> None:
        if threading.get_ident() == self._thread and self._stack:
            self._charge()
            self._stack.pop()

    def _charge(self) -> None:
        wall, cpu = time.perf_counter(), cpu_seconds()
        if self._stack:
            spent = self.spent.setdefault(self._stack[-1], [0.0, 0.0])
            spent[0] += wall - self._wall
            spent[1] += cpu - self._cpu
        self._wall, self._cpu = wall, cpu
