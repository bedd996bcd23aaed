"""Measured phases in pytest-benchmark: its JSON has them with their rounds; it may be off, absent, or under xdist."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise.benchmarks import ReplayedClock, Timing, record, timings
from pytest_piecewise.records import BuildRecord, Case, CaseResult, Costs, Metric, Sample
from tests.running import run_pytest
from tests.test_plugin import IN_PROCESS, case, project

BUILD = BuildRecord(
    variant="full",
    outcome="ok",
    metrics=(
        Metric(name="compile", kind="seconds", value=9.0),
        Metric(name="compile_cpu", kind="cpu_seconds", value=8.0),
        Metric(name="capture", kind="seconds", value=2.0),
        Metric(name="kernels", kind="count", value=3),
    ),
)


def sample(round_: int, cache: str, compile_: float, step: float) -> Sample:
    metrics = (
        Metric(name="compile", kind="seconds", value=compile_),
        Metric(name="step_8", kind="seconds", value=step),
    )
    return Sample(round=round_, variant="full", cache=cache, metrics=metrics)


def result(*samples: Sample) -> CaseResult:
    return CaseResult(
        case=Case(model="m:TINY", name="tiny"),
        seed=0,
        platform="cpu",
        revision="r",
        graph_kind="",
        findings=(),
        builds=(BUILD,),
        costs=Costs(samples=samples),
    )


def test_builds_are_single_rounds() -> None:
    assert timings(result()) == [
        Timing("tiny-native-float32 full capture", "capture", (2.0,)),
        Timing("tiny-native-float32 full compile", "compile", (9.0,)),
    ]


def test_samples_are_the_rounds_without_the_first() -> None:
    cold = (sample(0, "cold", 99.0, 99.0), sample(1, "cold", 4.0, 0.1), sample(2, "cold", 5.0, 0.2))
    found = timings(result(*cold, sample(1, "warm", 1.0, 0.3)))
    assert found == [
        Timing("tiny-native-float32 full capture", "capture", (2.0,)),
        Timing("tiny-native-float32 full compile", "compile", (4.0, 5.0)),
        Timing("tiny-native-float32 full step at size 8", "replay", (0.1, 0.2)),
        Timing("tiny-native-float32 warm full compile", "compile", (1.0,)),
        Timing("tiny-native-float32 warm full step at size 8", "replay", (0.3,)),
    ]


def test_fixture_measures_what_the_clock_replays(benchmark: Any) -> None:
    if not benchmark.enabled:
        pytest.skip("benchmarks are disabled here, as pytest-benchmark does under xdist")
    timer = ReplayedClock()
    benchmark._timer = timer  # what the marker does where the fixture is made
    begin = time.perf_counter()
    record(benchmark, timer, [Timing("a", "compile", (100.0, 300.0)), Timing("b", "replay", (2.0,))])
    assert time.perf_counter() - begin < 5
    assert (benchmark.name, benchmark.stats.stats.data) == ("b", [2.0])


TESTS = case("one", "tests.planted.models:CLEAN", engine="stand_in", dtype="float32")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("benchmarks"), test_one=TESTS)


def test_json_of_a_session_has_every_measured_phase(directory: Path) -> None:
    done = run_pytest(directory, *IN_PROCESS, "--benchmark-json=out.json", "--piecewise-report=out")
    assert done.returncode == 0, done.stdout
    found = {item["name"]: item for item in json.loads((directory / "out.json").read_text())["benchmarks"]}
    names = {f"clean-stand_in-float32 {variant} compile" for variant in ("full", "piecewise")}
    assert set(found) == names
    (reported,) = json.loads((directory / "out" / "report.json").read_text())["results"]
    for build in reported["builds"]:
        for metric in build["metrics"]:
            if metric["name"] == "compile":
                stats = found[f"clean-stand_in-float32 {build['variant']} compile"]["stats"]
                assert stats["data"] == [pytest.approx(metric["value"])]
                assert stats["rounds"] == 1
    assert {item["group"] for item in found.values()} == {"compile"}
    for text in ("benchmark 'compile': 2 tests", *names):
        assert text in done.stdout
    assert "was not used" not in done.stdout


@pytest.mark.parametrize("option", ["--benchmark-disable", "-n1", "--benchmark-skip", "-pno:benchmark"])
def test_verdict_does_not_depend_on_it(directory: Path, option: str) -> None:
    done = run_pytest(directory, *IN_PROCESS, option)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    assert "benchmark 'compile'" not in done.stdout
