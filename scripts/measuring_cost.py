"""What measuring costs: seconds that the events of a compilation are charged for, as a share of the compilation. On a CPU.

    python scripts/measuring_cost.py

One full and one piecewise compilation of a fastcheck model, each with the real event watch, whose own time is summed.
The work count, which slows its build down, is in a build of its own whose seconds nobody uses; its slowdown is printed too.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from pytest_piecewise.engines import phases
from pytest_piecewise.engines.native import NativeEngine
from pytest_piecewise.engines.prepare import pinned_numerics
from pytest_piecewise.engines.tasks import make_request
from pytest_piecewise.measure import Meter, WorkMeter, cpu_seconds
from pytest_piecewise.models import find_model
from pytest_piecewise.records import Case, Settings

CASE = Case(model="suites.fastcheck.test_known_answer:KNOWN_ANSWER", name="known-answer")


def build(variant: str, meter: Meter) -> float:
    """CPU seconds of the compilation, from empty caches."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        torch._dynamo.reset()
        made = NativeEngine().build(make_request(find_model(CASE.model), CASE, variant, Settings(), meter))
        begin = cpu_seconds()
        with phases.compile_phases(meter):
            made.prepare()
        return cpu_seconds() - begin


def main() -> None:
    """Prints a line per variant."""
    spent = [0, 0.0]
    charge = phases._Clock._charge

    def charged(clock: phases._Clock) -> None:
        begin = time.process_time()
        charge(clock)
        spent[0] += 1
        spent[1] += time.process_time() - begin

    phases._Clock._charge = charged  # type: ignore[method-assign]
    with pinned_numerics(2, torch.device("cpu")):
        build("full", Meter())  # what only the first compilation of a process pays
        for variant in ("full", "piecewise"):
            spent[:] = [0, 0.0]
            seconds = build(variant, Meter())
            watched, events = spent[1], spent[0]
            counted = build(variant, WorkMeter())
            print(
                f"{variant}: {seconds:.2f} CPU s, {events} events, {watched * 1e3:.1f} ms for watching them "
                f"({watched / seconds:.3%}); with work counted {counted:.2f} CPU s"
            )


if __name__ == "__main__":
    main()
