"""Every mistake that lint knows, planted in a pipeline that is right without it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_piecewise.ci.document import parse_document, read_document
from pytest_piecewise.ci.lint import lint_pipeline
from pytest_piecewise.ci.model import PipelineError
from pytest_piecewise.ci.repository import lint_files, lint_fragment, lint_repository
from tests.ci.projects import CONFIG, STEPS, project, step, steps
from tests.running import ROOT, environment

RIGHT = """\
steps:
  - label: One
    key: one
    commands:
      - make one | tee log $$HOME; set -o pipefail
      - pytest 'a | b' || exit 3
    agents: {queue: default}
    timeout_in_minutes: 5
    soft_fail: [{exit_status: 10}]
    retry: {automatic: [{exit_status: -1, limit: 1}, {exit_status: 12, limit: 1}]}
    env: {A: "$$B"}
  - wait
  - group: More
    steps:
      - label: Two
        key: two
        command: make two
        depends_on: [one]
        timeout_in_minutes: 5
"""


def problems(text: str) -> list[str]:
    return [str(item) for item in lint_pipeline(parse_document(text, "p.yaml"), queues=frozenset({"default"}))]


def test_clean_twin_has_no_problem() -> None:
    assert problems(RIGHT) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "key: two\n        command: make two\n        depends_on: [one]",
            "key: one\n        command: x",
            "p.yaml:16: the key 'one'",
        ),
        ("key: two", "key: t w o", "p.yaml:16: expected a key of letters"),
        ("        key: two\n", "", "p.yaml:15: a step without a key"),
        ("depends_on: [one]", "depends_on: [oen]", "p.yaml:18: step 'two' depends on 'oen', which no step has"),
        ("depends_on: [one]", "depends_on: [{step: oen}]", "depends on 'oen'"),
        ("depends_on: [one]", "depends_on: two", "step 'two' depends on itself"),
        ("    timeout_in_minutes: 5\n    soft", "    soft", "p.yaml:2: step 'one' has no timeout_in_minutes"),
        ("[{exit_status: 10}]", "true", "p.yaml:9: `soft_fail: true` hides every failure"),
        ("[{exit_status: 10}]", "[{exit_status: 1}]", "exit status 1 must not be soft"),
        ("[{exit_status: 10}]", '[{exit_status: "*"}]', "exit status '\\*' must not be soft"),
        ("{exit_status: 12, limit: 1}", "{exit_status: 1, limit: 1}", "p.yaml:10: a retry of failed tests"),
        ("{exit_status: 12, limit: 1}", "{limit: 1}", "a retry of failed tests hides flaky numerics"),
        ("{automatic: [{exit_status: -1, limit: 1}, {exit_status: 12, limit: 1}]}", "{automatic: true}", "a retry of"),
        ("{exit_status: -1, limit: 1}, ", "", "no retry of exit status -1"),
        ("|| exit 3", "|| true", "p.yaml:6: .*makes the command pass whatever happens"),
        ("|| exit 3", "|| :;", "makes the command pass whatever happens"),
        ("|| exit 3", "|| :", "p.yaml:6: expected a command as a text, found .*put it in quotes"),
        ("|| exit 3", "|| exit 0", "makes the command pass whatever happens"),
        ("|| exit 3", "; true", "what follows `;` decides"),
        ("|| exit 3", "&", "in the background"),
        ("make two", "set +e", "p.yaml:17: .*lets the step go on"),
        ("make two", r"find t -name 'test_*.py' -exec pytest {} \\;", "`find -exec ... .*` returns 0"),
        ("make two", "xargs pytest <list", "xargs turns every exit code into 123"),
        ("make two", "pytest x | tee log", "a pipe without `set -o pipefail`"),
        ("$$HOME", "$HOME", r"p.yaml:5: .*`\$` is replaced at upload"),
        ("$$HOME", "${HOME}", r"`\$` is replaced at upload"),
        ("$$HOME", "$$$HOME", r"`\$` is replaced at upload"),
        ('"$$B"', '"$B"', r"p.yaml:11: .*`\$` is replaced at upload"),
        ("queue: default", "queue: defualt", "no device has the queue 'defualt'; known are default"),
        (
            "    timeout_in_minutes: 5\n    soft",
            "    timeout_in_minutes: 5\n    parallelism: 501\n    soft",
            "502 jobs",
        ),
    ],
)
def test_planted_mistake_is_named(old: str, new: str, says: str) -> None:
    assert old in RIGHT
    found = problems(RIGHT.replace(old, new, 1))
    assert len(found) == 1, found
    assert re.search(says, found[0]), found


def test_circle_of_steps_is_named() -> None:
    text = "steps:\n" + "".join(
        f"  - {{label: {a}, key: {a}, command: x, timeout_in_minutes: 1, depends_on: {b}}}\n"
        for a, b in ("ab", "bc", "ca")
    )
    assert [item.partition(" ")[2] for item in problems(text)] == [
        f"step '{key}' depends on itself, through others or not" for key in "abc"
    ]


def test_key_that_stands_twice_is_refused_with_its_lines() -> None:
    text = RIGHT.replace("    key: one\n", "    key: one\n    label: Uno\n")
    with pytest.raises(PipelineError, match=r"p.yaml:4: the key 'label' stands twice, first in line 2"):
        parse_document(text, "p.yaml")


def test_this_repository_has_no_problem() -> None:
    found = lint_repository(ROOT)
    assert found.problems == ()
    assert found.unchecked == ()
    assert found.looked_at[1] == "1 fragments"


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (steps(step("one", source_file_dependencies=None)), "has no source_file_dependencies: it would never run"),
        (steps(step("one", source_file_dependencies=["src/", "scr/"])), "depends on 'scr/', which does not exist"),
        (steps(step("one", source_file_dependencies=["src/", "src/*.cu"])), "depends on 'src/\\*.cu', which does not"),
        (
            steps(step("one", commands=["pytest src/test_c.py"])),
            "runs something on 'src/test_c.py', which does not exist",
        ),
        (steps(step("one", source_file_dependencies=["src/a.py"])), "src/b.py is covered by .* no step"),
        (steps(step("one", source_file_dependencies=["src/", "!src/b.py"])), "src/b.py is covered by .* no step"),
        (steps(step("one", source_file_dependencies=["."])), "src/a.py is covered by .* no step"),
        (steps(step("one", commands=["make $A"])), r"`\$` is replaced at upload"),
        (steps(step("generate")), "the key 'generate' is taken by a step of this build"),
    ],
)
def test_planted_mistake_in_a_repository_is_named(
    written: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_piecewise.ci.repository.schema_checker", lambda: "not looked at here")
    assert lint_repository(project(tmp_path / "right", STEPS)).problems == ()
    found = lint_repository(project(tmp_path / "wrong", written)).problems
    assert found
    assert re.search(says, found[0]), found


def test_generated_pipeline_against_the_schema(tmp_path: Path) -> None:
    config = CONFIG.replace("tiers:", "env: {A: b}\ntiers:").replace("{queue: default}", "{queue: default, os: 3}")
    assert lint_repository(project(tmp_path, config=config)).problems == ()
    (tmp_path / ".github/workflows").mkdir(parents=True)
    (tmp_path / ".github/workflows/a.yml").write_text("on: push\njobs: {a: {runs-no: ubuntu, steps: []}}\n")
    found = lint_repository(tmp_path).problems
    assert len(found) == 1
    assert "a.yml" in found[0]


def test_bootstrap_is_linted_as_the_others(tmp_path: Path) -> None:
    root = project(tmp_path)
    path = root / ".buildkite/pipeline.yaml"
    path.write_text(
        path.read_text().replace("[generate]", '["pytest-piecewise pipeline generate | buildkite-agent upload"]')
    )
    found = lint_repository(root).problems
    assert len(found) == 1
    assert ".buildkite/pipeline.yaml:4" in found[0]
    assert "a pipe without" in found[0]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("optional: true", "num_gpus: 2", "drops the key 'num_gpus'"),
        ("optional: true", "artifact_paths: [a]", "drops the key 'artifact_paths'"),
        ("soft_fail: true", "soft_fail: [{exit_status: 10}]", "true or false here only"),
        ("\nsteps:", "\nfast_check: true\nsteps:", "drops the key 'fast_check'"),
        ("pip install pytest-piecewise", "pip install pytest-piecewise || true", "makes the command pass"),
    ],
)
def test_planted_mistake_in_the_fragment_for_vllm_is_named(old: str, new: str, says: str) -> None:
    text = (ROOT / ".buildkite/vllm/piecewise.yaml").read_text()
    assert lint_fragment(parse_document(text, "f.yaml")) == []
    assert old in text
    found = [item.text for item in lint_fragment(parse_document(text.replace(old, new, 1), "f.yaml"))]
    assert [says in text for text in found] == [True], found


def test_files_are_linted_beside_the_bootstrap_of_the_repository(tmp_path: Path) -> None:
    root = project(tmp_path)
    path = tmp_path / "p.yaml"
    path.write_text(RIGHT.replace("key: two", "key: generate"))
    found = lint_files(root, [read_document(path)]).problems
    assert ["taken by a step of this build" in item for item in found] == [True]


def run_lint(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_piecewise.cli", "pipeline", "lint", *arguments]
    return subprocess.run(command, cwd=root, env=environment(), capture_output=True, text=True, check=False)


def test_command_says_what_is_wrong_and_ends_with_1(tmp_path: Path) -> None:
    root = project(tmp_path)
    done = run_lint(root)
    assert (done.returncode, done.stdout) == (0, "0 problem(s) in 1 steps, 0 fragments, 36 generated pipelines\n")
    (root / "src/c.md").write_text("")
    shutil.rmtree(root / "src")
    done = run_lint(root)
    assert done.returncode == 1
    assert ".buildkite/steps/steps.yaml:3: step 'one' depends on 'src/', which does not exist\n" in done.stdout
    (root / ".buildkite/steps/steps.yaml").write_text(steps(step("one", soft_fial=True)))
    done = run_lint(root)
    assert (done.returncode, done.stdout) == (2, "")
    assert "steps.yaml:3: unknown key 'soft_fial'" in done.stderr


def test_lint_without_check_jsonschema_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = lint_repository(project(tmp_path))
    assert found.problems == ()
    assert "pip install 'pytest-piecewise[ci]'" in found.unchecked[0]
