"""What runs, what is blocked and what is left out for a change: a table, on the steps that are shipped."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise.ci.document import dump, parse_document
from pytest_piecewise.ci.generate import EXPECTED, generate, plan
from pytest_piecewise.ci.lint import items_of, lint_pipeline
from pytest_piecewise.ci.model import Change, Config, PipelineError
from pytest_piecewise.ci.repository import variants_of
from pytest_piecewise.ci.schema import BUILDKITE, schema_problems
from pytest_piecewise.ci.steps import read_config
from tests.ci.projects import CONFIG, project, step, steps
from tests.running import ROOT

FAST = {"lint", "unit", "fastcheck-cpu", "fastcheck-vllm", "fastcheck-gpu", "fastcheck-perf"}
GATES = FAST - {"unit"}  # those that test the package's own checks, and `lint`, which runs for everything
FULL, NIGHTLY = {"full-cpu", "full-gpu"}, {"nightly-perf", "nightly-alerts", "baselines-propose"}
ENGINE, SUITE, BASELINE = "pytest_piecewise/engines/static.py", "suites/fastcheck/test_llama.py", "baselines/a/b.json"

TABLE: list[tuple[tuple[str, ...] | None, str, str, str, set[str], set[str]]] = [
    # changed files, label, source, branch: running, blocked behind `block-full`
    ((ENGINE,), "", "webhook", "topic", FAST, FULL),
    ((ENGINE,), "ready", "webhook", "topic", FAST | FULL, set()),
    ((ENGINE,), "", "webhook", "main", FAST | FULL, set()),
    ((ENGINE,), "", "schedule", "main", FAST | FULL | NIGHTLY, set()),
    ((ENGINE,), "", "ui", "topic", FAST, FULL),
    ((SUITE,), "", "webhook", "topic", FAST - {"fastcheck-vllm"}, FULL),
    (("suites/vllm/models.py",), "", "webhook", "topic", {"lint", "unit", "fastcheck-vllm"}, FULL),
    ((BASELINE,), "", "webhook", "topic", GATES, FULL),
    ((BASELINE,), "ready", "webhook", "topic", GATES | FULL, set()),
    (("tests/test_split.py",), "", "webhook", "topic", {"lint", "unit"}, FULL),
    (("tests/test_split.py",), "ready", "webhook", "topic", {"lint", "unit"}, set()),
    (("LICENSE",), "", "webhook", "topic", {"lint"}, FULL),
    (("LICENSE",), "ready", "webhook", "topic", {"lint"}, set()),
    (("LICENSE",), "ready-run-all-tests", "webhook", "topic", FAST | FULL, set()),
    (("LICENSE",), "", "schedule", "main", FAST | FULL | NIGHTLY, set()),
    (("constraints.txt",), "", "webhook", "topic", FAST, FULL),
    (("pytest_piecewise/compare.py",), "ready", "webhook", "topic", FAST | FULL, set()),
    ((".buildkite/ci_config.yaml",), "", "webhook", "topic", FAST, FULL),
    ((".buildkite/README.md",), "", "webhook", "topic", {"lint"}, FULL),
    ((".buildkite/vllm/piecewise.yaml",), "", "webhook", "topic", {"lint"}, FULL),
    ((), "", "webhook", "topic", {"lint"}, FULL),
    (None, "", "webhook", "topic", FAST, FULL),
    (None, "ready", "webhook", "topic", FAST | FULL, set()),
    (None, "", "webhook", "main", FAST | FULL, set()),
]


@functools.cache
def shipped() -> Config:
    return read_config(ROOT)


def generated(config: Config, change: Change) -> dict[str, dict[str, Any]]:
    """The emitted steps by key."""
    return {
        item.key: dict(item.value) for item in items_of(parse_document(dump(generate(config, change)), "generated"))
    }


@pytest.mark.parametrize(("files", "label", "source", "branch", "running", "full"), TABLE)
def test_table(
    files: tuple[str, ...] | None, label: str, source: str, branch: str, running: set[str], full: set[str]
) -> None:
    change = Change(files=files, labels=frozenset({label} - {""}), source=source, branch=branch)
    found = plan(shipped(), change)
    assert {item.key for item in found.running if not item.reports} == running
    assert {item.key for item in found.blocked.get("block-full", ())} == full
    emitted = generated(shipped(), change)
    for block, waiting in found.blocked.items():
        assert emitted[block]["depends_on"] == []
        assert emitted[block]["blocked_state"] == "passed"
        assert all(emitted[item.key]["depends_on"][0] == block for item in waiting)
    assert {name for key in running for name in emitted[key]["depends_on"]} <= running
    assert ("nightly-perf" in emitted) == (source == "schedule")


def test_every_variant_is_valid(tmp_path: Path) -> None:
    """Against Buildkite's schema and our own lint; there are few different ones among many changes."""
    texts = {dump(generate(shipped(), change)) for change in variants_of(shipped()).values()}
    texts |= {dump(generate(shipped(), Change(files=row[0], labels=frozenset({row[1]}), source=row[2], branch=row[3])))
              for row in TABLE}  # fmt: skip
    assert len(texts) >= 8
    files = []
    for index, text in enumerate(sorted(texts)):
        assert lint_pipeline(parse_document(text, "generated"), uploaded=frozenset({"generate"})) == []
        files.append(tmp_path / f"{index}.yaml")
        files[-1].write_text(text)
    assert schema_problems(BUILDKITE, files) == []


