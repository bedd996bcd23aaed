"""Selection by changed files and sharding: the rules, and sessions that use them."""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path

import pytest

from pytest_piecewise import PiecewiseError
from pytest_piecewise.history.places import open_history
from pytest_piecewise.history.series import Sample, Series
from pytest_piecewise.records import BuildRecord, Case, CaseResult, Phase, Report, Run, to_plain
from pytest_piecewise.selection import (
    Shard,
    Test,
    digest,
    history_seconds,
    is_history,
    parse_shard,
    read_seconds,
    split,
    touched,
)
from tests.running import configure, run_pytest


def made(count: int) -> list[Test]:
    return [Test(f"test_{index}", f"case-{index}", None) for index in range(count)]


@pytest.mark.parametrize(
    ("text", "environ", "expected"),
    [
        ("1/4", {}, Shard(1, 4)),
        ("4/4", {}, Shard(4, 4)),
        ("auto", {"BUILDKITE_PARALLEL_JOB": "0", "BUILDKITE_PARALLEL_JOB_COUNT": "3"}, Shard(1, 3)),
        ("auto", {"CIRCLE_NODE_INDEX": "2", "CIRCLE_NODE_TOTAL": "3"}, Shard(3, 3)),
        ("auto", {"CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "3"}, Shard(1, 3)),
    ],
)
def test_shard_is_counted_from_one(text: str, environ: dict[str, str], expected: Shard) -> None:
    assert parse_shard(text, environ) == expected


@pytest.mark.parametrize(
    ("text", "environ", "says"),
    [
        ("0/4", {}, "expected a shard from 1 to 4, found '0/4'"),
        ("5/4", {}, "expected a shard from 1 to 4"),
        ("1/0", {}, "expected a shard from 1 to 0"),
        ("1", {}, "as I/N, counted from 1, or auto, found '1'"),
        ("-1/4", {}, "found '-1/4'"),
        ("auto", {}, "BUILDKITE_PARALLEL_JOB and .* found none; give I/N"),
        ("auto", {"BUILDKITE_PARALLEL_JOB": "0"}, "found none"),
        ("auto", {"CI_NODE_INDEX": "0", "CI_NODE_TOTAL": "3"}, "found CI_NODE_INDEX=0"),
    ],
)
def test_planted_shard_is_refused(text: str, environ: dict[str, str], says: str) -> None:
    with pytest.raises(PiecewiseError, match=says):
        parse_shard(text, environ)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("measured", [0, 5, 20])
def test_every_test_is_in_exactly_one_shard_in_whatever_order(count: int, measured: int) -> None:
    collected = made(20)
    seconds = {f"case-{index}": float(index + 1) for index in range(measured)}
    shards = split(collected, count, seconds)
    assert sorted(test.name for shard in shards for test in shard) == sorted(test.name for test in collected)
    mixed = random.Random(3).sample(collected, len(collected))
    assert [{test.name for test in shard} for shard in split(mixed, count, seconds)] == [
        {test.name for test in shard} for shard in shards
    ]
    assert digest(mixed, count, seconds) == digest(collected, count, seconds)


def test_without_durations_shards_differ_by_one_test_at_most() -> None:
    sizes = [len(shard) for shard in split(made(22), 4, {})]
    assert sorted(sizes) == [5, 5, 6, 6]


def test_durations_balance_shards() -> None:
    collected = made(12)
    seconds = {test.unit: float(100 if index < 2 else 10) for index, test in enumerate(collected)}
    shards = split(collected, 3, seconds)
    assert sorted(sum(seconds[test.unit] for test in shard) for shard in shards) == [100, 100, 100]


def test_unmeasured_tests_count_as_the_usual_one() -> None:
    seconds = {f"case-{index}": 10.0 for index in range(4)}
    sizes = [len(shard) for shard in split(made(8), 2, seconds)]
    assert sizes == [4, 4]


def test_tests_of_one_case_stay_together() -> None:
    collected = [Test(f"test_{index}", f"case-{index // 3}", None) for index in range(12)]
    for shard in split(collected, 3, {}):
        assert all(sum(test.unit == unit for test in shard) == 3 for unit in {test.unit for test in shard})


def test_digest_sees_another_list_another_count_and_other_durations() -> None:
    collected = made(5)
    digests = {
        digest(collected, 2, {}),
        digest(collected[:4], 2, {}),
        digest(collected, 3, {}),
        digest(collected, 2, {"case-1": 1.0}),
        digest(collected, 2, {"case-1": 2.0}),
    }
    assert len(digests) == 5
    assert digest(collected, 2, {"other": 1.0}) == digest(collected, 2, {})


def test_changed_files_touch_what_watches_them_and_what_declares_nothing() -> None:
    collected = [
        Test("a", "a", ("src/a/", "shared.py")),
        Test("b", "b", ("src/b/", "!src/b/docs/")),
        Test("c", "c", None),
    ]

    def names(*files: str, also: tuple[str, ...] = ()) -> str:
        return "".join(test.name for test in touched(collected, files, also))

    assert names("src/a/x.py") == "ac"
    assert names("src/b/docs/x.md") == "c"
    assert names("src/b/x.py", "shared.py") == "abc"
    assert names("README.md") == "c"
    assert names() == "c"
    assert names("README.md", also=("README.md",)) == "abc"
    assert names("pyproject.toml") == "abc"


def report(*seconds: float) -> str:
    results = [
        CaseResult(
            case=Case(model="m:M", name=f"m{index}"),
            seed=0,
            platform="",
            revision="",
            graph_kind="",
            findings=(),
            builds=tuple(
                BuildRecord(
                    variant=name, outcome="ok", phases=(Phase(name="compile", seconds=value / 2, cpu_seconds=9),)
                )
                for name in ("eager", "full")
            ),
        )
        for index, value in enumerate(seconds)
    ]
    return json.dumps(to_plain(Report(tier="fastcheck", complete=True, environment={}, results=tuple(results))))


def test_durations_are_read_from_reports(tmp_path: Path) -> None:
    for name, values in (("a", (4.0, 8.0)), ("b/0", (6.0,)), ("b/1", (20.0, 0.0))):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "report.json").write_text(report(*values))
    assert read_seconds(tmp_path) == {"m0-native-float32": 6.0, "m1-native-float32": 8.0}
    assert read_seconds(tmp_path / "a/report.json") == {"m0-native-float32": 4.0, "m1-native-float32": 8.0}
    (tmp_path / "a/report.json").write_text("{")
    with pytest.raises(PiecewiseError, match=r"a/report.json: expected JSON, found"):
        read_seconds(tmp_path)
    with pytest.raises(PiecewiseError, match="or a directory with some; found none"):
        read_seconds(tmp_path / "nothing")


def test_durations_are_read_from_a_history(tmp_path: Path) -> None:
    place = str(tmp_path / "history.db")
    with open_history(place) as history:
        for day, value in enumerate((50.0, 9.0, 8.0, 10.0, 7.0, 11.0)):  # the first is older than what counts
            run = Run(id=str(day), started=f"2026-11-0{day + 1}T00:00:00Z")
            found = {("m0", "", "case"): value, ("m1", "", "case"): 2 * value, ("m0", "full", "compile"): 99.0}
            samples = [
                Sample(Series(case=case, variant=variant, metric=metric, kind="seconds"), number)
                for (case, variant, metric), number in found.items()
            ]
            history.append(run, samples)
    assert (is_history(place), is_history("postgresql://host/db"), is_history("reports")) == (True, True, False)
    assert history_seconds(place) == {"m0": 9.0, "m1": 18.0}


# Sessions. The engine can build nothing, so that they need neither torch nor a server: what is run is skipped.

MODELS = """\
from pytest_piecewise import Model

def nothing(*arguments):
    raise AssertionError("nothing is built here")

LEFT = Model(name="left", build=nothing, inputs=nothing, dtypes=("float32",), watches=("src/left/", "src/*.cu"))
RIGHT = Model(name="right", build=nothing, inputs=nothing, dtypes=("float32", "bfloat16"), watches=("src/right/",))
OPEN = Model(name="open", build=nothing, inputs=nothing, dtypes=("float32",))
"""
TESTS = """\
import pytest
from models import LEFT, OPEN, RIGHT

@pytest.mark.piecewise(LEFT, engine="stand_in_absent")
def test_left(piecewise):
    piecewise.check()

@pytest.mark.piecewise(RIGHT, engine="stand_in_absent")
def test_right(piecewise):
    piecewise.check()
"""
OPEN = """\
import pytest
from models import OPEN

@pytest.mark.piecewise(OPEN, engine="stand_in_absent")
def test_open(piecewise):
    piecewise.check()
"""
ORDINARY = "def test_ordinary():\n    pass\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two models that declare what they watch, in one test file; without `test_open.py` no other."""
    for name, text in (("models.py", MODELS), ("test_a.py", TESTS)):
        (tmp_path / name).write_text(text)
    configure(tmp_path, "tests.stand_in", table='device = "cpu"\nreport = "out"\nwatches = ["build.ninja"]')
    return tmp_path


def run(project: Path, *options: str, changed: tuple[str, ...] | None = None, **environ: str) -> tuple[int, str]:
    more: tuple[str, ...] = ()
    if changed is not None:
        (project / "changed").write_text("".join(f"{name}\n" for name in changed))
        more = ("--piecewise-changed-files", "changed")
    # pytest puts the directory of a test file on the path, and the server's children get that
    done = run_pytest(project, "-p", "tests.stand_in", "--piecewise", "-v", *options, *more, **environ)
    return done.returncode, done.stdout + done.stderr


def ran(output: str) -> set[str]:
    return {line.split("::")[1].split(" ")[0] for line in output.splitlines() if "::" in line and "SKIPPED" in line}


LEFT_TESTS = {"test_left[stand_in_absent-float32]"}
RIGHT_TESTS = {"test_right[stand_in_absent-float32]", "test_right[stand_in_absent-bfloat16]"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (("src/left/a.py",), LEFT_TESTS),
        (("src/kernel.cu", "docs/a.md"), LEFT_TESTS),
        (("src/right/a.py",), RIGHT_TESTS),
        (("test_a.py",), LEFT_TESTS | RIGHT_TESTS),
        (("models.py",), LEFT_TESTS | RIGHT_TESTS),
        (("conftest.py",), LEFT_TESTS | RIGHT_TESTS),
        (("build.ninja",), LEFT_TESTS | RIGHT_TESTS),
        (("baselines/some-platform/left-stand_in_absent-float32.json",), LEFT_TESTS),
        (("src/left/a.py", "src/right/b.py"), LEFT_TESTS | RIGHT_TESTS),
        ((".",), LEFT_TESTS | RIGHT_TESTS),
    ],
)
def test_session_runs_what_the_change_can_touch(changed: tuple[str, ...], expected: set[str], project: Path) -> None:
    code, output = run(project, changed=changed)
    assert code == 0, output
    assert ran(output) == expected
    if changed == (".",):
        assert "piecewise: everything may have changed, so every test is run" in output
        return
    assert f"piecewise: only tests that {len(changed)} changed file(s) can touch" in output
    assert f"piecewise: {len(expected)} of 3 test(s) can be touched by {len(changed)} changed file(s)" in output
    chosen = json.loads((project / "out/report.json").read_text())["selection"]
    assert (chosen["collected"], chosen["touched"], chosen["chosen"]) == (3, len(expected), len(expected))


