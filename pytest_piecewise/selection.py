"""Which tests a session runs: those that a change can touch, and of those one shard. Pure; no pytest, no torch."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_piecewise.changes import touches
from pytest_piecewise.errors import ModelError
from pytest_piecewise.history.places import open_history
from pytest_piecewise.records import CaseResult
from pytest_piecewise.reports import document

ALWAYS = ("pyproject.toml", "pytest.ini", "tox.ini", "setup.cfg")
"""Files of a project that any test may depend on."""

NEWEST = 5
"""So many runs of a history say how long a case takes."""

SHARD_VARIABLES = (
    ("BUILDKITE_PARALLEL_JOB", "BUILDKITE_PARALLEL_JOB_COUNT", 1),
    ("CIRCLE_NODE_INDEX", "CIRCLE_NODE_TOTAL", 1),
    ("CI_NODE_INDEX", "CI_NODE_TOTAL", 0),  # GitLab counts from 1
)
"""Variables that say which job of how many this is, and what to add to the first to count from 1."""


@dataclass(frozen=True, slots=True)
class Test:
    """One collected test. Tests with one `unit` stay together: they share a case, which is then built once.

    `watches` are the paths that can change what it finds, None where nobody has declared them; `ours` says that it
    builds models.
    """

    __test__ = False

    name: str
    unit: str
    watches: tuple[str, ...] | None
    ours: bool = True


@dataclass(frozen=True, slots=True)
class Shard:
    """Job `index` of `count`, from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str, environ: Mapping[str, str]) -> Shard:
    """`I/N`, from 1; or `auto`, from the variables of the CI that runs this."""
    if text == "auto":
        for index, count, add in SHARD_VARIABLES:
            if environ.get(index, "").isdigit() and environ.get(count, "").isdigit():
                return _checked(Shard(int(environ[index]) + add, int(environ[count])), f"{index}={environ[index]}")
        names = ", ".join(f"{index} and {count}" for index, count, _ in SHARD_VARIABLES)
        raise ModelError(f"--piecewise-shard auto: expected {names} in the environment, found none; give I/N")
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found:
        raise ModelError(f"expected --piecewise-shard as I/N, counted from 1, or auto, found {text!r}; for example 1/4")
    return _checked(Shard(int(found[1]), int(found[2])), repr(text))


def _checked(shard: Shard, found: str) -> Shard:
    if not 1 <= shard.index <= shard.count:
        raise ModelError(f"expected a shard from 1 to {shard.count}, found {found}; shards are counted from 1")
    return shard


def touched(tests: Sequence[Test], files: Collection[str], also: Sequence[str]) -> list[Test]:
    """The tests that changed `files` can touch. `also` are paths that all of them watch; who declares none is touched."""
    shared = (*ALWAYS, *also)
    if any(touches(name, shared) for name in files):
        return list(tests)
    return [test for test in tests if test.watches is None or any(touches(name, test.watches) for name in files)]


def split(tests: Sequence[Test], count: int, seconds: Mapping[str, float]) -> list[list[Test]]:
    """`count` shards. The same tests and `seconds` (by unit) give the same shards, in whatever order they were collected.

    Longest first, each to the shard that has least so far; what was never measured counts as the median of what was.
    Without measurements units are dealt out in the order of their hashes, so that no shard gets a whole file.
    """
    units: dict[str, list[Test]] = {}
    for test in tests:
        units.setdefault(test.unit, []).append(test)
    known = [seconds[unit] for unit in units if unit in seconds]
    usual = statistics.median(known) if known else 1.0
    order = sorted(units, key=lambda unit: (-seconds.get(unit, usual), hashlib.sha256(unit.encode()).hexdigest()))
    load, shards = [0.0] * count, [list[Test]() for _ in range(count)]
    for unit in order:
        least = min(range(count), key=lambda index: (load[index], index))
        load[least] += seconds.get(unit, usual)
        shards[least] += units[unit]
    return shards


def digest(tests: Sequence[Test], count: int, seconds: Mapping[str, float]) -> str:
    """Names a split: shards of one run that have another one have lost or repeated tests."""
    names = sorted(test.name for test in tests)
    used = sorted((test.unit, round(seconds[test.unit], 3)) for test in tests if test.unit in seconds)
    return hashlib.sha256(json.dumps([names, count, used]).encode()).hexdigest()[:12]


def is_history(place: str) -> bool:
    """Whether durations lie in a history, an address or an SQLite file, and not in reports."""
    return "://" in place or place.endswith(".db")


def history_seconds(place: str) -> dict[str, float]:
    """How long each case took in the newest runs of a history; the median of its points."""
    with open_history(place) as history:
        traces = list(history.traces(lambda series: (series.variant, series.metric) == ("", "case"), last=NEWEST))
    found: dict[str, list[float]] = {}
    for trace in traces:
        found.setdefault(trace.series.case, []).extend(point.value for point in trace.points)
    return {name: statistics.median(values) for name, values in found.items()}


def read_seconds(path: Path) -> dict[str, float]:
    """How long each case took, from a report.json or a directory with such files at any depth; the median of several."""
    files = [path] if path.is_file() else sorted(path.rglob(document.NAME))
    if not files:
        raise ModelError(f"expected durations in {path}: a report.json, or a directory with some; found none")
    found: dict[str, list[float]] = {}
    for file in files:
        for result in document.read(file).results:
            if measured := seconds_of(result):
                found.setdefault(result.case.id, []).append(measured)
    return {name: statistics.median(values) for name, values in found.items()}


def seconds_of(result: CaseResult) -> float:
    """Wall seconds of a case; where a report has not counted them, those of all phases of its builds."""
    return result.seconds or sum(phase.seconds for build in result.builds for phase in build.phases)