def test_schema_would_refuse(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("steps:\n  - {label: a, commands: [b], soft_fial: true}\n")
    assert len(schema_problems(BUILDKITE, [path])) == 1


def test_generation_is_a_pure_function() -> None:
    change = Change(files=(ENGINE,), labels=frozenset({"ready", "other"}))
    first, second = generate(shipped(), change), generate(shipped(), change)
    assert dump(first) == dump(second)
    first["steps"].clear()
    assert dump(generate(shipped(), change)) == dump(second)


def test_report_comes_after_all_that_run_and_knows_what_they_owe() -> None:
    emitted = generated(shipped(), Change(files=(ENGINE,), branch="topic"))
    report, behind = emitted["report"], emitted["report-full"]
    assert set(report["depends_on"]) == FAST
    assert report["allow_dependency_failure"] is True
    assert set(report["env"][EXPECTED].split()) == {
        f".piecewise/{key}/0/report.json" for key in FAST - {"lint", "unit"}
    }
    assert set(behind["depends_on"]) == FULL
    assert behind["env"][EXPECTED].split() == [
        f".piecewise/{key}/{job}/report.json" for key in ("full-cpu", "full-gpu") for job in (0, 1)
    ]
    assert "report-full" not in generated(shipped(), Change(files=(ENGINE,), branch="main"))


def test_only_cost_may_be_soft_and_no_failed_test_is_retried() -> None:
    for item in generated(shipped(), Change(files=None, source="schedule", branch="main")).values():
        codes = [rule["exit_status"] for rule in item.get("soft_fail", [])]
        assert codes == ([10, 11] if item["key"] in ("fastcheck-perf", "nightly-perf") else []), item["key"]
        rules = item["retry"]["automatic"]
        assert {rule.get("exit_status") for rule in rules} == {-1, 12, None}
        assert all("signal_reason" in rule for rule in rules if "exit_status" not in rule)


def test_steps_of_absent_devices_are_skipped_and_owe_nothing() -> None:
    emitted = generated(shipped(), Change(files=(ENGINE,), without=frozenset({"gpu", "gpu-quiet"})))
    assert emitted["fastcheck-gpu"]["skip"] == "no agent for device gpu here"
    assert "skip" not in emitted["fastcheck-cpu"]
    assert emitted["report"]["env"][EXPECTED].split() == [
        ".piecewise/fastcheck-cpu/0/report.json",
        ".piecewise/fastcheck-vllm/0/report.json",
    ]


def test_what_a_running_step_needs_runs_as_well(tmp_path: Path) -> None:
    written = steps(
        step("first", source_file_dependencies=["src/b.py"]),
        step("second", source_file_dependencies=["src/b.py"], depends_on="first"),
        step("third", source_file_dependencies=["src/a.py"], depends_on="second"),
        step("fourth", source_file_dependencies=["src/b.py"]),
    )
    found = plan(read_config(project(tmp_path, written)), Change(files=("src/a.py",)))
    assert {item.key for item in found.running} == {"first", "second", "third"}
    assert {block: [item.key for item in waiting] for block, waiting in found.blocked.items()} == {
        "block-fourth": ["fourth"]
    }


def test_only_some_steps_with_what_they_need_and_a_report_on_them() -> None:
    emitted = generated(shipped(), Change(files=(), only=frozenset({"fastcheck-gpu", "report"})))
    assert set(emitted) == {"lint", "fastcheck-gpu", "report"}
    assert emitted["report"]["env"][EXPECTED] == ".piecewise/fastcheck-gpu/0/report.json"
    with pytest.raises(PipelineError, match=r"found 'none'; known are lint, "):
        generate(shipped(), Change(files=(), only=frozenset({"none"})))


def test_optional_steps_wait_and_run_at_night(tmp_path: Path) -> None:
    config = read_config(project(tmp_path, steps(step("one", optional=True))))
    assert set(plan(config, Change(files=None)).blocked) == {"block-one"}
    assert plan(config, Change(files=None, source="schedule")).blocked == {}


def test_step_file_itself_starts_its_steps(tmp_path: Path) -> None:
    config = read_config(project(tmp_path))
    assert [item.key for item in plan(config, Change(files=(".buildkite/steps/steps.yaml",))).running] == ["one"]
    assert plan(config, Change(files=("README.md",))).running == ()


def test_patterns_that_run_all_have_exceptions(tmp_path: Path) -> None:
    config = read_config(project(tmp_path))
    assert plan(config, Change(files=("setup.py",))).running
    assert not plan(config, Change(files=("setup.pyc",))).running


def test_unknown_dependency_is_an_error(tmp_path: Path) -> None:
    config = read_config(project(tmp_path, steps(step("one", depends_on="none"))))
    with pytest.raises(PipelineError, match=r"steps.yaml:3: step 'one' depends on 'none', which no step file has"):
        generate(config, Change(files=None))


def test_labels_that_run_all_open_every_labelled_tier_and_no_other(tmp_path: Path) -> None:
    written = steps(step("one"), step("two", tier="full"), step("three", tier="nightly"))
    config = read_config(project(tmp_path, written, CONFIG))
    found = plan(config, Change(files=(), labels=frozenset({"everything"})))
    assert {item.key for item in found.running} == {"one", "two"}
