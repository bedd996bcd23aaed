"""Whole engines of vLLM: that its modes agree, that what is wrong on order is named, and the start-up table."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from pytest_piecewise.engines import vllm, vllm_versions
from pytest_piecewise.engines.vllm_startup import startup_metrics, timed_captures
from pytest_piecewise.models import Llm, llm_model
from pytest_piecewise.records import BuildRecord, Case, CaseResult, Metric
from pytest_piecewise.reports.startup import startup_tables

from .running import ROOT, configure, run_pytest

reason = vllm.VllmLlmEngine().unsupported(Case(model="m:M", name="m", engine="vllm-llm", device="cpu"))
needs_vllm = pytest.mark.skipif(reason is not None, reason=str(reason))

CONFIG = {"model_type": "llama", "vocab_size": 64}


# Without vLLM


def test_model_is_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for config in (CONFIG, str(tmp_path)):
        model = llm_model(name="m", config=config, capture_sizes=(1, 2))
        assert model.build().values == CONFIG
        assert model.capture_sizes == (1, 2)


def test_prompts_differ_in_length_and_by_seed() -> None:
    torch = pytest.importorskip("torch")
    llm = Llm(config=CONFIG, prompt_tokens=(2, 12), new_tokens=3)
    first, second = (llm.inputs(8, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert first[0].shape == (8, 15)
    assert 0 <= int(first[0].min()) <= int(first[0].max()) < 64
    assert 2 <= int(first[1].min()) < int(first[1].max()) <= 12
    assert not torch.equal(first[0], second[0])


def build_record(variant: str, **metrics: float) -> BuildRecord:
    found = tuple(Metric(name=name, kind="seconds", value=value) for name, value in metrics.items())
    return BuildRecord(variant=variant, outcome="ok", metrics=found)


def result_of(*builds: BuildRecord, tier: str = "nightly", name: str = "m", engine: str = "native") -> CaseResult:
    case = Case(model="m:M", name=name, engine=engine, tier=tier)
    return CaseResult(case=case, seed=0, platform="", revision="", graph_kind="", findings=(), builds=builds)


def test_startup_table_has_ratios_and_no_zero_for_what_is_absent() -> None:
    full = build_record("full", compile=8.0, capture=2.0, graph_pool=2**30)
    piecewise = build_record("piecewise", compile=2.0, graph_pool=2**29)
    lines = startup_tables([result_of(build_record("eager"), full, piecewise, build_record("reference"))])
    assert [line.split() for line in lines] == [
        ["start-up", "of", "m,", "float32", "on", "cpu", "native"],
        ["full", "piecewise", "piecewise/full"],
        ["compile", "s", "8.00", "2.00", "0.25"],
        ["capture", "s", "2.00", "-", "-"],
        ["graph", "pool", "GiB", "1.000", "0.500", "0.50"],
    ]


def test_startup_table_has_engines_side_by_side() -> None:
    full, piecewise = build_record("full", compile=8.0), build_record("piecewise", compile=4.0)
    default = build_record("default", compile=5.0, kv_cache_blocks=7.0)
    lines = startup_tables([result_of(full, piecewise, default, engine="vllm-llm"), result_of(full, piecewise)])
    assert [line.split() for line in lines] == [
        ["start-up", "of", "m,", "float32", "on", "cpu", "native", "vllm-llm"],
        ["full", "piecewise", "piecewise/full", "full", "piecewise", "default", "piecewise/full"],
        ["compile", "s", "8.00", "4.00", "0.50", "8.00", "4.00", "5.00", "0.50"],
        ["KV", "cache", "blocks", "-", "-", "-", "-", "-", "7", "-"],
    ]
    assert lines[0].index("vllm-llm") > lines[1].index("piecewise/full")


def test_recorded_graphs_are_no_captures() -> None:
    metrics = (Metric(name="captures", kind="count", value=9.0), Metric(name="compile", kind="seconds", value=1.0))
    rows = {}
    for kind in ("recorded graphs", "cuda graphs"):
        build = BuildRecord(variant="piecewise", outcome="ok", metrics=metrics, graph_kind=kind)
        rows[kind] = [line.split()[0] for line in startup_tables([result_of(build)])]
    assert rows == {
        "recorded graphs": ["start-up", "piecewise", "compile"],
        "cuda graphs": ["start-up", "piecewise", "compile", "captures"],
    }


def test_startup_tables_are_of_the_nightly_tier_and_of_one_shape_each() -> None:
    full = build_record("full", compile=8.0)
    assert startup_tables([result_of(full, tier="full")]) == []
    assert len(startup_tables([result_of(full)])) == 3
    assert len(startup_tables([result_of(full), result_of(full, name="other")])) == 6
    assert startup_tables([result_of(build_record("eager"))]) == []


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("Dynamo bytecode transform time: 1.25 s", "compile_dynamo", 1.25),  # up to 0.31
        ("[backbone] Dynamo bytecode transform time: 1.25 s", "compile_dynamo", 1.25),
        ("Compiling a graph for compile range (1, 8) takes 3.50 s", "compile_inductor", 3.5),
        ("[backbone] Initial profiling/warmup run took 0.75 s", "memory_profiling", 0.75),
        ("Graph capturing finished in 3 secs, took 0.25 GiB", "graph_pool", 2**28),
        ("Available KV cache memory: 2.0 GiB", "kv_cache", 2**31),
        ("GPU KV cache size: 1,024 tokens", "kv_cache_tokens", 1024),  # up to 0.27
        ("CPU KV cache size: 1,024 tokens, 64 blocks", "kv_cache_tokens", 1024),
        ("init engine (profile, create kv cache, warmup model) took 9.50 s", "startup", 9.5),
    ],
)
def test_lines_of_all_versions_are_read(line: str, name: str, value: float) -> None:
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(compilation_time=0.0), cache_config=SimpleNamespace(num_gpu_blocks=0)
    )
    found = {metric.name: metric.value for metric in startup_metrics(config, [line], captured=0)}
    assert found[name] == value


def test_rehearsals_are_no_captures() -> None:
    runner = SimpleNamespace(capture_model=lambda profile_only=False: 0)  # as vLLM's newer one
    modules: Any = {name: SimpleNamespace() for name in vllm_versions.RUNNERS}
    modules[vllm_versions.RUNNERS[-1]].GPUModelRunner = runner
    with mock.patch.dict(sys.modules, modules), timed_captures() as seconds:
        runner.capture_model(profile_only=True)
        assert seconds == []
        runner.capture_model()
        assert len(seconds) == 1


# With vLLM


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """All planted engines once: what the terminal showed, and results by name."""
    directory = configure(tmp_path_factory.mktemp("llms"), "tests.planted_vllm.engines")
    options = ("--piecewise=nightly", "--piecewise-costs=counts", "--piecewise-device=cpu", "--piecewise-report=out")
    done = run_pytest(directory, *options, f"{ROOT}/tests/planted_vllm/llms.py")
    assert done.returncode == 1, done.stdout + done.stderr
    results = json.loads((directory / "out" / "report.json").read_text())["results"]
    return done.stdout, {result["case"]["name"]: result for result in results if result["case"]["engine"] != "native"}


def findings_of(session: tuple[str, dict[str, Any]], name: str) -> list[Any]:
    return list(session[1][name]["findings"])


def failed(session: tuple[str, dict[str, Any]], name: str) -> dict[tuple[str, str], str]:
    return {
        (item["check"], item["variant"]): item["summary"]
        for item in findings_of(session, name)
        if item["status"] == "FAIL"
    }


@needs_vllm
def test_modes_agree(session: tuple[str, dict[str, Any]]) -> None:
    assert failed(session, "clean-llm") == {}
    passed = {(i["check"], i["variant"]) for i in findings_of(session, "clean-llm") if i["status"] == "PASS"}
    for variant in ("full", "piecewise", "default"):
        assert {("equivalence", variant), ("exact", variant), ("bits_repeat", variant)} <= passed
    assert {("pieces", "piecewise"), ("executed", "piecewise"), ("bits_full", "piecewise")} <= passed
    assert {("answer", "eager"), ("vacuity", "eager")} <= passed


@needs_vllm
def test_pieces_are_those_of_vllm(session: tuple[str, dict[str, Any]]) -> None:
    builds = {build["variant"]: build["counts"] for build in session[1]["clean-llm"]["builds"]}
    assert [builds["full"][name] for name in ("graphs", "pieces", "compiles")] == [1, 1, 1]
    # Two layers: what comes before, between and after their attention.
    assert [builds["piecewise"][name] for name in ("graphs", "pieces", "compiles", "splitting_ops")] == [1, 3, 3, 2]


@needs_vllm
def test_captures_are_skipped_with_the_reason(session: tuple[str, dict[str, Any]]) -> None:
    skipped = {i["check"]: i["summary"] for i in findings_of(session, "clean-llm") if i["status"] == "SKIP"}
    assert "captures nothing on a CPU" in skipped["captures"]
    assert {"captures", "replays", "covered_sizes", "addresses"} <= skipped.keys()


@needs_vllm
def test_dummy_weights_are_vacuous(session: tuple[str, dict[str, Any]]) -> None:
    assert re.search(r"spread by 0(\.0\d*)? .*, 0\.1 is needed", failed(session, "dummy-llm")["vacuity", "eager"])


@needs_vllm
def test_changed_constant_is_caught_where_it_is_compiled(session: tuple[str, dict[str, Any]]) -> None:
    found = failed(session, "changed-llm")
    assert ("equivalence", "piecewise") in found
    assert "x budget" in found["equivalence", "piecewise"]
    assert {check for check, _ in found} <= {"equivalence", "exact"}


@needs_vllm
def test_attention_in_a_piece_is_named(session: tuple[str, dict[str, Any]]) -> None:
    found = failed(session, "left-out-llm")
    assert {check for check, _ in found} == {"splitting_ops"}  # without captures, it does no harm on a CPU
    assert (
        "which lie in pieces here: vllm::unified_attention_with_output in piece" in found["splitting_ops", "piecewise"]
    )


@needs_vllm
def test_startup_table_is_printed(session: tuple[str, dict[str, Any]]) -> None:
    table = session[0].partition("start-up of clean-llm, float32 on cpu")[2]
    assert re.match(r" +native +vllm-llm\n +full +piecewise +piecewise/full +eager +full +piecewise +default ", table)
    assert re.search(r"\ncompile s( +\d+\.\d\d){3} +-( +\d+\.\d\d){2} +- +\d+\.\d\d\n", table)
    for row in (
        "  of it Dynamo s",
        "  of it Inductor s",
        "KV cache GiB",
        "KV cache tokens",
        "KV cache blocks",
        "start-up s",
    ):
        assert f"\n{row} " in table
    metrics = {b["variant"]: {m["name"] for m in b["metrics"]} for b in session[1]["clean-llm"]["builds"]}
    assert {"compile", "compile_dynamo", "compile_inductor", "kv_cache_blocks", "startup"} <= metrics["piecewise"]
    assert not {"capture", "captures", "graph_pool"} & metrics["piecewise"]  # absent, never zero
    said = [
        i["summary"] for i in findings_of(session, "clean-llm") if (i["check"], i["variant"]) == ("cost", "piecewise")
    ]
    assert any(line.startswith("no capture, captures, graph_pool: ") for line in said)
