"""A history as files that other programs read and write: JSON Lines, CSV, and the JSON of pytest-benchmark."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pytest_piecewise.errors import HistoryError
from pytest_piecewise.history.series import Sample, Series, Trace, number_of, order_of, pairs
from pytest_piecewise.origin import utc
from pytest_piecewise.records import Run, from_plain, to_plain

RUN_FIELDS = tuple(field.name for field in dataclasses.fields(Run))
COLUMNS = (*RUN_FIELDS, "case", "variant", "metric", "kind", "value", "environment")
BENCHMARK_STATISTICS = ("min", "median")
"""Of the many numbers of a pytest-benchmark result, those that are kept: the steadiest two."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A run with what it has measured. `skipped` counts values that are no numbers."""

    run: Run
    samples: tuple[Sample, ...]
    skipped: int = 0


def by_run(traces: Iterable[Trace]) -> list[Measured]:
    """The same points, by run instead of by series, oldest first."""
    found: dict[Run, list[Sample]] = defaultdict(list)
    for trace in traces:
        for point in trace.points:
            found[point.run].append(Sample(trace.series, point.value))
    return [Measured(run, tuple(found[run])) for run in sorted(found, key=order_of)]


def write_jsonl(measured: Iterable[Measured], path: Path) -> None:
    """One line per run. The environments that its series have are listed once, and referred to by their position."""
    with path.open("w", encoding="utf-8") as file:
        for item in measured:
            known = list(dict.fromkeys(sample.series.environment for sample in item.samples))
            points = [
                [known.index(series.environment), series.case, series.variant, series.metric, series.kind, value]
                for series, value in ((sample.series, sample.value) for sample in item.samples)
            ]
            line = {"run": to_plain(item.run), "environments": [dict(one) for one in known], "points": points}
            file.write(json.dumps(line) + "\n")


def read_jsonl(path: Path) -> Iterator[Measured]:
    """What `write_jsonl` wrote."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
                environments = [pairs(one) for one in data["environments"]]
                values = [(_series(environments[place], *names), value) for place, *names, value in data["points"]]
                run = from_plain(Run, data["run"])
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                raise HistoryError(
                    f"{path}:{number}: expected a line of `pytest-piecewise history export`, found {error!r}"
                ) from error
            yield _measured(run, values)


def write_csv(measured: Iterable[Measured], path: Path) -> None:
    """One row per measurement."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for item in measured:
            start = [getattr(item.run, name) for name in RUN_FIELDS]
            for sample in item.samples:
                series = sample.series
                environment = json.dumps(dict(series.environment))
                writer.writerow(
                    [*start, series.case, series.variant, series.metric, series.kind, sample.value, environment]
                )


def read_csv(path: Path) -> Iterator[Measured]:
    """Rows with at least `started`, `metric` and `value`; rows without an `id` are one run if time and commit are equal."""
    found: dict[Run, list[tuple[Series, Any]]] = defaultdict(list)
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in ("started", "metric", "value") if name not in (reader.fieldnames or ())]
        if missing:
            raise HistoryError(f"{path}: expected the columns started, metric and value, found no {', '.join(missing)}")
        for row in reader:
            try:
                run = _run_of_row(row)
                environment = pairs(json.loads(row.get("environment") or "{}"))
            except (ValueError, AttributeError) as error:
                raise HistoryError(f"{path}:{reader.line_num}: {error}") from error
            names = (
                row.get("case") or path.stem,
                row.get("variant") or "",
                row["metric"],
                row.get("kind") or "seconds",
            )
            found[run].append((_series(environment, *names), row["value"]))
    yield from (_measured(run, values) for run, values in found.items())


def _run_of_row(row: Mapping[str, str]) -> Run:
    texts = {name: row.get(name) or "" for name in RUN_FIELDS if name != "dirty"}
    for name in ("started", "committed"):
        texts[name] = utc(datetime.fromisoformat(texts[name])) if texts[name] else ""
    if not texts["started"]:
        raise ValueError("expected a time in the column `started`, found nothing")
    texts["id"] = texts["id"] or f"csv/{number_of(texts['started'], texts['commit'])}"
    return Run(dirty=row.get("dirty", "") in ("True", "true", "1"), **texts)


