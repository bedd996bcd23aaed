"""Step files and the configuration: what is read, and what is refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_piecewise.ci.model import PipelineError
from pytest_piecewise.ci.steps import read_config
from tests.ci.projects import CONFIG, project, step, steps
from tests.running import ROOT


def test_steps_are_read_with_their_places(tmp_path: Path) -> None:
    written = steps(
        step("one"),
        step("two", depends_on="one", parallelism=3, results="out/two", soft_fail=[{"exit_status": 10}], env={"A": 1}),
    )
    one, two = read_config(project(tmp_path, written)).steps
    assert (one.key, one.group, one.device, one.tier, one.expected) == ("one", "Small", "cpu", "fastcheck", ())
    assert (two.depends_on, two.soft_fail, two.env) == (("one",), (10,), {"A": "1"})
    assert two.expected == tuple(f"out/two/{job}/report.json" for job in range(3))
    assert [str(item.place) for item in (one, two)] == [f".buildkite/steps/steps.yaml:{line}" for line in (3, 4)]


def test_dependencies_of_the_file_are_those_of_each_step(tmp_path: Path) -> None:
    written = "depends_on: [first]\n" + steps(step("one", depends_on=["zero"]), step("two"))
    assert [item.depends_on for item in read_config(project(tmp_path, written)).steps] == [
        ("first", "zero"),
        ("first",),
    ]


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (steps(step("one", soft_fial=True)), r"steps.yaml:3: unknown key 'soft_fial'; expected one of label"),
        (steps(step("one", num_gpus=2)), "unknown key 'num_gpus'"),
        (steps(step("one", retry={"automatic": True})), "unknown key 'retry'"),
        ("colour: red\n" + steps(step("one")), "steps.yaml:1: unknown key 'colour'"),
        (steps(step("one", soft_fail=True)), "soft_fail: expected a list as .*`true` would hide every failure"),
        (steps(step("one", soft_fail=[{"exit_status": "*"}])), "soft_fail: expected"),
        (steps(step("one", soft_fail=[])), "soft_fail: expected"),
        (steps(step("one", parallelism=0)), "parallelism: expected a positive whole number, found 0"),
        (steps(step("one", parallelism=True)), "parallelism: expected a positive whole number"),
        (steps(step("one", optional="yes")), "optional: expected true or false, found 'yes'"),
        (steps(step("one", commands=[1])), "commands: expected a list of texts"),
        (steps(step("one", env=["A"])), "expected a mapping of names to texts"),
        (steps(step("one", timeout_in_minutes=None)), "steps.yaml:3: expected timeout_in_minutes, found none"),
        (steps(step("o n e")), "steps.yaml:3: expected a key of letters"),
        (steps(step("one", device="tpu")), "device 'tpu'; .*knows cpu, gpu"),
        (steps(step("one", tier="weekly")), "tier 'weekly'; .*knows fastcheck, full, nightly"),
        (steps(step("one", concurrency=1)), "need each other"),
        (steps(step("one"), step("one")), "steps.yaml:4: the key 'one' is taken by the step at .*steps.yaml:3"),
        ("group: Small\ngroup: Again\nsteps: []\n", "steps.yaml:2: the key 'group' stands twice, first in line 1"),
        ("group: Small\nsteps: [}\n", "steps.yaml:2: expected YAML"),
        ("- one\n", "steps.yaml:1: expected a mapping"),
        ("", "expected group and steps, found none"),
    ],
)
def test_planted_mistake_is_refused(written: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=says):
        read_config(project(tmp_path, written))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("name: small", "nmae: small", r"ci_config.yaml:1: unknown key 'nmae'"),
        ("name: small\n", "", "expected name, found none"),
        ("[.buildkite/steps]", "[.buildkite/stpes]", "ci_config.yaml:2: expected step files in .buildkite/stpes"),
        ("block: Run all", "blcok: Run all", "ci_config.yaml:4: unknown key 'blcok'"),
        ("{queue: default}", "default", "expected a mapping of names to texts, found 'default'"),
        ("sources: [src]", "sources: 3", "sources: expected a list of texts, found 3"),
    ],
)
def test_planted_mistake_in_the_configuration_is_refused(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in CONFIG
    with pytest.raises(PipelineError, match=says):
        read_config(project(tmp_path, config=CONFIG.replace(old, new)))


def test_steps_of_this_repository_are_read() -> None:
    keys = {item.key for item in read_config(ROOT).steps}
    assert keys >= {"lint", "fastcheck-cpu", "fastcheck-gpu", "fastcheck-perf", "full-gpu", "nightly-perf", "report"}
