"""Reports -> measurements under their keys. Machines, versions and cases that differ are never in one series."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_piecewise.records import BuildRecord, CaseResult, Costs, Metric, Report, Run

VERSIONS = ("torch", "triton", "cuda", "driver", "python", "revision")
"""Keys that change with an update. Series that differ in nothing else continue each other, beyond a marker."""
EVIDENCE = ("recompiles", "graph_breaks", "copied_inputs", "moved_inputs")
"""Lists of `Counts` whose lengths are kept as counts."""
CASE = "case"
"""The metric of a whole case: the seconds from its first build to its verdict."""
TEXT_LIMIT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What is measured, of which case, where: the key of a series. `environment` is sorted pairs."""

    case: str
    variant: str
    metric: str
    kind: str
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def number(self) -> int:
        """The key as a number of 63 bits, the same on every machine."""
        return number_of(self.case, self.variant, self.metric, self.kind, self.environment)

    @property
    def name(self) -> str:
        """`case/variant/metric`; without a variant where it is of the whole case."""
        return "/".join(filter(None, (self.case, self.variant, self.metric)))

    @property
    def machine(self) -> tuple[tuple[str, str], ...]:
        """The part of the environment that updates leave as it is."""
        return tuple(pair for pair in self.environment if pair[0] not in VERSIONS)

    @property
    def line(self) -> tuple[object, ...]:
        """What a series and those that continue it under other versions have in common."""
        return (self.case, self.variant, self.metric, self.kind, self.machine)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one run."""

    series: Series
    value: float


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement, with the run that made it."""

    run: Run
    value: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A series with its points, in the order of the commits, then of the runs."""

    series: Series
    points: tuple[Point, ...]


def number_of(*parts: object) -> int:
    """A number of 63 bits for whatever JSON can hold."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def in_order(points: Sequence[Point]) -> tuple[Point, ...]:
    """Oldest first. An old commit that was measured late stands where the commit does."""
    return tuple(sorted(points, key=lambda point: order_of(point.run)))


def order_of(run: Run) -> tuple[str, str, str]:
    """What runs are sorted by."""
    return (run.committed or run.started, run.started, run.id)


def samples(report: Report) -> Iterator[Sample]:
    """Every finite measurement of a report, of builds that ended well."""
    for result in report.results:
        environment = environment_of(result)
        for variant, metric in _measured(result):
            if math.isfinite(metric.value):
                series = Series(
                    case=text(result.case.id),
                    variant=text(variant),
                    metric=text(metric.name),
                    kind=text(metric.kind),
                    environment=environment,
                )
                yield Sample(series, float(metric.value))


def _measured(result: CaseResult) -> Iterator[tuple[str, Metric]]:
    for build in result.builds:
        if build.outcome == "ok" and build.variant not in ("reference", "comparison"):
            yield from ((build.variant, metric) for metric in (*build.metrics, *_of_build(build)))
    if result.seconds and all(build.outcome == "ok" for build in result.builds):
        yield "", Metric(name=CASE, kind="seconds", value=result.seconds)
    yield from _of_costs(result.costs)


def _of_costs(costs: Costs) -> Iterator[tuple[str, Metric]]:
    """Work, the ratios, and the medians of the builds that were made only to be measured, warm ones apart."""
    for metric in costs.metrics:
        variant, _, name = metric.name.partition(".")
        yield variant, dataclasses.replace(metric, name=name)
    yield from (("", Metric(name=ratio.name, kind="ratio", value=ratio.value)) for ratio in costs.ratios)
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for sample in costs.samples:
        suffix = "" if sample.cache == "cold" else f" {sample.cache}"
        for metric in sample.metrics if sample.round > 0 else ():
            found[sample.variant, f"measured {metric.name}{suffix}", metric.kind].append(metric.value)
    for (variant, name, kind), values in found.items():
        yield variant, Metric(name=name, kind=kind, value=median(values))


def _of_build(build: BuildRecord) -> Iterator[Metric]:
    """What is in a build's record beside its metrics."""
    known = {metric.name for metric in build.metrics}
    compiling = [phase.cpu_seconds for phase in build.phases if phase.name == "compile"]
    if compiling and "compile_cpu" not in known:
        yield Metric(name="compile_cpu", kind="cpu_seconds", value=sum(compiling))
    if build.variant != "eager":
        yield from (
            Metric(name=name, kind="count", value=len(getattr(build.counts, name)))
            for name in EVIDENCE
            if name not in known
        )


def environment_of(result: CaseResult) -> tuple[tuple[str, str], ...]:
    """What a measurement of a case depends on, beside the code that it is of."""
    known = result.environment
    accelerator, _, cuda = known.get("accelerator", "").partition(", CUDA ")
    found = {
        "platform": re.sub(r"-torch[^-]*$", "", result.platform),
        "device": result.case.device.partition(":")[0],
        "machine": known.get("machine", ""),
        "cpu": known.get("cpu", ""),
        "accelerator": accelerator,
        "threads": known.get("threads", ""),
        "queue": known.get("queue", ""),
        "torch": _without_date(known.get("torch", "")),
        "triton": known.get("triton", ""),
        "cuda": cuda,
        "driver": known.get("driver", "").partition(".")[0],
        "python": ".".join(known.get("python", "").split(".")[:2]),
        "revision": result.revision,
    }
    return pairs(found)


def pairs(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """An environment as a key: sorted, without what is empty."""
    return tuple(sorted((text(key), text(value)) for key, value in environment.items() if value))


def _without_date(version: str) -> str:
    """Nightly builds of one release are one version: with its date, no series would ever have a second point."""
    return re.sub(r"\.dev\d+", ".dev", version)


def text(value: str) -> str:
    """Text that every database takes: UTF-8, without NUL; what is very long is cut and told apart by its hash."""
    value = value.encode("utf-8", "replace").decode().replace("\0", "")
    if len(value) > TEXT_LIMIT:
        return f"{value[:TEXT_LIMIT]}...{hashlib.sha256(value.encode()).hexdigest()[:12]}"
    return value
