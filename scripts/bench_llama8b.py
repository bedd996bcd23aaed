"""Compile, capture, pool and step of the Llama-3-8B shape on one GPU: full graph and piecewise, native engine.

    python scripts/bench_llama8b.py [--layers 32] [--repeat 1] [--out FILE]

Every row is a fresh process with empty caches. "full" is the whole model as one piece, captured like the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

VARIANTS = ("full", "piecewise")
STEP_SIZES = (1, 64, 512)
STEP_CALLS = 50


def measure(variant: str, layers: int) -> dict[str, Any]:
    """One build in this process: seconds, bytes, and milliseconds per step as median with its quartiles."""
    import torch

    from pytest_piecewise.engines import Request
    from pytest_piecewise.engines.builds import PiecewiseBuild
    from pytest_piecewise.engines.phases import compile_phases
    from pytest_piecewise.engines.prepare import pinned_numerics
    from pytest_piecewise.measure import Meter
    from suites.startup.test_llama_8b import LLAMA_8B, build

    model = dataclasses.replace(LLAMA_8B, build=functools.partial(build, layers))
    if variant == "full":
        model = dataclasses.replace(model, splitting_ops=())
    device, meter = torch.device("cuda"), Meter()
    # Whatever is charged to the first compilation in a process is not charged to the model.
    torch.compile(lambda x: (x.sin() + 1).sum(-1))(torch.randn(64, 64, device=device))
    torch._dynamo.reset()
    with pinned_numerics(16, device):
        request = Request(model=model, variant="piecewise", dtype=torch.bfloat16, device=device, seed=0, meter=meter)
        made = PiecewiseBuild(request)
        with compile_phases(meter):
            made.prepare()
        steps = {}
        for size in STEP_SIZES:
            with made.stepping(size) as step:
                steps[str(size)] = step_milliseconds(step)
        counts = made.counts
        return {
            "variant": variant,
            "layers": layers,
            "compile_s": meter.seconds("compile"),
            "compile_phases_s": {phase.name: round(phase.seconds, 2) for phase in meter.phases},
            "capture_s": meter.seconds("capture"),
            "captures": counts.captures,
            "pieces": counts.pieces,
            "distinct": counts.distinct_pieces,
            "pool_gib": made.pool_bytes / 2**30,
            "step_ms": steps,
        }


def step_milliseconds(step: Any) -> list[float]:
    """Lower quartile, median and upper quartile of the time between events round one step."""
    import torch

    times = []
    for _ in range(STEP_CALLS + 5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return [round(value, 3) for value in statistics.quantiles(times[5:], n=4)]


def fresh_process(variant: str, layers: int) -> dict[str, Any]:
    """`measure` in a process of its own, with caches of its own."""
    import os

    with tempfile.TemporaryDirectory() as caches:
        environment = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
            "TRITON_CACHE_DIR": f"{caches}/triton",
            "TMPDIR": caches,
        }
        command = [sys.executable, __file__, "--only", variant, "--layers", str(layers)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-4000:])
        return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Prints one line per build and a table with ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=VARIANTS)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options.layers)))
        return
    rows = []
    for repeat in range(options.repeat):
        for variant in VARIANTS[:: -1 if repeat % 2 else 1]:
            rows.append(fresh_process(variant, options.layers))
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    by_variant = {name: [row for row in rows if row["variant"] == name] for name in VARIANTS}
    for key in ("compile_s", "capture_s", "pool_gib"):
        full, split = (statistics.median(row[key] for row in by_variant[name]) for name in VARIANTS)
        print(f"{key:10} full {full:8.3f}  piecewise {split:8.3f}  ratio {split / full:.3f}  n={options.repeat}")
    for size in map(str, STEP_SIZES):
        full, split = (statistics.median(row["step_ms"][size][1] for row in by_variant[name]) for name in VARIANTS)
        print(f"step n={size:4} full {full:8.3f}  piecewise {split:8.3f}  ratio {split / full:.3f}  ms")


if __name__ == "__main__":
    main()
