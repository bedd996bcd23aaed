"""What isolation costs, and what piecewise compilation saves on 24 equal layers. On a CPU, quiet for the second.

    python scripts/bench_cpu.py [--repeat 5] [--out FILE]

Isolation: wall seconds of a child from request to answer, less the seconds of its own phases (build, protocol).
Layers: CPU seconds of compilation, self and children, of full and piecewise builds of `DEEP_LLAMA`, in alternating
order, each in a fresh child with empty caches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pytest_piecewise.records import BuildRecord, Case, Settings, to_plain
from pytest_piecewise.workers import Children

TINY = Case(model="suites.fastcheck.test_llama:TINY_LLAMA", name="tiny-llama")
DEEP = Case(model="suites.fastcheck.test_llama:DEEP_LLAMA", name="deep-llama")


def build(children: Children, case: Case, variant: str) -> tuple[BuildRecord, float]:
    """The record of one build, and the wall seconds of having it built."""
    task = {"kind": "build", "variant": variant, "case": to_plain(case), "settings": to_plain(Settings())}
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        record = children.do(task, Path(folder) / variant, Settings(), lambda *_: None)
        seconds = time.perf_counter() - begin
    if record.outcome != "ok":
        raise SystemExit(f"{case.name} {variant}: {record.findings}")
    return record, seconds


def isolation(children: Children, repeat: int) -> list[float]:
    """Seconds on top of the build's own phases, per build."""
    overheads = []
    for variant in ("eager", "full", "piecewise") * repeat:
        record, seconds = build(children, TINY, variant)
        overheads.append(seconds - sum(phase.seconds for phase in record.phases))
    return overheads


def compile_seconds(children: Children, repeat: int) -> list[tuple[float, float, int]]:
    """CPU seconds of compilation of full and of piecewise, and distinct pieces, per pair."""
    pairs = []
    for index in range(repeat):
        order = ("full", "piecewise")[:: -1 if index % 2 else 1]
        records = {variant: build(children, DEEP, variant)[0] for variant in order}
        cpu = {v: sum(p.cpu_seconds for p in r.phases if p.name == "compile") for v, r in records.items()}
        pairs.append((cpu["full"], cpu["piecewise"], records["piecewise"].counts.distinct_pieces))
    return pairs


def spread(values: list[float]) -> str:
    """Median with least and greatest."""
    return f"median {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f}), n={len(values)}"


def main() -> None:
    """Prints both, as text and, if asked for, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    children = Children()
    try:
        children.preload("suites.fastcheck.test_llama")
        build(children, TINY, "eager")
        overheads = isolation(children, options.repeat)
        pairs = compile_seconds(children, options.repeat)
    finally:
        children.close()
    ratios = [piecewise / full for full, piecewise, _ in pairs]
    print(f"isolation, s per build: {spread(overheads)}")
    print(f"24 layers, full, CPU s of compilation: {spread([full for full, _, _ in pairs])}")
    print(f"24 layers, piecewise, CPU s of compilation: {spread([split for _, split, _ in pairs])}")
    print(f"24 layers, piecewise/full: {spread(ratios)}; distinct pieces {sorted({pair[2] for pair in pairs})}")
    if options.out:
        options.out.write_text(json.dumps({"isolation_s": overheads, "compile_cpu_s": pairs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
