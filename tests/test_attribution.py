"""Why a number moved: kernels that came and went, pieces that could have been one, packages, phases, sides, cache keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_piecewise.baselines.entries import Entry
from pytest_piecewise.baselines.files import Baseline
from pytest_piecewise.baselines.judge import judge_stored
from pytest_piecewise.records import BuildRecord, Case, CaseResult, Costs, Finding, Metric, Part, Ratio, Status
from pytest_piecewise.reports.costs import cost_tables

VERSION = "[torch2.13.0-py3.11]"


def judged(stored: dict[str, Entry], calls: dict[str, int] | None = None, **build: Any) -> dict[str, Finding]:
    """The findings of a result whose piecewise build and costs are as given, by check; `calls` are the stored kernels."""
    costs = build.pop("costs", Costs())
    counts = build.pop("counts", {})
    metrics = tuple(Metric(name=name, kind="count", value=value) for name, value in counts.items())
    result = CaseResult(
        case=Case(model="m:TINY", name="tiny"),
        seed=0,
        platform="cpu",
        revision="r",
        graph_kind="",
        findings=(),
        builds=(BuildRecord(variant="piecewise", outcome="ok", metrics=metrics, **build),),
        environment={"torch": "2.13.0+cpu", "python": "3.11.7"},
        costs=costs,
    )
    baseline = Baseline(case="tiny-native-float32", revision="r", metrics=stored, kernels=calls or {})
    return {item.check: item for item in judge_stored(result, baseline, Path("x.json"))}


def exact(**values: int | str) -> dict[str, Entry]:
    return {f"piecewise.{name}": Entry(gate="exact", value=value) for name, value in values.items()}


def test_kernels_that_came_and_went_are_named() -> None:
    found = judged(
        exact(kernels=3),
        {"piecewise add": 2, "piecewise mul": 1, "full add": 7},
        counts={"kernels": 4},
        kernels=("add", "norm", "norm", "norm"),
    )["baseline"]
    assert found.status is Status.FAIL
    assert "piecewise kernels that came: norm x 3" in found.detail.splitlines()
    assert "piecewise kernels that went: add x 1, mul x 1" in found.detail.splitlines()


def test_pieces_that_could_have_been_one_are_named_with_what_sets_them_apart() -> None:
    parts = (
        Part(name="piece 0", compiled=True, ops=3),
        Part(name="a::b", compiled=False, ops=1),
        Part(name="piece 1", compiled=True, ops=3, differs="from piece 0 in a::c: 'l.1' where that has 'l.0'"),
        Part(name="piece 2", compiled=True, ops=3, same_as="piece 1"),
    )
    found = judged(exact(distinct_pieces=1), counts={"distinct_pieces": 2}, parts=parts)["baseline"]
    assert "piecewise has 3 pieces, 2 of them distinct" in found.detail
    assert "piecewise piece 1 differs from piece 0 in a::c: 'l.1' where that has 'l.0'" in found.detail


def test_nothing_is_explained_where_nothing_moved() -> None:
    parts = (Part(name="piece 0", compiled=True, ops=3),)
    found = judged(exact(distinct_pieces=1), {"piecewise x": 1}, counts={"distinct_pieces": 1}, parts=parts)["baseline"]
    assert (found.status, found.detail) == (Status.PASS, "")


def test_work_is_told_apart_by_package() -> None:
    metrics = [Metric(name="piecewise.work", kind="work", value=1300)]
    for name, value in (("sympy", 700), ("torch.fx", 500), ("rest", 100)):
        metrics.append(Metric(name=f"piecewise.work in {name}", kind="calls", value=value))
    entry = Entry(gate="work", value=1000, parts={"sympy": 400, "torch.fx": 500, "rest": 100})
    found = judged(
        {f"piecewise.work{VERSION}": entry} | exact(kernels=1),
        counts={"kernels": 1},
        costs=Costs(level="work", metrics=tuple(metrics)),
    )["cost"]
    assert found.status is Status.FAIL
    assert found.summary == f"piecewise.work{VERSION}: stored 1000, now 1300 (+30.00%, 1.00% is tolerated)"
    assert f"piecewise.work{VERSION}: calls in sympy +300 (+75.0%)" in found.detail.splitlines()


def ratio(over: float, under: float, **parts: float) -> Costs:
    value = over / under
    made = Ratio(
        name="piecewise/full.compile_cpu",
        value=value,
        low=value * 0.95,
        high=value * 1.05,
        spread=0.05,
        pairs=5,
        over=over,
        under=under,
        parts={name.replace("_", " ", 1): value for name, value in parts.items()},
    )
    return Costs(level="ratios", ratios=(made,))


STORED = {
    "piecewise/full.compile_cpu": Entry(
        gate="ratio",
        value=0.8,
        sides=(8.0, 10.0),
        parts={"piecewise trace": 2.0, "piecewise inductor": 5.0, "full trace": 2.0},
    )
}


def test_ratio_says_which_side_and_which_phase_moved_and_which_counters_did() -> None:
    costs = ratio(13.0, 10.2, piecewise_trace=2.1, piecewise_inductor=9.9, full_trace=2.0)
    found = judged(STORED | exact(kernels=1), counts={"kernels": 2}, costs=costs)
    lines = found["cost"].detail.splitlines()
    name = "piecewise/full.compile_cpu"
    assert f"{name}: piecewise moved: piecewise 8 -> 13 (+62%), full 10 -> 10.2 (+2%), in yardsticks" in lines
    assert f"{name}: phases that moved: piecewise inductor +98%" in lines
    assert f"{name}: counters that moved with it: piecewise.kernels" in lines
    assert found["baseline"].status is Status.FAIL


def test_ratio_that_moved_because_the_other_side_got_faster_says_so() -> None:
    found = judged(STORED | exact(kernels=1), counts={"kernels": 1}, costs=ratio(8.1, 5.0))["cost"]
    assert found.status is Status.FAIL
    lines = found.detail.splitlines()
    name = "piecewise/full.compile_cpu"
    assert f"{name}: full moved: piecewise 8 -> 8.1 (+1%), full 10 -> 5 (-50%), in yardsticks" in lines
    assert f"{name}: counters that moved with it: none" in lines


def test_miss_of_a_warm_build_comes_with_the_part_of_the_key() -> None:
    costs = Costs(
        level="work",
        metrics=(Metric(name="piecewise.warm_cache_misses", kind="count", value=1),),
        notes=(
            "warm piecewise: cache miss compiled_fx_graph_hash: inductor_config[x]: 1 was 2",
            "warm full: cache miss compiled_fx_graph_hash: y",
        ),
    )
    found = judged(exact(warm_cache_misses=0, kernels=1), counts={"kernels": 1}, costs=costs)["baseline"]
    assert found.status is Status.FAIL
    assert costs.notes[0] in found.detail.splitlines()
    assert costs.notes[1] not in found.detail


def test_costs_are_shown_in_a_table_also_when_they_pass() -> None:
    metrics = (Metric(name="full.work", kind="work", value=1234567), Metric(name="x", kind="calls", value=1))
    costs = Costs(level="ratios", metrics=metrics, ratios=ratio(8.0, 10.0).ratios)
    shown = CaseResult(
        case=Case(model="m:TINY", name="tiny"),
        seed=0,
        platform="cpu",
        revision="r",
        graph_kind="",
        findings=(),
        builds=(),
        costs=costs,
    )
    assert cost_tables([shown, replace(shown, costs=Costs())]) == [
        "costs of tiny-native-float32      now  95 % interval  n    sd",
        "full.work                     1234567",
        "piecewise/full.compile_cpu        0.8   [0.76, 0.84]  5  5.0%",
    ]


def test_what_a_run_was_not_to_measure_is_not_missed() -> None:
    stored = STORED | exact(warm_cache_misses=0, kernels=1) | {f"full.work{VERSION}": Entry(gate="work", value=10)}
    assert set(judged(stored, counts={"kernels": 1})) == {"baseline"}
    work = judged(stored, counts={"kernels": 1}, costs=Costs(level="work"))
    assert work["cost"].summary == f"full.work{VERSION}: stored 10, no longer measured"
    assert work["baseline"].summary == "piecewise.warm_cache_misses: stored 0, no longer measured"
    ratios = judged(stored, counts={"kernels": 1}, costs=Costs(level="ratios"))
    assert "piecewise/full.compile_cpu: stored 0.8, no longer measured" in ratios["cost"].summary


def test_work_of_another_version_is_not_missed_and_this_one_is_new() -> None:
    stored = {"full.work[torch2.12.1-py3.12]": Entry(gate="work", value=10)} | exact(kernels=1)
    costs = Costs(level="work", metrics=(Metric(name="full.work", kind="work", value=9),))
    found = judged(stored, counts={"kernels": 1}, costs=costs)["cost"]
    assert (found.status, found.summary) == (Status.NEW, f"full.work{VERSION}: no stored value, now 9")
