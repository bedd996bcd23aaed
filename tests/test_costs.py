"""Costs are measured in builds of their own: in which order, with which caches, once more when in doubt; and faults show."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise import machine_lock
from pytest_piecewise.baselines.files import load
from pytest_piecewise.costs import measure_costs
from pytest_piecewise.records import BuildRecord, Case, Costs, Finding, Metric, Ratio, Settings, Status
from tests.running import run_pytest
from tests.test_plugin import case, project

CASE = Case(model="m:TINY", name="tiny")


class Counted:
    """A worker that builds nothing: it notes what it was asked for, and answers with numbers by variant and cache."""

    gpus = 0

    def __init__(self, seconds: Callable[[str, str, int], float], broken: str = "") -> None:
        self._seconds, self._broken = seconds, broken
        self.asked: list[tuple[str, str, bool]] = []
        self.caches: list[Path] = []

    def do(self, task: dict[str, Any], folder: Path, settings: Settings, on_tick: Any) -> BuildRecord:
        variant, state, counted = task["variant"], task["state"], task["counted"]
        self.asked.append((variant, state, counted))
        self.caches.append(Path(task["caches"]))
        if variant == self._broken:
            failed = Finding(check="build", status=Status.FAIL, variant=variant, summary="it broke")
            return BuildRecord(variant=variant, outcome="error", findings=(failed,))
        if counted:
            metrics = [
                Metric(name="work", kind="work", value=1000),
                Metric(name="work in sympy", kind="calls", value=600),
                Metric(name="cache_misses", kind="count", value=int(state == "cold")),
                Metric(name="kernels", kind="count", value=3),
            ]
        else:
            number = sum(asked[:2] == (variant, state) and not asked[2] for asked in self.asked)
            seconds = self._seconds(variant, state, number)
            metrics = [
                Metric(name="yardstick", kind="cpu_seconds", value=0.1),
                Metric(name="compile_cpu", kind="cpu_seconds", value=seconds),
                Metric(name="step_4", kind="seconds", value=seconds),
                Metric(name="step_4_fast", kind="seconds", value=seconds),
            ]
        return BuildRecord(variant=variant, outcome="ok", metrics=tuple(metrics))

    def close(self) -> None:
        pass


def steady(variant: str, state: str, number: int) -> float:
    return {"eager": 4.0, "full": 2.0, "piecewise": 1.0}[variant] * (0.25 if state == "warm" else 1.0)


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine_lock.VARIABLE, str(tmp_path))


def measure(worker: Counted, level: str, doubtful: Callable[[Ratio], bool] = lambda ratio: False) -> Costs:
    return measure_costs(CASE, Settings(costs=level), worker, lambda *_: None, doubtful)


def test_work_is_counted_cold_and_warm_on_the_caches_of_the_cold_build() -> None:
    worker = Counted(steady)
    costs = measure(worker, "work")
    assert worker.asked == [(variant, state, True) for variant in ("full", "piecewise") for state in ("cold", "warm")]
    assert worker.caches[0] == worker.caches[1] != worker.caches[2] == worker.caches[3]
    assert not any(path.exists() for path in worker.caches)
    assert (costs.level, costs.samples, costs.ratios) == ("work", (), ())
    assert {metric.name for metric in costs.metrics if metric.kind == "count"} == {
        "full.warm_cache_misses",
        "piecewise.warm_cache_misses",
    }
    assert {metric.name for metric in costs.metrics if metric.kind == "work"} == {
        "full.work",
        "full.warm_work",
        "piecewise.work",
        "piecewise.warm_work",
    }


def test_ratios_are_those_of_pairs_in_turns() -> None:
    worker = Counted(steady)
    costs = measure(worker, "ratios")
    timed = [asked[:2] for asked in worker.asked if not asked[2]]
    assert len(timed) == 6 * 4
    firsts = [next(v for v, _ in timed[4 * n : 4 * n + 4] if v != "eager") for n in range(6)]
    assert firsts == ["full", "piecewise"] * 3
    values = {ratio.name: (ratio.value, ratio.pairs) for ratio in costs.ratios}
    assert values == {
        "piecewise/full.compile_cpu": (pytest.approx(0.5), 5),
        "warm/cold.compile_cpu": (pytest.approx(0.25), 5),
        "piecewise/full.step_4": (pytest.approx(0.5), 5),
        "full/eager.step_4": (pytest.approx(0.5), 5),
    }
    sides = {ratio.name: (ratio.over, ratio.under) for ratio in costs.ratios}
    assert sides["piecewise/full.compile_cpu"] == (pytest.approx(10.0), pytest.approx(20.0))


def test_first_pair_does_not_count() -> None:
    def slow_at_first(variant: str, state: str, number: int) -> float:
        return steady(variant, state, number) * (50 if (variant, number) == ("full", 1) else 1)

    (ratio, *_) = measure(Counted(slow_at_first), "ratios").ratios
    assert ratio.value == pytest.approx(0.5)


def test_doubtful_ratio_is_measured_once_more_with_twice_the_pairs_and_that_counts() -> None:
    def slow_in_the_first_rounds(variant: str, state: str, number: int) -> float:
        return steady(variant, state, number) * (3 if variant == "piecewise" and number <= 6 else 1)

    worker = Counted(slow_in_the_first_rounds)
    costs = measure(worker, "ratios", lambda ratio: ratio.name == "piecewise/full.compile_cpu")
    assert len([asked for asked in worker.asked if not asked[2]]) == (6 + 11) * 4
    values = {ratio.name: (ratio.value, ratio.pairs) for ratio in costs.ratios}
    assert values["piecewise/full.compile_cpu"] == (pytest.approx(0.5), 10)
    assert values["piecewise/full.step_4"] == (pytest.approx(1.5), 5)  # nobody doubted it


def test_machine_that_is_never_free_leaves_ratios_unmeasured_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pytest_piecewise.costs.WAIT_SECONDS", 0.1)
    worker = Counted(steady)
    with machine_lock.shared(tmp_path):
        costs = measure(worker, "ratios")
    assert costs.level == "work"
    assert costs.absent["ratios"].startswith("the machine was not free for 0.1 s")
    assert len(costs.metrics) > 0
    assert not any(path.exists() for path in worker.caches)


def test_build_that_fails_only_here_is_noted_and_its_metrics_are_missing() -> None:
    costs = measure(Counted(steady, broken="full"), "ratios")
    assert "cold full could not be measured: it broke" in costs.notes
    assert not any(metric.name.startswith("full.") for metric in costs.metrics)
    assert [ratio.name for ratio in costs.ratios] == ["warm/cold.compile_cpu"]


# Real builds


PLANTED = """
import os
from pathlib import Path
from typing import Any
from torch._inductor.custom_graph_pass import CustomGraphPass
from tests.planted.models import model