def read_benchmark(path: Path) -> Iterator[Measured]:
    """A file that `pytest --benchmark-json` or `--benchmark-save` has written: minimum and median of every benchmark."""
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        commit, machine = data.get("commit_info", {}), data["machine_info"]
        started = utc(datetime.fromisoformat(data["datetime"]))
        run = Run(
            id=f"pytest-benchmark/{number_of(started, commit.get('id') or '', machine.get('node', ''))}",
            started=started,
            commit=commit.get("id") or "",
            committed=utc(datetime.fromisoformat(commit["time"])) if commit.get("time") else "",
            branch=commit.get("branch") or "",
            dirty=bool(commit.get("dirty")),
        )
        environment = pairs(
            {
                "cpu": (machine.get("cpu") or {}).get("brand_raw", ""),
                "machine": machine.get("machine", ""),
                "python": ".".join(machine.get("python_version", "").split(".")[:2]),
            }
        )
        values = [
            (_series(environment, item.get("fullname") or item["name"], "", name, "seconds"), item["stats"][name])
            for item in data["benchmarks"]
            for name in BENCHMARK_STATISTICS
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HistoryError(f"{path}: expected the JSON of pytest-benchmark, found {error!r}") from error
    yield _measured(run, values)


def write_benchmark(measured: Iterable[Measured], directory: Path) -> None:
    """One file per run, as pytest-benchmark stores them, with everything that is in seconds."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, item in enumerate(measured, 1):
        timed = [sample for sample in item.samples if sample.series.kind in ("seconds", "cpu_seconds")]
        if not timed:
            continue
        environment = dict(timed[0].series.environment)
        data = {
            "machine_info": {
                "cpu": {"brand_raw": environment.get("cpu", "")},
                "machine": environment.get("machine", ""),
                "python_version": environment.get("python", ""),
            },
            "commit_info": {
                "id": item.run.commit,
                "time": item.run.committed or None,
                "branch": item.run.branch,
                "dirty": item.run.dirty,
                "project": "",
            },
            "benchmarks": [_benchmark(sample) for sample in timed],
            "datetime": item.run.started,
            "version": "5.0.0",
        }
        stamp = re.sub(r"\W", "", item.run.started)
        name = f"{number:04}_{item.run.commit[:12] or 'unknown'}_{stamp}.json"
        (directory / re.sub(r"[^\w.]", "_", name)).write_text(json.dumps(data, indent=1) + "\n")


def _benchmark(sample: Sample) -> dict[str, Any]:
    value = sample.value
    alike = dict.fromkeys(("min", "max", "mean", "median", "q1", "q3", "ld15iqr", "hd15iqr", "total"), value)
    spread = dict.fromkeys(("stddev", "iqr", "iqr_outliers", "stddev_outliers"), 0)
    stats = alike | spread | {"rounds": 1, "iterations": 1, "ops": 1 / value if value else 0.0, "outliers": "0;0"}
    return {
        "group": sample.series.metric,
        "name": sample.series.name,
        "fullname": sample.series.name,
        "params": None,
        "param": None,
        "extra_info": {"kind": sample.series.kind},
        "options": {},
        "stats": stats,
    }


def _series(environment: tuple[tuple[str, str], ...], case: str, variant: str, metric: str, kind: str) -> Series:
    return Series(case=case, variant=variant, metric=metric, kind=kind, environment=environment)


def _measured(run: Run, values: Iterable[tuple[Series, Any]]) -> Measured:
    samples, skipped = [], 0
    for series, value in values:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if math.isfinite(number):
            samples.append(Sample(series, number))
        else:
            skipped += 1
    return Measured(run, tuple(samples), skipped)


READERS: Mapping[str, Callable[[Path], Iterator[Measured]]] = {
    "jsonl": read_jsonl,
    "csv": read_csv,
    "pytest-benchmark": read_benchmark,
}
WRITERS: Mapping[str, Callable[[Iterable[Measured], Path], None]] = {
    "jsonl": write_jsonl,
    "csv": write_csv,
    "pytest-benchmark": write_benchmark,
}


def format_of(path: Path) -> str:
    """The format that a path's name stands for."""
    return {".jsonl": "jsonl", ".csv": "csv"}.get(path.suffix, "pytest-benchmark")
