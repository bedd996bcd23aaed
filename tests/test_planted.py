"""Every planted fault fails with a finding that names the cause, and its clean twin passes: pytest in a subprocess."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.planted.right import RIGHT
from tests.running import ROOT, configure, run_pytest

PLUGIN = "tests.planted.engines"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """All planted cases once, over two workers: results by case id, and the output."""
    directory = configure(tmp_path_factory.mktemp("planted"), PLUGIN)
    limits = ("--piecewise", "--piecewise-localize=off", "--piecewise-timeout", "60", "--piecewise-memory", "3000")
    done = run_pytest(directory, "-n2", *limits, "--piecewise-report=out", str(ROOT / "tests/planted/cases.py"))
    report = json.loads((directory / "out" / "report.json").read_text())
    results = {f"{result['case']['name']}-{result['case']['engine']}-{result['case']['dtype']}": result
               for result in report["results"]}  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return results, done.stdout


CAUSES = [
    # case, check that must fail, what its summary, detail or action must say
    ("fresh-stale_inputs-float32", "addresses", r"piece 1, input \w+, size 8: recorded at 0x\w+, now at 0x"),
    ("fresh-stale_inputs-float32", "bits_graphs", "against graphs off"),
    ("undeclared-mutation-native-float32", "schema", "planted::scribble.* x is not defined as mutable but was mutated"),
    ("graph-break-native-float32", "graph_breaks", r"graph_break\(\)"),
    ("recompile-native-float32", "recompiles", "mood"),
    ("clean-silent_eager-float32", "compiles", "fell back to eager"),
    ("zero-weights-native-float32", "vacuity", "output follows the weights by only 0"),
    ("clean-overwritten_outputs-float32", "kept_outputs", "return copies"),
    ("unsteady-native-float32", "bits_repeat", "something is not deterministic"),
    ("follows-size-native-float32", "equivalence", "padded, .*results follow that size itself, as with x.shape"),
    ("workspace-native-float32", "kept_outputs", "return copies"),
    ("clean-shared_captures-float32", "second_build", "the builds share memory"),
    ("leaking-padding-native-float32", "padding", "expected nan.*against nan padding"),
    ("changed-constant-native-float32", "equivalence", "x budget"),
    ("changed-constant-native-bfloat16", "equivalence", r"all values are off by one factor, 1\.0009|1\.001"),
    ("many-rows-wrong_row-float32", "equivalence", r"output\[300, \d+\].*16 of 8192 elements"),
    ("crash-native-float32", "build", "killed by SIGSEGV in phase 'model'"),
    ("crash-native-float32", "build", "models.py.* in crash"),
    ("hang-native-float32", "build", "still running after 60 s in phase 'model'"),
    ("hang-native-float32", "build", "models.py.* in hang"),
    ("eat-memory-native-float32", "build", "the limit is 3000 MiB"),
    ("missing-op-native-float32", "bits_graphs", "planted::shift in piece 0.*add it to splitting_ops"),
    ("never-found-native-float32", "splitting_ops", "never found: planted::mix_fresh"),
    ("nothing-split-native-float32", "pieces", "splitting_ops is empty.*planted::mix_into"),
]


@pytest.mark.parametrize(("case", "check", "text"), CAUSES, ids=[f"{case}-{check}" for case, check, _ in CAUSES])
def test_planted_fault_is_named(session: tuple[dict[str, Any], str], case: str, check: str, text: str) -> None:
    findings = [item for item in session[0][case]["findings"] if item["status"] == "FAIL" and item["check"] == check]
    assert findings, [(item["check"], item["summary"]) for item in session[0][case]["findings"]]
    said = [" ".join(f"{item['summary']} {item['detail']} {item['action']}".split()) for item in findings]
    assert any(re.search(text, line) for line in said), said


CLEAN = (
    "clean-native-float32",
    "clean-native-bfloat16",
    "fresh-native-float32",
    "steady-native-float32",
    "many-rows-native-float32",
    "listed-op-native-float32",
    "off-in-float32-native-float32",
    *(f"{model.name}-native-{dtype}" for model in RIGHT for dtype in model.dtypes),
)


@pytest.mark.parametrize("case", CLEAN)
def test_clean_twin_passes(session: tuple[dict[str, Any], str], case: str) -> None:
    result = session[0][case]
    assert [item for item in result["findings"] if item["status"] not in ("PASS", "SKIP")] == []
    passed = {item["check"] for item in result["findings"] if item["status"] == "PASS"}
    assert {
        "equivalence",
        "vacuity",
        "bits_graphs",
        "captures",
        "replays",
        "schema",
        "addresses",
        "second_build",
    } <= passed


def test_only_the_planted_cause_fails_where_it_stands_alone(session: tuple[dict[str, Any], str]) -> None:
    alone = {
        "undeclared-mutation-native-float32": {"schema"},
        "graph-break-native-float32": {"graph_breaks"},
        "recompile-native-float32": {"recompiles"},
        "clean-silent_eager-float32": {"compiles"},
        "zero-weights-native-float32": {"vacuity"},
        "clean-overwritten_outputs-float32": {"kept_outputs"},
        "workspace-native-float32": {"kept_outputs"},
        "clean-shared_captures-float32": {"second_build"},
        "changed-constant-native-bfloat16": {"equivalence"},
        "never-found-native-float32": {"splitting_ops"},
        "crash-native-float32": {"build"},
        "unsteady-native-float32": {"bits_repeat"},
    }
    found = {
        case: {item["check"] for item in session[0][case]["findings"] if item["status"] == "FAIL"} for case in alone
    }
    assert found == alone


@pytest.fixture(scope="module")
def notes(session: tuple[dict[str, Any], str]) -> dict[str, list[str]]:
    return {
        case: [note for build in result["builds"] for note in build["notes"]] for case, result in session[0].items()
    }


def test_kernel_that_is_wrong_in_eager_too_is_said(notes: dict[str, list[str]]) -> None:
    (said,) = [note for note in notes["off-in-float32-native-float32"] if "eager itself is off" in note]
    assert re.search(r"off in output by 0\.00\d+ .*an op is wrong in this dtype", said)


def test_weight_that_eager_no_longer_follows_is_said(notes: dict[str, list[str]]) -> None:
    (said,) = [note for note in notes["packed-native-float32"] if "eager itself" in note]
    assert "goes on using what it made of weights" in said


def test_right_model_has_no_such_note(notes: dict[str, list[str]]) -> None:
    named = ("off-in-float32-native-float32", "packed-native-float32")
    assert not any("eager itself" in note for case in CLEAN if case not in named for note in notes[case])


def test_what_an_unsteady_eager_makes_fail_is_no_failure_of_builds(session: tuple[dict[str, Any], str]) -> None:
    findings = session[0]["unsteady-native-float32"]["findings"]
    skipped = {(item["check"], item["variant"]) for item in findings if "other bits each time" in item["summary"]}
    assert {("bits_repeat", "full"), ("bits_repeat", "piecewise"), ("bits_graphs", "piecewise")} <= skipped
    failed = [(item["check"], item["variant"]) for item in findings if item["status"] == "FAIL"]
    assert failed == [("bits_repeat", "eager")]


def test_fresh_results_are_copied_before_each_replay(session: tuple[dict[str, Any], str]) -> None:
    findings = session[0]["fresh-native-float32"]["findings"]
    addresses = next(item for item in findings if item["check"] == "addresses")
    assert addresses["summary"] == "0 input(s) of captured pieces moved after capture; 1 copied before each replay"


def test_failing_tests_show_findings_and_how_to_repeat_them_but_no_traceback(
    session: tuple[dict[str, Any], str],
) -> None:
    output = session[1]
    assert "FAIL bits_graphs (piecewise):" in output
    assert "repeat: pytest --piecewise=fastcheck" in output
    assert "session.py" not in output
    assert "24 failed, 21 passed" in output, output[-2000:]


def test_compilation_switched_off_by_the_environment_is_a_failure(tmp_path: Path) -> None:
    arguments = ("--piecewise", "--piecewise-dtype=float32", f"{ROOT}/tests/planted/cases.py::test_clean")
    done = run_pytest(configure(tmp_path, PLUGIN), *arguments, TORCH_COMPILE_DISABLE="1")
    assert done.returncode == 1
    assert "FAIL graphs (full): Dynamo " in done.stdout
    assert "check TORCH_COMPILE_DISABLE" in done.stdout
