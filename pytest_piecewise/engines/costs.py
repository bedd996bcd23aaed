"""Builds made only to be measured: alone in their process, with caches that are empty or those of a build before.

No protocol is gone through: compiled, captured, stepped at every captured size, and done.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pytest_piecewise import hooks
from pytest_piecewise.engines.cache_keys import KeyLog, changed_parts
from pytest_piecewise.engines.cost_metrics import cost_metrics
from pytest_piecewise.engines.instructions import InstructionCount
from pytest_piecewise.engines.phases import compile_phases
from pytest_piecewise.engines.prepare import pinned_numerics
from pytest_piecewise.engines.tasks import make_request
from pytest_piecewise.errors import PiecewiseError
from pytest_piecewise.measure import Meter, WorkMeter, directory_bytes, fast_share, largest, step_samples, yardstick
from pytest_piecewise.models import find_model
from pytest_piecewise.records import BuildRecord, Case, Metric, Settings

PACKAGES = 8
"""How many packages of a work count are told apart."""


def run_cost(case: Case, settings: Settings, on_phase: Callable[[str], None], task: dict[str, Any]) -> BuildRecord:
    """Measures one build. `task` has `variant`, `state` (cold or warm), `caches` (its directory) and `counted` (whether the
    work is counted, which slows the build down: its seconds are then left out)."""
    model, variant = find_model(case.model, case.file), str(task["variant"])
    _refuse_other_state(task)
    meter = WorkMeter(on_phase) if task["counted"] else Meter(on_phase)
    metrics = [Metric(name="yardstick", kind="cpu_seconds", value=yardstick())]
    with pinned_numerics(settings.threads, torch.device(case.device)), KeyLog() as keys:
        build = hooks.find_engine(case.engine).build(make_request(model, case, variant, settings, meter))
        try:
            with compile_phases(meter), InstructionCount() as instructions:
                build.prepare()
            found, absent = cost_metrics(build, meter, instructions.count)
            if isinstance(meter, WorkMeter):
                metrics = [item for item in found if item.kind in ("count", "bytes")] + _work(meter)
            else:
                metrics += found
                on_phase("steps")
                steps, reason = _steps(build, model.capture_sizes, case.device)
                metrics, absent = metrics + steps, absent | reason
            notes = changed_parts(keys.entries, Path(task["caches"]), warm=task["state"] == "warm")
            return BuildRecord(
                variant=variant,
                outcome="ok",
                metrics=tuple(metrics),
                phases=meter.phases,
                counts=build.counts,
                graph_kind=build.graph_kind,
                notes=notes,
                absent=absent,
            )
        finally:
            build.close()


def _refuse_other_state(task: dict[str, Any]) -> None:
    """Cold is an empty directory, warm one that a build has filled: never whatever was on disk."""
    places = [Path(os.environ[name]) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    size = sum(directory_bytes(place) for place in places)
    if (task["state"] == "cold") == bool(size):
        raise PiecewiseError(
            f"expected {'an empty' if task['state'] == 'cold' else 'a filled'} cache directory for a {task['state']} build, "
            f"found {size} bytes in {', '.join(map(str, places))}"
        )


def _work(meter: WorkMeter) -> list[Metric]:
    calls = largest(meter.calls, PACKAGES)
    parts = [Metric(name=f"work in {name}", kind="calls", value=number) for name, number in calls.items()]
    return [Metric(name="work", kind="work", value=meter.calls.total()), *parts]


def _steps(build: Any, sizes: tuple[int, ...], device: str) -> tuple[list[Metric], dict[str, str]]:
    if not hasattr(build, "stepping"):
        return [], {"step": "builds of this engine give no bare step to time"}
    cuda = torch.cuda if device.startswith("cuda") else None
    found = []
    for size in sizes:
        with build.stepping(size) as step:
            samples = step_samples(step, cuda)
        found.append(Metric(name=f"step_{size}", kind="seconds", value=statistics.median(samples)))
        found.append(Metric(name=f"step_{size}_fast", kind="seconds", value=fast_share(samples)))
    return found, {}
