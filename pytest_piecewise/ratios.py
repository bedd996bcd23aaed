"""Paired samples -> ratios with their intervals. Pure.

The two builds of a pair are made one after the other, in alternating order, so that what slows the machine down for a
while slows both of them. The interval is Student's on the logarithms: at these numbers of pairs a bootstrap is too narrow.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_piecewise.measure import PHASES
from pytest_piecewise.records import Ratio, Sample

PAIRS: Mapping[str, int] = {"fastcheck": 5, "full": 5, "nightly": 10}
"""Pairs per tier, without the first one, which is dropped."""

_T95 = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
    *(1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697),
)
"""Student's t for one side at 95 %, by degrees of freedom from 1 on. Beyond them the last one is a little too careful."""

Side = tuple[str, str]
"""Variant and cache state of a build."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A ratio of one metric between two kinds of builds; `unit` is a metric of the same builds in which the
    sides are told, or empty.

    `parts` are the metrics of its phases, for people who ask which one has moved.
    """

    name: str
    metric: str
    over: Side
    under: Side
    unit: str = ""
    parts: tuple[str, ...] = ()


_COMPILE = tuple(f"compile_{name}_cpu" for name in PHASES)
_WALL = tuple(f"compile_{name}" for name in PHASES)
FULL, PIECEWISE, WARM, EAGER = ("full", "cold"), ("piecewise", "cold"), ("piecewise", "warm"), ("eager", "cold")


def specs(sizes: Sequence[int]) -> tuple[Spec, ...]:
    """The ratios of a model with these captured sizes: steps at the smallest and the largest of them."""
    steps = dict.fromkeys((sizes[0], sizes[-1]))
    return (
        Spec("piecewise/full.compile_cpu", "compile_cpu", PIECEWISE, FULL, "yardstick", _COMPILE),
        Spec("piecewise/full.compile", "compile", PIECEWISE, FULL, "", _WALL),
        Spec("warm/cold.compile_cpu", "compile_cpu", WARM, PIECEWISE, "yardstick", _COMPILE),
        Spec("piecewise/full.capture", "capture", PIECEWISE, FULL),
        *(Spec(f"piecewise/full.step_{size}", f"step_{size}_fast", PIECEWISE, FULL) for size in steps),
        *(Spec(f"full/eager.step_{size}", f"step_{size}_fast", FULL, EAGER) for size in steps),
    )


def order_of(round_: int) -> tuple[Side, ...]:
    """The builds of a round in the order in which they are made: full and piecewise take turns in being first.

    A warm build follows the cold one whose caches it finds.
    """
    compiled = (FULL, PIECEWISE, WARM) if round_ % 2 == 0 else (PIECEWISE, WARM, FULL)
    return (EAGER, *compiled) if round_ % 2 == 0 else (*compiled, EAGER)


def ratios(samples: Sequence[Sample], wanted: Sequence[Spec]) -> Iterator[Ratio]:
    """Those of the wanted ratios that the samples have on both sides, in two rounds at least beside the first."""
    for spec in wanted:
        over, under = (_values(samples, side, spec.metric) for side in (spec.over, spec.under))
        shared = sorted(over.keys() & under.keys())
        if len(shared) < 2:
            continue
        found = _ratio(spec.name, [over[round_] for round_ in shared], [under[round_] for round_ in shared])
        sides = [
            statistics.median(_values(samples, side, spec.metric, spec.unit).values())
            for side in (spec.over, spec.under)
        ]
        yield dataclasses.replace(found, over=sides[0], under=sides[1], parts=_parts(samples, spec))


def _parts(samples: Sequence[Sample], spec: Spec) -> dict[str, float]:
    names = spec.name.partition(".")[0].split("/")
    found = {}
    for name, side in zip(names, (spec.over, spec.under), strict=True):
        for part in spec.parts:
            if values := _values(samples, side, part, spec.unit):
                label = part.removeprefix("compile_").removesuffix("_cpu")
                found[f"{name} {label}"] = statistics.median(values.values())
    return found


def _values(samples: Sequence[Sample], side: Side, metric: str, unit: str = "") -> dict[int, float]:
    """The values of a metric on one side by round, if need be in units of another one of the same builds."""
    found = {}
    for sample in samples:
        values = {item.name: item.value for item in sample.metrics}
        if sample.round > 0 and (sample.variant, sample.cache) == side and values.get(metric, 0) > 0:
            found[sample.round] = values[metric] / (values.get(unit, 1.0) if unit else 1.0)
    return found


def _ratio(name: str, over: Sequence[float], under: Sequence[float]) -> Ratio:
    logs = [math.log(a / b) for a, b in zip(over, under, strict=True)]
    mean, spread = statistics.mean(logs), statistics.stdev(logs)
    half = t95(len(logs) - 1) * spread / math.sqrt(len(logs))
    return Ratio(
        name=name,
        value=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        spread=spread,
        pairs=len(logs),
    )


def order_bias(samples: Sequence[Sample]) -> dict[str, float]:
    """By how much a side does better or worse for being made first: the mean over even rounds against that over odd ones.

    It cancels in a ratio, as far as there are as many rounds of one kind as of the other.
    """
    found = {}
    for spec in specs((0,))[:1]:
        over, under = (_values(samples, side, spec.metric) for side in (spec.over, spec.under))
        logs = {number: math.log(over[number] / under[number]) for number in over.keys() & under.keys()}
        even, odd = ([log for number, log in logs.items() if number % 2 == kind] for kind in (0, 1))
        if even and odd:
            found[spec.name] = math.exp((statistics.mean(odd) - statistics.mean(even)) / 2) - 1
    return found


def t95(degrees: int) -> float:
    """The one-sided 95 % quantile of Student's distribution."""
    return _T95[min(degrees, len(_T95)) - 1]


def noise(ratio: Ratio) -> float:
    """The standard error of a ratio's logarithm: about the relative error of the ratio itself."""
    return ratio.spread / math.sqrt(ratio.pairs)
