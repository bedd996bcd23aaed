"""What a build costs: phases in wall and CPU seconds, Python calls, steps, memory, bytes on disk.

A phase that was not measured is absent, never zero.
"""

from __future__ import annotations

import ast
import cProfile
import gc
import resource
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_piecewise.records import Phase

PHASES = ("trace", "split", "aot_autograd", "inductor", "codegen", "compilers", "load", "first_call")
"""What a compilation consists of, in its order."""
STEP_SECONDS = 0.5
"""A size is stepped for about so long, at least `MIN_STEPS` and at most `MAX_STEPS` times."""
MIN_STEPS, MAX_STEPS = 10, 200


def cpu_seconds() -> float:
    """User and system CPU seconds of this process and of its finished children (g++, Triton's workers)."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in used)


def peak_memory_bytes() -> int:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def directory_bytes(directory: Path) -> int:
    """Bytes of all files below a directory, locks and compilers' leftovers included; 0 if there is none."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


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
            self.add(Phase(name=name, seconds=time.perf_counter() - wall, cpu_seconds=cpu_seconds() - cpu))

    def add(self, phase: Phase) -> None:
        """A phase that was measured elsewhere."""
        self._phases.append(phase)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Finished phases in order."""
        return tuple(self._phases)

    def seconds(self, name: str) -> float | None:
        """Wall seconds of a phase, summed over its occurrences; None if it did not take place."""
        found = [phase.seconds for phase in self._phases if phase.name == name]
        return sum(found) if found else None


class WorkMeter(Meter):
    """Counts the Python calls of the phase `compile`, by the package that they are made in.

    The count hardly depends on the machine or its load: it spreads by a few hundredths of a percent, from the order of
    sets. Collecting garbage would run finalizers at any moment, and waits until after.
    """

    def __init__(self, on_phase: Callable[[str], None] = lambda name: None) -> None:
        super().__init__(on_phase)
        self.calls: Counter[str] = Counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts what runs inside if it is compilation. Its seconds are those of a slowed build and good for nothing."""
        if name != "compile":
            with super().phase(name):
                yield
            return
        profile = cProfile.Profile(subcalls=False, builtins=False)
        with super().phase(name):
            gc.collect()
            gc.disable()
            profile.enable()
            try:
                yield
            finally:
                profile.disable()
                gc.enable()
        for entry in profile.getstats():
            self.calls[_package_of(getattr(entry.code, "co_filename", ""))] += entry.callcount


def _package_of(file: str) -> str:
    """The package of a file, of torch also its subpackage; `other` for code that is in no site-packages."""
    _, found, inside = file.partition("site-packages/")
    first, *others = Path(inside).with_suffix("").parts if found else ("other",)
    return f"{first}.{others[0]}" if first == "torch" and others else first


def yardstick() -> float:
    """CPU seconds of a fixed piece of work that no version of torch changes: parsing and compiling Python source.

    What a build costs in these units says which side of a ratio has moved, on whatever machine.
    """
    source = "\n".join(
        f"def f{number}(a, b):\n    return [a * x + b for x in range({number}) if x % 7]" for number in range(400)
    )
    best = float("inf")
    for _ in range(5):
        begin = cpu_seconds_here()
        for _ in range(4):
            compile(ast.parse(source), "yardstick", "exec")
        best = min(best, cpu_seconds_here() - begin)
    return best


def cpu_seconds_here() -> float:
    """CPU seconds of this process alone, in fine steps."""
    return time.process_time()


def fast_share(samples: Sequence[float]) -> float:
    """The value that a tenth of the samples do not reach: what a step takes when nothing else is in its way."""
    return statistics.quantiles(samples, n=10)[0]


def step_samples(step: Callable[[], Any], cuda: Any = None) -> list[float]:
    """Seconds of many steps, after some that warm up. `cuda` is `torch.cuda` where the device's own events are to
    measure them."""
    measure = _host_samples if cuda is None else _device_samples(cuda)
    first = measure(step, 3)
    count = int(STEP_SECONDS / max(min(first), 1e-6))
    return measure(step, max(MIN_STEPS, min(MAX_STEPS, count)))


def _host_samples(step: Callable[[], Any], count: int) -> list[float]:
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        found.append(time.perf_counter() - begin)
    return found


def _device_samples(cuda: Any) -> Callable[[Callable[[], Any], int], list[float]]:
    def samples(step: Callable[[], Any], count: int) -> list[float]:
        events = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for begin, end in events:
            begin.record()
            step()
            end.record()
        cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in events]

    return samples


def largest(calls: Mapping[str, int], count: int) -> dict[str, int]:
    """The packages with the most calls, and the sum of the rest as `rest`."""
    ranked = sorted(calls.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(number for _, number in ranked[count:])
    return dict(ranked[:count]) | ({"rest": rest} if rest else {})
