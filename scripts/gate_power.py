"""How often the gate of ratios fails what got slower, and what did not. On a CPU, or with `--device cuda`.

    python scripts/gate_power.py collect FILE [--pairs 30] [--load] [--slow burn|sleep --seconds S]
    python scripts/gate_power.py table FILE...
    python scripts/gate_power.py counts FILE...
    python scripts/gate_power.py sessions [--runs 3] [--load] [--slow burn|sleep --seconds S]

`collect` builds real pairs, full and piecewise, each build in a fresh child with empty caches, in alternating order, and
keeps what was measured. `table` draws from those pairs: the gate's own rule, its confirmation with twice the pairs
included, on pairs drawn with replacement whose piecewise side is multiplied by what the table says. `counts` says
whether the exact counts of all those builds are alike. `sessions` runs whole pytest sessions against a stored baseline.
`--load` keeps every core busy meanwhile; `--slow` plants a slowdown.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pytest_piecewise.baselines.entries import Entry, Measured, verdict
from pytest_piecewise.costs import Bench
from pytest_piecewise.engines.cost_metrics import COUNTED
from pytest_piecewise.ratios import FULL, PIECEWISE, Spec, ratios
from pytest_piecewise.records import Case, Metric, Sample, Settings, Status
from pytest_piecewise.workers import Children

ROOT = Path(__file__).resolve().parent.parent
CASE = Case(model="scripts.gate_models:SLOWED", name="slowed")
METRICS = ("compile_cpu", "compile")
KEPT = ("count", "seconds", "cpu_seconds")
CHANGES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
PAIRS = (5, 10)
RUNS = 4000


def spin() -> None:
    """Keeps a core busy until it is ended."""
    while True:
        pass


@contextmanager
def load(asked: bool) -> Iterator[None]:
    """Within it every core is busy with something else, if asked for."""
    hogs = [multiprocessing.get_context("fork").Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    hogs = hogs if asked else []
    for hog in hogs:
        hog.start()
    try:
        yield
    finally:
        for hog in hogs:
            hog.terminate()


def collect(arguments: argparse.Namespace) -> None:
    """Real pairs, one JSON line each, so that an interrupted collection is none in vain."""
    os.environ |= slowed(arguments)
    children = Children()
    bench = Bench(replace(CASE, device=arguments.device), Settings(), children, lambda *_: None)
    with load(arguments.load), arguments.file.open("a") as out:
        for number in range(arguments.pairs + 1):
            order = (FULL, PIECEWISE) if number % 2 == 0 else (PIECEWISE, FULL)
            found = {sample.variant: sample for sample in bench.round(number, order)}
            values = {v: {m.name: m.value for m in s.metrics if m.kind in KEPT} for v, s in found.items()}
            out.write(json.dumps({"round": number} | values) + "\n")
            out.flush()
    bench.close()
    children.close()


def slowed(arguments: argparse.Namespace) -> dict[str, str]:
    """The environment that plants the slowdown."""
    if not arguments.slow:
        return {}
    return {"GATE_SLOW_KIND": arguments.slow, "GATE_SLOW_SECONDS": str(arguments.seconds)}


def pairs_in(file: Path, metric: str) -> list[tuple[float, float]]:
    """(piecewise, full) of every pair but those that came first."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [(line["piecewise"][metric], line["full"][metric]) for line in lines if line["round"]]


def counts(arguments: argparse.Namespace) -> None:
    """How many builds had other counts than the first one, per file and variant."""
    for file in arguments.files:
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for variant in ("full", "piecewise"):
            found = [{name: line[variant][name] for name in COUNTED} for line in lines]
            other = sum(item != found[0] for item in found)
            print(f"{file.stem} {variant}: {len(found) - other} of {len(found)} builds alike, {found[0]}")


def fails(drawn: Sequence[tuple[float, float]], base: float) -> bool:
    """The gate's rule, as it is, on these pairs."""
    samples = [
        Sample(round=number, variant=side[0], cache=side[1], metrics=(Metric(name="x", kind="seconds", value=value),))
        for number, pair in enumerate(drawn, 1)
        for side, value in zip((PIECEWISE, FULL), pair, strict=True)
    ]
    (found,) = ratios(samples, [Spec("piecewise/full.x", "x", PIECEWISE, FULL)])
    now = Measured(gate="ratio", value=found.value, low=found.low, high=found.high)
    return verdict("x", Entry(gate="ratio", value=base), now, date(2026, 1, 1)).status is Status.FAIL


def power(real: Sequence[tuple[float, float]], change: float, count: int) -> float:
    """The share of runs that fail when the piecewise side takes so much longer."""
    rng = random.Random(f"{change} {count} {len(real)}")
    base = math.exp(statistics.mean(math.log(a / b) for a, b in real))

    def run(number: int) -> bool:
        return fails([(a * (1 + change), b) for a, b in rng.choices(real, k=number)], base)

    return sum(run(count) and run(2 * count) for _ in range(RUNS)) / RUNS


def table(arguments: argparse.Namespace) -> None:
    """Markdown: one row per file, metric and number of pairs."""
    print("| pairs from | metric | real pairs | sd of log ratio | n |", " | ".join(f"{c:+.0%}" for c in CHANGES), "|")
    print("|---|---|---|---|---|", "---|" * len(CHANGES), sep="")
    for file in arguments.files:
        for metric in METRICS:
            real = pairs_in(file, metric)
            spread = statistics.stdev(math.log(a / b) for a, b in real)
            for count in PAIRS:
                shares = " | ".join(f"{power(real, change, count):.2%}" for change in CHANGES)
                print(f"| {file.stem} | {metric} | {len(real)} | {spread:.1%} | {count} | {shares} |")


def sessions(arguments: argparse.Namespace) -> None:
    """Whole sessions: the baseline of one, then as many as asked for against it; prints their exit codes."""
    with tempfile.TemporaryDirectory() as place, load(arguments.load):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--piecewise-model={CASE.model}"]
        command += [
            "--piecewise",
            "--piecewise-dtype=float32",
            "--piecewise-costs=ratios",
            f"--piecewise-baselines={place}",
            f"--piecewise-device={arguments.device}",
        ]
        environ = {key: value for key, value in os.environ.items() if key != "CI"} | {"PYTHONPATH": str(ROOT)}
        subprocess.run([*command, "--piecewise-update=new"], check=True, cwd=ROOT, env=environ, capture_output=True)
        codes = []
        for _ in range(arguments.runs):
            done = subprocess.run(
                command, cwd=ROOT, env=environ | slowed(arguments), capture_output=True, text=True, check=False
            )
            codes.append(done.returncode)
            print(
                done.returncode,
                *(line for line in done.stdout.splitlines() if "compile" in line and "tolerated" in line),
            )
        print("exit codes:", codes)


def main() -> None:
    """Does one of the four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("collect", "sessions"):
        action = actions.add_parser(name)
        action.add_argument("--load", action="store_true")
        action.add_argument("--slow", choices=("burn", "sleep"))
        action.add_argument("--seconds", type=float, default=0.0)
        action.add_argument("--device", default="cpu")
        if name == "collect":
            action.add_argument("file", type=Path)
            action.add_argument("--pairs", type=int, default=30)
        else:
            action.add_argument("--runs", type=int, default=3)
    for name in ("table", "counts"):
        actions.add_parser(name).add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    {"collect": collect, "table": table, "counts": counts, "sessions": sessions}[arguments.action](arguments)


if __name__ == "__main__":
    main()
