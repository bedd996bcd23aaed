"""Run piecewise tests against themselves: what moves between equal runs may not gate as if it did not.

Everything after the options goes to pytest, for example `pytest-piecewise null suites/fastcheck`. Ratios get their noise
written into their baselines; a margin below three times that, and an exact metric that moved, are refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytest_piecewise.baselines import files, judge
from pytest_piecewise.baselines.entries import MARGINS, NOISE_FACTOR, Measured, margin_of
from pytest_piecewise.errors import PiecewiseError
from pytest_piecewise.ratios import order_bias
from pytest_piecewise.records import CaseResult, Report, from_plain
from pytest_piecewise.settings import read_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How often, in which tier, against which baselines; the rest is pytest's."""
    parser.add_argument("--runs", type=int, default=2, help="whole runs to compare; default 2")
    parser.add_argument("--tier", choices=("fastcheck", "full", "nightly"), default="fastcheck")
    parser.add_argument("--costs", choices=("counts", "work", "ratios"), default="ratios", help="what is compared")
    parser.add_argument("--baselines", metavar="DIR", help="default: as in pyproject.toml, or baselines/")
    parser.add_argument("pytest", nargs=argparse.REMAINDER, help="arguments of pytest: paths, -k, -n, ...")


def run(arguments: argparse.Namespace) -> int:
    """Runs, compares, writes the noise, and returns 1 if a gate does not hold against it."""
    if arguments.runs < 2:
        raise PiecewiseError("expected at least two runs to compare, found --runs below 2")
    root = Path.cwd()
    directory = root / (arguments.baselines or str(read_table(root).get("baselines", "baselines")))
    with tempfile.TemporaryDirectory(prefix="piecewise-null-") as place:
        reports = [_session(arguments, Path(place) / str(number)) for number in range(arguments.runs)]
    refused = []
    for case in sorted(set.intersection(*(set(report) for report in reports))):
        refused += compare(case, [report[case] for report in reports], directory)
    for line in refused:
        sys.stdout.write(f"REFUSED {line}\n")
    sys.stdout.write(f"{len(refused)} gate(s) do not hold against {arguments.runs} equal runs\n")
    return 1 if refused else 0


def _session(arguments: argparse.Namespace, place: Path) -> dict[str, CaseResult]:
    """The results of one run by case. Failures of costs and baselines are no matter here; all others are."""
    command = [sys.executable, "-m", "pytest", f"--piecewise={arguments.tier}", f"--piecewise-costs={arguments.costs}"]
    rest = [argument for argument in arguments.pytest if argument != "--"]
    done = subprocess.run([*command, f"--piecewise-report={place}", *rest], check=False, capture_output=True, text=True)
    if done.returncode not in (0, 10, 11):
        raise PiecewiseError(
            f"expected a run that passes, this one ended with {done.returncode}:\n{done.stdout[-3000:]}"
        )
    report = from_plain(Report, json.loads((place / "report.json").read_text()))
    return {f"{result.platform}/{result.case.id}": result for result in report.results if judge.measured(result)}


def compare(case: str, results: Sequence[CaseResult], directory: Path) -> list[str]:
    """What does not hold, a line each. Prints the noise of every ratio and of work, and stores the former."""
    runs = [judge.measured(result) for result in results]
    path = directory / f"{case}.json"
    stored = files.load(path) if path.exists() else None
    metrics = dict(stored.metrics) if stored else {}
    refused = []
    for name in sorted(set.intersection(*(set(found) for found in runs))):
        values, entry = [found[name] for found in runs], metrics.get(name)
        gate = entry.gate if entry else values[0].gate
        moved = _moved(values)
        if gate in ("ratio", "work"):
            margin = margin_of(entry) if entry and entry.gate == gate else MARGINS[gate]
            noise = max(moved, *(value.noise for value in values)) if gate == "ratio" else moved
            sys.stdout.write(f"{case}  {name}  noise {noise:.2%}, margin {margin:.0%}\n")
            if entry and entry.gate == "ratio":
                metrics[name] = dataclasses.replace(entry, noise=max(float(f"{noise:.2g}"), 1e-4))
            if margin < NOISE_FACTOR * noise:
                refused.append(f"{case}  {name}: margin {margin:.1%} is below {NOISE_FACTOR} x noise {noise:.1%}")
        elif gate == "exact" and moved:
            shown = ", ".join(str(value.value) for value in values)
            refused.append(
                f"{case}  {name}: cannot be exact, it moved: {shown}; put it into quarantine and find out why"
            )
    for name, bias in order_bias(results[-1].costs.samples).items():
        sys.stdout.write(f"{case}  {name}  first of its pair against second: {bias:+.1%}\n")
    if stored is not None:
        files.write(path, dataclasses.replace(stored, metrics=metrics))
    return refused


def _moved(values: Sequence[Measured]) -> float:
    """How far equal runs lie apart: half the range of the logarithms of numbers, 1 for texts that differ."""
    raw = [value.value for value in values]
    if len(set(raw)) == 1:
        return 0.0
    numbers = [float(value) for value in raw if not isinstance(value, str) and value > 0]
    if len(numbers) < len(raw):
        return 1.0
    return (math.log(max(numbers)) - math.log(min(numbers))) / 2