def test_model_that_declares_nothing_is_always_touched(project: Path) -> None:
    (project / "test_open.py").write_text(OPEN + ORDINARY)
    code, output = run(project, changed=("docs/a.md",))
    assert code == 0, output
    assert ran(output) == {"test_open[stand_in_absent-float32]"}
    assert "test_ordinary PASSED" in output


def test_empty_selection_is_not_green_unless_allowed(project: Path) -> None:
    (project / "test_ordinary.py").write_text(ORDINARY)
    code, output = run(project, changed=("docs/a.md",))
    assert code == 5, output
    assert "0 of 3 test(s) can be touched by 1 changed file(s): nothing was checked (--piecewise-allow-empty" in output
    code, output = run(project, "--piecewise-allow-empty", changed=("docs/a.md",))
    assert code == 0, output
    assert "nothing was checked (allowed)" in output
    assert json.loads((project / "out/report.json").read_text())["selection"]["empty_allowed"] is True
    (project / "test_ordinary.py").write_text("def test_ordinary():\n    assert False\n")
    assert run(project, changed=("docs/a.md",))[0] == 1


def test_controller_of_xdist_learns_what_its_workers_selected(project: Path) -> None:
    (project / "test_ordinary.py").write_text(ORDINARY)
    code, output = run(project, "-n2", changed=("docs/a.md",))
    assert code == 5, output
    assert "0 of 3 test(s) can be touched by 1 changed file(s): nothing was checked (--piecewise-allow-empty" in output
    chosen = json.loads((project / "out/report.json").read_text())["selection"]
    assert (chosen["collected"], chosen["chosen"]) == (3, 0)


