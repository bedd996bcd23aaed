"""What a prepared build has cost: counts, seconds of its phases, bytes; and why what is missing is missing."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_piecewise.engines import Build
from pytest_piecewise.engines.instructions import ABSENT as NO_COUNTER
from pytest_piecewise.engines.phases import ABSENT
from pytest_piecewise.measure import PHASES, Meter, directory_bytes, peak_memory_bytes
from pytest_piecewise.records import Metric

COUNTED = (
    *("graphs", "pieces", "distinct_pieces", "compiles", "kernels", "splitting_ops", "captures"),
    *("cache_hits", "cache_misses"),
)
"""The counts that are metrics, of every variant that compiles."""


def cost_metrics(
    build: Build, meter: Meter, instructions: int | None = None
) -> tuple[tuple[Metric, ...], dict[str, str]]:
    """The metrics of a build that has only been prepared, and the reasons of those that could not be had."""
    counts, absent = build.counts, {}
    found = [Metric(name=name, kind="count", value=getattr(counts, name)) for name in COUNTED]
    found = [] if build.variant == "eager" else found
    found.append(Metric(name="peak_memory", kind="bytes", value=peak_memory_bytes()))
    if build.pool_bytes:
        found.append(Metric(name="graph_pool", kind="bytes", value=build.pool_bytes))
    elif build.graph_kind:
        absent["graph_pool"] = f"{build.graph_kind} have no pool of their own"
    if build.variant != "eager":
        found += _artifacts()
    for phase in ("compile", "capture"):
        # Recorded graphs are no captures: their time is never called capture time.
        if phase == "capture" and build.graph_kind and build.graph_kind != "cuda graphs":
            absent["capture"] = f"{build.graph_kind} are no captures"
        else:
            found += seconds_of(meter, phase, phase)
    parts = [item for name in PHASES for item in seconds_of(meter, f"compile: {name}", f"compile_{name}")]
    if instructions is not None and build.variant != "eager":
        parts.append(Metric(name="prepare_instructions", kind="instructions", value=instructions))
    elif build.variant != "eager":
        absent["prepare_instructions"] = NO_COUNTER
    if not any(part.kind == "seconds" for part in parts) and build.variant != "eager":
        absent["compile_trace"] = ABSENT
    return (*found, *parts), absent


def build_kernels(build: Build) -> tuple[str, ...]:
    """Names of the generated kernels, as often as they are called; none of a build that does not tell."""
    return tuple(sorted(getattr(build, "kernels", ())))


def seconds_of(meter: Meter, phase: str, name: str) -> list[Metric]:
    """Wall and CPU seconds of a phase, as `name` and `name_cpu`; none if it did not take place."""
    found = [item for item in meter.phases if item.name == phase]
    if not found:
        return []
    return [
        Metric(name=name, kind="seconds", value=sum(item.seconds for item in found)),
        Metric(name=f"{name}_cpu", kind="cpu_seconds", value=sum(item.cpu_seconds for item in found)),
    ]


def _artifacts() -> list[Metric]:
    """Bytes of what the compilation has left in its caches, which are this process's own."""
    places = [os.environ[name] for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR") if name in os.environ]
    size = sum(directory_bytes(Path(place)) for place in places)
    return [Metric(name="artifacts", kind="bytes", value=size)] if size else []