class Busy(CustomGraphPass):
    def __call__(self, graph: Any) -> None:
        for number in range(40_000 if os.environ.get("PLANT") else 0):
            self.call(number)

    def call(self, number: int) -> int:
        return number

    def uuid(self) -> bytes:
        return b"busy"


def config() -> dict[str, Any]:
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    warm = any(path.is_file() for path in cache.rglob("*"))
    other = {"max_fusion_size": 63} if warm and os.environ.get("PLANT") else {}
    return {"post_grad_custom_post_pass": Busy()} | other


ONE = model(name="one", capture_sizes=(4,), inductor_config=config)
"""


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A project whose work was stored; the output of a session without a change, and of one with two planted faults."""
    directory = project(tmp_path_factory.mktemp("costs"), measured=PLANTED, test_one=case("one", "measured:ONE"))
    arguments = ("--piecewise", "--piecewise-dtype=float32", "--piecewise-costs=work")
    done = run_pytest(directory, *arguments, "--piecewise-update=new")
    assert done.returncode == 0, done.stdout
    same = run_pytest(directory, *arguments, CI="true")
    assert same.returncode == 0, same.stdout
    worse = run_pytest(directory, *arguments, CI="true", PLANT="1")
    assert worse.returncode == 10, worse.stdout
    return directory, same.stdout, worse.stdout


def test_stored_work_is_met_again_by_another_session(sessions: tuple[Path, str, str]) -> None:
    directory, same, _ = sessions
    (path,) = directory.glob("baselines/*/one-native-float32.json")
    metrics = load(path).metrics
    work = {re.sub(r"\[.*", "", name): entry for name, entry in metrics.items() if entry.gate == "work"}
    assert set(work) == {f"{v}.{w}" for v in ("full", "piecewise") for w in ("work", "warm_work")}
    assert work["full.work"].value > 2 * work["full.warm_work"].value > 10_000
    assert work["full.work"].parts["torch.fx"] > 1000
    assert (metrics["full.warm_cache_misses"].value, metrics["full.cache_hits"].value) == (0, 0)
    assert metrics["full.warm_cache_hits"].value > 0
    assert metrics["full.artifacts"].gate == "budget"
    assert "FAIL" not in same
    assert "STALE" not in same


def test_python_calls_planted_in_a_pass_fail_the_work_and_say_where(sessions: tuple[Path, str, str]) -> None:
    output = sessions[2]
    assert re.search(r"FAIL cost: .*full\.work\[torch[\d.]+-py3\.\d+\]: stored \d+, now \d+ \(\+\d", output), output
    assert re.search(r"full\.work\[\S+\]: calls in other \+4\d{4} ", output), output


def test_cache_key_that_changes_from_build_to_build_fails_and_the_part_is_named(
    sessions: tuple[Path, str, str],
) -> None:
    output = sessions[2]
    assert re.search(r"FAIL baseline: .*piecewise\.warm_cache_misses: stored 0, now \d", output), output
    assert re.search(r"warm piecewise: cache miss \w+: inductor_config\[max_fusion_size\]: 63 was 64", output), output