def test_project_within_a_repository_understands_paths_from_its_root(project: Path) -> None:
    inner = project / "tools/inner"
    inner.mkdir(parents=True)
    for name in ("models.py", "test_a.py", "pyproject.toml"):
        (project / name).rename(inner / name)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    assert ran(run(inner, changed=("tools/inner/src/left/a.py",))[1]) == LEFT_TESTS
    assert ran(run(inner, changed=("src/left/a.py",))[1]) == LEFT_TESTS


def test_missing_list_and_bad_shard_are_usage_errors(project: Path) -> None:
    code, output = run(project, "--piecewise-changed-files", "none")
    assert (code, "expected a list of changed files in" in output) == (4, True), output
    code, output = run(project, "--piecewise-shard", "0/2")
    assert (code, "expected a shard from 1 to 2" in output) == (4, True), output


def test_shards_together_run_every_test_once(project: Path) -> None:
    (project / "test_open.py").write_text(OPEN + ORDINARY)
    (project / "took").mkdir()
    (project / "took/report.json").write_text(report(3.0, 4.0))
    seen: list[str] = []
    splits = set()
    for job in range(3):
        variables = {"BUILDKITE_PARALLEL_JOB": str(job), "BUILDKITE_PARALLEL_JOB_COUNT": "3"}
        options = (
            ("-n1", "--piecewise-durations", "took") if job == 2 else ("--piecewise-durations", "took/report.json")
        )
        code, output = run(project, *options, "--piecewise-shard", "auto", **variables)
        assert code in (0, 5), output
        assert f"shard {job + 1}/3, by 2 recorded duration(s)" in output
        seen += re.findall(r"::(\S+) +(?:SKIPPED|PASSED)|(?:SKIPPED|PASSED) \S+::(\S+)", output)
        chosen = json.loads((project / "out/report.json").read_text())["selection"]
        assert chosen["shard"] == f"{job + 1}/3"
        splits.add(chosen["split"])
    assert len(splits) == 1
    names = ["".join(pair) for pair in seen]
    assert sorted(names) == sorted(LEFT_TESTS | RIGHT_TESTS | {"test_open[stand_in_absent-float32]", "test_ordinary"})


def test_selection_forbids_trimming_baselines(project: Path) -> None:
    for given, changed in (("--piecewise-shard", None), ("--piecewise-changed-files", ("models.py",))):
        options = ("--piecewise-shard", "1/1") if changed is None else ()
        code, output = run(project, "--piecewise-update=trim", *options, changed=changed)
        assert code == 0, output
        assert f"baselines: nothing trimmed, since {given} left tests out" in output
