"""A history of real builds on the machine at hand, with a planted step: what alerts are tried on beside simulations.

    python scripts/collect_history.py --history collected.db [--runs 64] [--planted-at 48] [--burn 0.05]
    pytest-piecewise alerts --history collected.db

Two small models, all variants, one run per round. From round `planted-at` on, a graph pass burns CPU time while the models
are compiled: `burn` of what compiling took before. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._inductor.custom_graph_pass import CustomGraphPass

from pytest_piecewise import Model
from pytest_piecewise.history.series import samples
from pytest_piecewise.history.store import History
from pytest_piecewise.records import Case, Report, Run, Settings
from pytest_piecewise.runner import run_case
from pytest_piecewise.workers import Children

BURN = "COLLECT_HISTORY_BURN"
"""CPU seconds to burn per graph; an environment variable, since children are told by nothing else."""


@torch.library.custom_op("collected::mix", mutates_args=("out",))
def mix(x: torch.Tensor, out: torch.Tensor) -> None:
    """The splitting op: something row by row."""
    out.copy_(x.cumsum(-1) / x.shape[-1])


@mix.register_fake
def _(x: torch.Tensor, out: torch.Tensor) -> None:
    return None


class Burning(CustomGraphPass):
    """Changes nothing and takes its time."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Burns CPU seconds."""
        end = time.process_time() + float(os.environ.get(BURN, "0"))
        while time.process_time() < end:
            pass

    def uuid(self) -> Any:
        """One and the same for Inductor's cache."""
        return "collected-burning"


class Layer(nn.Module):
    """A residual layer round the splitting op."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.RMSNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape and dtype of `x`."""
        hidden = torch.nn.functional.gelu(self.first(self.norm(x)))
        out = torch.empty_like(hidden)
        torch.ops.collected.mix(hidden, out)
        return x + self.second(out)


def shallow() -> nn.Module:
    """Two layers."""
    return nn.Sequential(*(Layer(32) for _ in range(2)))


def deep() -> nn.Module:
    """Four wider ones."""
    return nn.Sequential(*(Layer(48) for _ in range(4)))


def _model(name: str, build: Any, width: int) -> Model:
    return Model(
        name=name,
        build=build,
        inputs=lambda size, generator: (torch.randn(size, width, generator=generator),),
        splitting_ops=("collected::mix",),
        capture_sizes=(1, 4),
        inductor_config={"post_grad_custom_pre_pass": Burning()},
    )


SHALLOW, DEEP = _model("shallow", shallow, 32), _model("deep", deep, 48)


def main() -> None:
    """Runs and appends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--history", required=True)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--planted-at", type=int, default=48)
    parser.add_argument("--burn", type=float, default=0.05)
    given = parser.parse_args()
    cases = [
        Case(model=f"collect_history:{name.upper()}", file=str(Path(__file__).resolve()), name=name)
        for name in ("shallow", "deep")
    ]
    settings, worker = Settings(), Children()
    with History(given.history) as history:
        done = len(history.runs())
        for number in range(done, given.runs):
            planted = number >= given.planted_at
            os.environ[BURN] = str(given.burn * _seconds_per_graph(history) if planted else 0.0)
            start = time.time()
            results = tuple(run_case(case, settings, worker, lambda *told: None) for case in cases)
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start))
            run = Run(id=f"collected/{number:03}", started=moment, committed=moment, commit=f"round{number:03}")
            report = Report(run=run, tier="fastcheck", complete=True, environment={}, results=results)
            new = history.append(run, samples(report))
            failed = [f.summary for result in results for f in result.findings if f.status == "FAIL"]
            print(
                f"{run.commit}: {new} measurements, {time.time() - start:.0f} s",
                "planted" * planted,
                *failed,
                flush=True,
            )
    worker.close()


def _seconds_per_graph(history: History) -> float:
    """What compiling one graph of the piecewise build took in the median of the rounds so far."""
    traces = history.traces(lambda series: series.metric == "compile_cpu" and series.variant == "full")
    return statistics.median(point.value for trace in traces for point in trace.points)


if __name__ == "__main__":
    main()
