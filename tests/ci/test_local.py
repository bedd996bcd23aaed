"""A pipeline run on this machine: what Buildkite documents of order, blocks, retries, soft failures and limits."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise.ci.local import Build, Choices, LocalBuild
from pytest_piecewise.ci.model import PipelineError
from pytest_piecewise.ci.upload import interpolate


class Runs:
    """Runs pipelines in a directory of their own, and keeps what was said."""

    def __init__(self, root: Path) -> None:
        self.root, self.said = root, list[str]()
        self.count = 0

    def __call__(self, text: str, **choices: Any) -> Build:
        self.count += 1
        path = self.root / "pipeline.yaml"
        path.write_text(textwrap.dedent(text))
        spool = self.root.parent / f"spool-{self.count}"
        given = {"environ": {}} | choices
        return LocalBuild(self.root, spool, Choices(**given), self.said.append).run(path)


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    root = tmp_path / "checkout"
    root.mkdir()
    return Runs(root)


def states(build: Build) -> dict[str, str]:
    return {step.key: step.state for step in build.steps}


def test_commands_are_one_script_that_stops_at_the_first_failure(run: Runs) -> None:
    build = run("""
        steps:
          - {label: a, key: a, commands: [X=1, 'echo "x is $$X"', 'false', echo never]}
    """)
    assert (build.passed, states(build), build.steps[0].exit_codes) == (False, {"a": "failed"}, (1,))
    assert "    x is 1" in run.said
    assert "    never" not in run.said


def test_order_without_and_with_dependencies(run: Runs) -> None:
    build = run("""
        steps:
          - {label: a, key: a, command: echo a >>order, depends_on: c}
          - {label: b, key: b, command: echo b >>order}
          - {label: c, key: c, command: echo c >>order}
          - wait
          - {label: d, key: d, command: echo d >>order}
          - {label: e, key: e, command: echo e >>order, depends_on: []}
    """)
    assert build.passed
    assert (run.root / "order").read_text().split() == ["b", "c", "a", "d", "e"]


def test_failed_step_holds_up_what_depends_on_it_unless_that_allows_it(run: Runs) -> None:
    build = run("""
        steps:
          - {label: a, key: a, command: exit 1}
          - {label: b, key: b, command: echo, depends_on: a}
          - {label: c, key: c, command: echo, depends_on: b}
          - {label: d, key: d, command: echo, depends_on: [a, c], allow_dependency_failure: true}
          - {label: e, key: e, command: echo}
    """)
    assert not build.passed
    assert states(build) == {"a": "failed", "b": "not run", "c": "not run", "d": "passed", "e": "passed"}


def test_block_holds_up_what_is_behind_it_and_fails_nothing(run: Runs) -> None:
    text = """
        steps:
          - {block: Run more, key: gate, depends_on: []}
          - {label: a, key: a, command: echo, depends_on: gate}
          - {label: b, key: b, command: echo, depends_on: a}
          - {label: c, key: c, command: echo, depends_on: []}
    """
    build = run(text)
    assert build.passed
    assert states(build) == {"gate": "blocked", "a": "blocked", "b": "blocked", "c": "passed"}
    for opened in ("gate", "all"):
        assert set(states(run(text, unblock=frozenset({opened}))).values()) == {"passed"}
    assert states(run(text, unblock=frozenset({"other"})))["a"] == "blocked"


@pytest.mark.parametrize(
    ("soft", "codes", "state"),
    [
        ("[{exit_status: 10}, {exit_status: 11}]", [10], "soft_failed"),
        ("[{exit_status: 10}, {exit_status: 11}]", [10, 0, 11], "soft_failed"),
        ("[{exit_status: 10}]", [10, 1], "failed"),
        ("[{exit_status: 10}]", [0, 0], "passed"),
        ('[{exit_status: "*"}]', [3], "soft_failed"),
        ("true", [1], "soft_failed"),
        ("false", [10], "failed"),
    ],
)
def test_soft_failure_is_decided_by_the_exit_codes_of_all_jobs(
    soft: str, codes: list[int], state: str, run: Runs
) -> None:
    build = run(f"""
        steps:
          - label: a
            key: a
            command: codes=({" ".join(map(str, codes))}); exit $${{codes[$$BUILDKITE_PARALLEL_JOB]}}
            parallelism: {len(codes)}
            soft_fail: {soft}
          - {{label: b, key: b, command: buildkite-agent step get outcome --step a >outcome, depends_on: a,
              allow_dependency_failure: true}}
    """)
    assert states(build)["a"] == state
    assert build.passed is (state != "failed")
    assert build.steps[0].exit_codes == tuple(codes)
    assert (run.root / "outcome").read_text() == ("hard_failed" if state == "failed" else state)


@pytest.mark.parametrize(
    ("rules", "codes", "attempts", "state"),
    [
        ("[{exit_status: 12, limit: 1}]", "12 0", 2, "passed"),
        ("[{exit_status: 12, limit: 1}]", "12 12 0", 2, "failed"),
        ("[{exit_status: 12, limit: 2}]", "12 12 0", 3, "passed"),
        ("[{exit_status: [11, 12]}]", "12 11 0", 3, "passed"),
        ("[{exit_status: 12, limit: 1}]", "1 0", 1, "failed"),
        ("[{signal_reason: agent_stop, limit: 1}]", "1 0", 1, "failed"),
        ("[{exit_status: 1, limit: 0}, {exit_status: '*', limit: 1}]", "1 0", 1, "failed"),
        ("true", "1 1 0", 3, "passed"),
    ],
)
def test_retries_follow_the_first_rule_that_fits(rules: str, codes: str, attempts: int, state: str, run: Runs) -> None:
    build = run(f"""
        steps:
          - label: a
            key: a
            command: codes=({codes}); exit $${{codes[$$BUILDKITE_RETRY_COUNT]}}
            retry: {{automatic: {rules}}}
    """)
    assert (build.steps[0].attempts, build.steps[0].state) == ((attempts,), state)


def test_job_that_kills_itself_or_takes_too_long_fails(run: Runs) -> None:
    build = run("""
        steps:
          - {label: a, key: a, command: kill -9 $$$$}
          - {label: b, key: b, command: sleep 60 & sleep 60, timeout_in_minutes: 0.005}
          - {label: c, key: c, commands: ["bash -c 'kill -9 $$$$'", echo]}
    """)
    assert [step.exit_codes for step in build.steps] == [(137,), (255,), (137,)]
    assert set(states(build).values()) == {"failed"}


def test_uploaded_steps_come_after_the_step_that_uploads_them(run: Runs) -> None:
    (run.root / "more.yaml").write_text(
        "env: {A: all}\nsteps:\n  - group: g\n    steps:\n"
        "      - {label: b, key: b, command: echo $LATER $$LATER $$A >>order, env: {LATER: then}}\n"
        "  - {label: c, key: c, command: echo c >>order, depends_on: b}\n"
    )
    build = run(
        """
        steps:
          - {label: a, key: a, commands: [echo a >>order, buildkite-agent pipeline upload more.yaml, echo x >>order]}
          - {label: d, key: d, command: echo d >>order}
    """,
        environ={"LATER": "now"},
    )
    assert list(states(build)) == ["a", "b", "c", "d"]
    assert (run.root / "order").read_text().splitlines() == ["a", "x", "now then all", "c", "d"]


@pytest.mark.parametrize(
    ("uploaded", "says"),
    [
        ("steps: [{label: x, key: a, command: echo}]", "key 'a' has already been used"),
        ("steps: [{label: x, key: x, command: echo, depends_on: none}]", "depends on 'none', which no step has"),
        ("steps: [{label: x, key: x, command: echo, depends_on: x}]", "steps x wait for each other"),
        ("steps: [{label: x, key: x, command: echo, matrix: [1]}]", "does not model matrix"),
        ("steps: [{label: x, key: x, command: echo, if: 'true'}]", "does not model if"),
        ("steps: [{label: x, key: x, command: echo, parallelism: 501}]", "at most 500"),
        ("steps: [{label: x, label: y}]", "stands twice"),
        ("steps: [{", "expected YAML"),
        ("jobs: 3", "expected a list of `steps`"),
        ("steps: [{label: x, key: x, command: 'echo ${NONE?is needed}'}]", "NONE: is needed"),
    ],
)
def test_upload_that_buildkite_would_refuse_fails_the_step(uploaded: str, says: str, run: Runs) -> None:
    (run.root / "more.yaml").write_text(uploaded)
    build = run("steps: [{label: a, key: a, command: buildkite-agent pipeline upload more.yaml}]")
    assert states(build) == {"a": "failed"}
    assert any(says in line for line in run.said), run.said


def test_artifacts_are_files_of_the_job_itself_and_travel_by_the_agent_alone(run: Runs) -> None:
    (run.root / "out").mkdir()
    (run.root / "out/old.json").write_text("of an earlier build")
    build = run("""
        steps:
          - {label: a, key: a, commands: [mkdir -p out/deep, echo 1 >out/deep/a.json, exit 3], artifact_paths: out/**/*}
          - {label: b, key: b, command: echo 2 >out/b.json, artifact_paths: [out/*.json, none/*]}
          - label: c
            key: c
            depends_on: [a, b]
            allow_dependency_failure: true
            commands:
              - buildkite-agent artifact download 'out/**/*.json' got/
              - buildkite-agent artifact download out/b.json only/ --step b
              - if buildkite-agent artifact download out/old.json old/; then exit 5; fi
              - if buildkite-agent artifact download out/b.json old/ --step a; then exit 5; fi
    """)
    assert states(build) == {"a": "failed", "b": "passed", "c": "passed"}
    got = sorted(str(path.relative_to(run.root / "got")) for path in (run.root / "got").rglob("*") if path.is_file())
    assert got == ["out/b.json", "out/deep/a.json"]
    assert (run.root / "only/out/b.json").exists()
    assert any("no files of this job match none/*" in line for line in run.said)


def annotate(run: Runs, options: str, body: str = "hello") -> Build:
    (run.root / "body").write_text(body)
    return run(f"steps: [{{label: a, key: a, command: buildkite-agent annotate {options} <body}}]")


def test_annotations_replace_or_append_by_context(run: Runs) -> None:
    build = run("""
        steps:
          - label: a
            key: a
            commands:
              - buildkite-agent annotate one --style info --context x
              - buildkite-agent annotate two --style error --context x --priority 10
              - buildkite-agent annotate ' three' --context x --append
              - echo piped | buildkite-agent annotate
    """)
    assert build.passed, run.said
    assert build.annotations["x"]["body"] == "two three"
    assert build.annotations["default"]["body"] == "piped\n"


@pytest.mark.parametrize(
    ("options", "body", "says"),
    [
        ("", "x" * (1 << 20), ""),
        ("", "x" * ((1 << 20) + 1), "at most 1048576 bytes, found 1048577"),
        ("", "ü" * ((1 << 19) + 1), "at most 1048576 bytes, found 1048578"),
        (f"--context {'c' * 100}", "hello", ""),
        (f"--context {'c' * 101}", "hello", "at most 100 characters, found 101"),
        ("--style loud", "hello", "expected a style of success"),
        ("--priority 11", "hello", "priority from 1 to 10, found 11"),
        ("--colour red", "hello", "unrecognized arguments"),
    ],
)
def test_annotation_limits(options: str, body: str, says: str, run: Runs) -> None:
    build = annotate(run, options, body)
    assert build.passed is (not says)
    assert not says or any(says in line for line in run.said)


def test_meta_data(run: Runs) -> None:
    build = run("""
        steps:
          - label: a
            key: a
            commands:
              - buildkite-agent meta-data set name value
              - test "$$(buildkite-agent meta-data get name)" = value
              - test "$$(buildkite-agent meta-data get other --default none)" = none
              - buildkite-agent meta-data exists other || test $$? = 100
              - buildkite-agent meta-data exists name
              - if buildkite-agent meta-data set name ' '; then exit 3; fi
    """)
    assert build.passed, run.said


def test_unknown_agent_command_fails(run: Runs) -> None:
    assert not run("steps: [{label: a, key: a, command: buildkite-agent lock acquire x}]").passed


def test_skipped_step_is_neither_run_nor_passed(run: Runs) -> None:
    build = run("""
        steps:
          - {label: a, key: a, command: touch ran, skip: no GPU here}
          - {label: b, key: b, command: echo, depends_on: a}
    """)
    assert (build.steps[0].state, build.steps[0].reason) == ("skipped", "no GPU here")
    assert build.steps[1].state == "passed"
    assert not (run.root / "ran").exists()


def test_only_leaves_out_other_uploaded_steps_and_refuses_unknown_ones(run: Runs) -> None:
    (run.root / "more.yaml").write_text(
        "steps: [{label: b, key: b, command: exit 1}, {label: c, key: c, command: echo, depends_on: b}]"
    )
    text = "steps: [{label: a, key: a, command: buildkite-agent pipeline upload more.yaml}]"
    build = run(text, only=frozenset({"c"}))
    assert states(build) == {"a": "passed", "b": "left out", "c": "passed"}
    with pytest.raises(PipelineError, match="no step has the key d; there are a, b, c"):
        run(text, only=frozenset({"d"}))


def test_jobs_see_buildkite_and_nothing_of_an_outer_build(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDKITE_PARALLEL_JOB", "7")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/nowhere")
    build = run(
        "steps: [{label: A b, key: a, command: env >seen, env: {OWN: 3}}]", environ={"BUILDKITE_BRANCH": "topic"}
    )
    assert build.passed
    seen = dict(line.partition("=")[::2] for line in (run.root / "seen").read_text().splitlines())
    assert {"BUILDKITE": "true", "CI": "true", "BUILDKITE_STEP_KEY": "a", "OWN": "3", "BUILDKITE_LABEL": "A b",
            "BUILDKITE_BRANCH": "topic"}.items() <= seen.items()  # fmt: skip
    assert not {"BUILDKITE_PARALLEL_JOB", "GITHUB_STEP_SUMMARY"} & seen.keys()


def test_real_agent_parses_what_is_uploaded(run: Runs, tmp_path: Path) -> None:
    agent, calls = tmp_path / "real-agent", tmp_path / "calls"
    agent.write_text(f'#!/bin/sh\necho "$@" >>"{calls}"\necho "no such thing" >&2\nexit 1\n')
    agent.chmod(0o755)
    (run.root / "more.yaml").write_text("steps: [{label: b, key: b, command: echo}]")
    text = "steps: [{label: a, key: a, command: buildkite-agent pipeline upload more.yaml}]"
    with pytest.raises(PipelineError, match=r"refuses .*no such thing"):
        run(text, real_agent=str(agent))
    assert calls.read_text().startswith("pipeline upload --dry-run")
    agent.write_text("#!/bin/sh\nexit 0\n")
    assert states(run(text, real_agent=str(agent))) == {"a": "passed", "b": "passed"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a $A b", "a 1 b"),
        ("${A}2", "12"),
        ("$NONE|${NONE}|${EMPTY}", "||"),
        ("${NONE:-d}${EMPTY:-e}${EMPTY-f}${A:-g}", "de1"),
        (r"$$A \$A $$$A", "$A $A $1"),
        ("$(pwd) $", "$(pwd) $"),
    ],
)
def test_interpolation(text: str, expected: str) -> None:
    assert interpolate(text, {"A": "1", "EMPTY": ""}) == expected


def test_records_of_the_agent_are_plain_files(run: Runs) -> None:
    build = annotate(run, "--style info")
    assert json.loads((build.spool / "annotations.json").read_text()) == {
        "default": {"style": "info", "priority": 3, "body": "hello"}
    }
    assert (build.spool / "logs/a-0-0.log").exists()
