"""The plugin as a user meets it: pytest in a subprocess, its words, its exit codes, its files."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.running import command, configure, environment, run_pytest

"""Spares the test programs for the vector instruction set, which nothing here hangs on."""
STAND_IN = ("-p", "tests.stand_in", "--piecewise")
IN_PROCESS = (*STAND_IN, "--piecewise-isolation=none")

Done = subprocess.CompletedProcess[str]


def project(directory: Path, **files: str) -> Path:
    """A project of the files `name=content`, on the CPU, in which the engines of the tests are known."""
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / f"{name}.py").write_text(content)
    return configure(directory, "tests.planted.engines", "tests.stand_in", table='device = "cpu"')


def case(name: str, model: str, checks: str = "piecewise.check()", **marker: str) -> str:
    """The source of one piecewise test. The model is given as text, so that the test file itself imports no torch."""
    arguments = "".join(f", {key}={value!r}" for key, value in marker.items())
    return (
        f"import pytest\n@pytest.mark.piecewise({model!r}{arguments})\n"
        f"def test_{name}(piecewise):\n    {checks}\n"
    )  # fmt: skip


def outcomes(done: Done) -> dict[str, str]:
    """The outcome of every test by its name, from the lines of `-v`."""
    words = "PASSED|FAILED|SKIPPED|ERROR"
    return {name: word.lower() for name, word in re.findall(rf"::(\S+) ({words})", done.stdout)}


def read_report(directory: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((directory / "out" / "report.json").read_text())
    return report


MEASURED = ("seconds", "cpu_seconds", "instructions", "bytes")


def without_measurements(value: Any) -> Any:
    """A report without what differs from run to run: which run it was, seconds and bytes."""
    if isinstance(value, list):
        kept = [item for item in value if not (isinstance(item, dict) and item.get("kind") in MEASURED)]
        return [without_measurements(item) for item in kept]
    if isinstance(value, dict):
        left_out = ("run", "seconds", "cpu_seconds", "compile_seconds")
        return {key: without_measurements(item) for key, item in value.items() if key not in left_out}
    return value


def verdicts(report: dict[str, Any]) -> dict[str, set[str]]:
    """The checks that failed, by case."""
    return {
        f"{result['case']['name']}-{result['case']['engine']}-{result['case']['dtype']}": {
            item["check"] for item in result["findings"] if item["status"] == "FAIL"
        }
        for result in report["results"]
    }


# Without --piecewise


OURS = (
    case("marked", "tests.planted.models:CLEAN")
    + """
@pytest.mark.piecewise("tests.planted.models:CLEAN")
def test_marked_without_fixture():
    raise AssertionError

@pytest.mark.parametrize("make", ["eager_build", "full_build", "piecewise_build"])
def test_dynamic(make):
    pass

def test_eager(eager_build):
    raise AssertionError

def test_full(full_build):
    raise AssertionError

def test_piecewise(piecewise_build):
    raise AssertionError
"""
)
ORDINARY = """
import sys

def test_ordinary():
    assert "torch" not in sys.modules
    assert "pytest_piecewise.plugin" in sys.modules
    assert not [name for name in sys.modules if name.startswith("pytest_piecewise.") and name != "pytest_piecewise.plugin"
                and name.rpartition(".")[2] not in ("errors", "models", "records")]
"""


def test_without_the_option_our_tests_are_deselected_and_torch_is_not_imported(tmp_path: Path) -> None:
    done = run_pytest(project(tmp_path, test_ours=OURS, test_ordinary=ORDINARY), "-v")
    assert done.returncode == 0, done.stdout
    assert "piecewise: 5 test(s) deselected; to run them: pytest --piecewise\n" in done.stdout
    assert "4 passed, 5 deselected" in done.stdout
    assert not any(name in outcomes(done) for name in ("test_marked", "test_eager", "test_full", "test_piecewise"))


def test_ordinary_run_is_told_nothing(tmp_path: Path) -> None:
    done = run_pytest(project(tmp_path, test_ordinary=ORDINARY))
    assert done.returncode == 0, done.stdout
    assert "piecewise:" not in done.stdout
    assert "deselected" not in done.stdout


COST = """
import functools, sys, time
import pytest

begin = time.perf_counter()
import pytest_piecewise.plugin as plugin
spent = [time.perf_counter() - begin]
called = set()

def timed(function):
    @functools.wraps(function)
    def call(*arguments):
        begin = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            spent.append(time.perf_counter() - begin)
            called.add(function.__name__)
    return call

for name in [name for name in vars(plugin) if name.startswith("pytest_")]:
    setattr(plugin, name, timed(getattr(plugin, name)))
assert pytest.main(["-q", "-p", "no:cacheprovider", "test_many.py"]) == 0
assert {"pytest_addoption", "pytest_configure", "pytest_collection_modifyitems", "pytest_generate_tests"} <= called
print("spent", sum(spent))
"""


def test_plugin_costs_an_ordinary_run_less_than_10_ms(tmp_path: Path) -> None:
    many = "import pytest\n@pytest.mark.parametrize('n', range(100))\ndef test_many(n):\n    pass\n"
    directory = project(tmp_path, test_many=many, cost=COST)
    spent = []
    for _ in range(5):  # the least of several: others may be at work on the machine
        done = subprocess.run(
            [sys.executable, "cost.py"], cwd=directory, env=environment(), capture_output=True, text=True, check=True
        )
        assert "100 passed" in done.stdout
        spent.append(float(done.stdout.rpartition("spent ")[2]))
    assert 0 < min(spent) < 0.010, spent


def test_markers_and_fixtures_are_explained(tmp_path: Path) -> None:
    markers = run_pytest(project(tmp_path), "--markers").stdout
    assert (
        "@pytest.mark.piecewise(model, engine='native', dtype=None, tier='fastcheck', device=None, expected=None): check"
        in markers
    )
    assert "Runs only with --piecewise." in markers
    fixtures = " ".join(run_pytest(tmp_path, "--fixtures").stdout.split())
    assert "The case of the `piecewise` marker: `.check()` runs every check on it" in fixtures
    assert "`.check_equivalence()`, `.check_structure()` and `.check_baseline()` run a part" in fixtures
    for name, text in (
        ("eager_build", "the model as it is, alive in this test's process"),
        ("full_build", "one graph through Inductor, alive in this test's process"),
        ("piecewise_build", "pieces compiled and captured, alive in this test's process"),
    ):
        assert re.search(rf"{name} -- \S*plugin.py:\d+ `{name}\(model, .*?\)`: {text}", fixtures), name
    options = run_pytest(tmp_path, "--help").stdout
    for option in ("--piecewise-model=MODULE:ATTR", "--piecewise-isolation", "--piecewise-timeout=SECONDS"):
        assert option in options


# Options


LIGHT_MODELS = """
from pytest_piecewise import Model

LIGHT = Model(name="light", build=dict, inputs=lambda size, generator: ())
"""
"""Refers to no torch: enough for an engine that is absent."""


def test_path_after_the_option_is_no_tier(tmp_path: Path) -> None:
    directory = project(tmp_path)
    (directory / "suites" / "x").mkdir(parents=True)
    (directory / "suites" / "x" / "test_in.py").write_text("def test_in(): pass\n")
    (directory / "test_out.py").write_text("def test_out(): raise AssertionError\n")
    done = run_pytest(directory, "--piecewise", "suites/x", "-v")
    assert done.returncode == 0, done.stdout
    assert outcomes(done) == {"test_in": "passed"}
    assert "piecewise: tier fastcheck, device cpu, seed 0, isolation process, baselines" in done.stdout


def test_unknown_tier_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    done = run_pytest(project(tmp_path), "--piecewise=bogus")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    for text in ("'bogus'", "--piecewise=fastcheck", "--piecewise=full", "--piecewise=nightly"):
        assert text in done.stderr


def test_unknown_isolation_and_engine_and_dtype_and_device_are_refused(tmp_path: Path) -> None:
    directory = project(tmp_path, light=LIGHT_MODELS)
    model = ("--piecewise", "--piecewise-model", "light:LIGHT")
    for argument, text in (
        ("--piecewise-isolation=some", "invalid choice: 'some' (choose from"),
        ("--piecewise-device=gpu", "expected device auto, cpu, cuda or cuda:INDEX, found 'gpu'"),
        ("--piecewise-timeout=0", "expected a positive timeout"),
        ("--piecewise-dtype=float17", "--piecewise-dtype: expected dtype float32, bfloat16, float16, found 'float17'"),
    ):
        done = run_pytest(directory, *model, argument)
        assert done.returncode == pytest.ExitCode.USAGE_ERROR, argument
        assert text in done.stderr
        assert "Traceback" not in done.stderr + done.stdout


def test_model_option_alone_is_refused(tmp_path: Path) -> None:
    done = run_pytest(project(tmp_path), "--piecewise-model", "tests.planted.models:CLEAN")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--piecewise-model needs --piecewise: pytest --piecewise --piecewise-model MODULE:ATTR" in done.stderr


def test_unknown_option_in_pyproject_is_refused(tmp_path: Path) -> None:
    configure(tmp_path, table='seeds = 3\ndevice = "cpu"')
    done = run_pytest(tmp_path, "--piecewise")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "[tool.pytest_piecewise] has 'seeds'; expected one of engine, dtype, device," in done.stderr
    assert "did you mean 'seed'?" in done.stderr
    assert run_pytest(tmp_path).returncode == pytest.ExitCode.NO_TESTS_COLLECTED  # an ordinary run does not care


TIERS = "".join(
    case(tier, "light:LIGHT", engine="stand_in_absent", dtype="float32", tier=tier)
    for tier in ("fastcheck", "full", "nightly")
)


@pytest.mark.parametrize("tier", ["fastcheck", "full", "nightly"])
def test_higher_tiers_are_deselected_and_counted(tmp_path: Path, tier: str) -> None:
    directory = project(tmp_path, light=LIGHT_MODELS, test_tiers=TIERS)
    done = run_pytest(directory, f"--piecewise={tier}", "-v")
    tiers = ["fastcheck", "full", "nightly"]
    run = tiers[: tiers.index(tier) + 1]
    assert outcomes(done) == {f"test_{name}[stand_in_absent-float32]": "skipped" for name in run}, done.stdout
    line = f"piecewise: {len(tiers) - len(run)} test(s) of higher tiers deselected\n"
    assert (line in done.stdout) == (tier != "nightly")
    assert ("of higher tiers" in done.stdout) == (tier != "nightly")


def test_case_that_an_engine_cannot_build_is_skipped_with_the_reason(tmp_path: Path) -> None:
    directory = project(tmp_path, light=LIGHT_MODELS, test_tiers=TIERS)
    done = run_pytest(directory, "--piecewise", "-rs", "--piecewise-report=out")
    assert done.returncode == 0, done.stdout
    assert "1 skipped, 2 deselected" in done.stdout
    assert "build: the engine is on holiday" in done.stdout
    (result,) = read_report(directory)["results"]
    assert [item["summary"] for item in result["findings"]] == ["the engine is on holiday"]


def test_report_of_a_session_that_stops_early_is_not_complete(tmp_path: Path) -> None:
    files = {"test_a": "def test_fails(): raise AssertionError\n", "test_b": TIERS}
    directory = project(tmp_path, light=LIGHT_MODELS, **files)
    for argument, complete, results in (("-x", False, 0), ("--maxfail=2", True, 1)):
        done = run_pytest(directory, "--piecewise", "--piecewise-report=out", argument)
        assert done.returncode == pytest.ExitCode.TESTS_FAILED
        report = read_report(directory)
        assert (report["complete"], len(report["results"])) == (complete, results)


# --piecewise-model


MODELS = """
import os
from pathlib import Path
from pytest_piecewise import Model
from tests.planted.models import Network, ops, rows

ONE = Model(name="one", build=Network, inputs=rows, splitting_ops=("planted::mix_into",), capture_sizes=(2,),
            context=ops.metadata, dtypes=("float32",))
TWO = Model(name="two", build=Network, inputs=rows, splitting_ops=("planted::mix_into",), capture_sizes=(1, 4, 8),
            context=ops.metadata, dtypes=("float32",))
"""


def test_models_need_no_test_file_and_nothing_else_is_collected(tmp_path: Path) -> None:
    directory = project(tmp_path, users_models=MODELS, test_other="def test_other(): raise AssertionError\n")
    (directory / "tests").mkdir()
    models = ("--piecewise-model", "users_models:ONE", "--piecewise-model", "users_models:TWO")
    done = run_pytest(directory, *STAND_IN, *models, "--piecewise-engine=stand_in", "--piecewise-report=out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    report = read_report(directory)
    assert verdicts(report) == {"one-stand_in-float32": set(), "two-stand_in-float32": set()}
    assert report["complete"] is True
    assert report["results"][0]["case"]["model"] == "users_models:ONE"


def test_command_that_repeats_a_failure_has_the_options_that_made_it(tmp_path: Path) -> None:
    directory = project(tmp_path, users_models=MODELS, test_one=case("one", "users_models:ONE"))
    options = ("--piecewise-engine=stand_in_wrong", "--piecewise-dtype=float32", "--piecewise-seed=3")
    done = run_pytest(directory, *IN_PROCESS, *options, "test_one.py", "--piecewise-model=users_models:ONE")
    assert "2 failed" in done.stdout
    given = "--piecewise-engine stand_in_wrong --piecewise-dtype float32 --piecewise-seed 3"
    assert (
        f"repeat: pytest --piecewise=fastcheck {given} 'test_one.py::test_one[stand_in_wrong-float32]'\n" in done.stdout
    )
    assert f"repeat: pytest --piecewise=fastcheck {given} --piecewise-model users_models:ONE\n" in done.stdout


def test_model_that_cannot_be_used_is_a_usage_error(tmp_path: Path) -> None:
    directory = project(tmp_path, light=LIGHT_MODELS, broken="import nothing_of_this_name\n")
    for name, text in (
        ("light:HEAVY", "expected a Model named 'HEAVY' in module 'light', found the models LIGHT; check the spelling"),
        ("nowhere:ONE", "expected an importable module 'nowhere', found ModuleNotFoundError: No module named 'nowhere';"),
        ("broken:ONE", "expected an importable module 'broken', found ModuleNotFoundError: No module named 'nothing_of"),
        ("light:__name__", "expected light:__name__ to be a pytest_piecewise.Model, found str; name a Model"),
        ("light", "expected a model as 'module:attribute' or with a scheme out of hf, hf-thin, hf-tiny, found 'light'"),
    ):  # fmt: skip
        done = run_pytest(directory, "--piecewise", "--piecewise-model", name)
        assert done.returncode == pytest.ExitCode.USAGE_ERROR, (name, done.stdout, done.stderr)
        assert f"ERROR: {text}" in done.stderr
        assert "Traceback" not in done.stderr


# Refusals at collection


REFUSED_MODELS = """
import itertools
import os
from pathlib import Path

import torch
from pytest_piecewise import Model
from tests.planted.models import Network, ops, rows

COUNTER = itertools.count()


def build():
    # On the meta device it is only asked which ops the model registers.
    if torch.get_default_device().type != "meta":
        Path(os.environ["BUILT"]).touch()
    return Network()


def model(**changes):
    declared = dict(name="a", build=build, inputs=rows, splitting_ops=("planted::mix_into",), capture_sizes=(1, 4),
                    context=ops.metadata, dtypes=("float32",))
    return Model(**(declared | changes))


GOOD = model()
UNREGISTERED = model(splitting_ops=("planted::no_such_op",))


@torch.library.custom_op("refused::unfaked", mutates_args=())
def unfaked(x: torch.Tensor) -> torch.Tensor:
    return x * 2


UNFAKED = model(splitting_ops=("refused::unfaked",))
FIXED = model(inputs=lambda size, generator: (torch.randn(16, 16, generator=generator),))
RANDOM = model(inputs=lambda size, generator: (torch.full((size, 16), float(next(COUNTER))),))
"""
REFUSALS = {
    # test file: its content, and what the refusal must say
    "op": (
        case("a", "refused_models:UNREGISTERED"),
        "Model 'a': expected registered ops in splitting_ops, found no op planted::no_such_op; correct the name, or import",
    ),
    "unfaked": (
        case("a", "refused_models:UNFAKED"),
        "Model 'a': expected splitting ops with a fake kernel, from which Dynamo learns what they return, found none of "
        'refused::unfaked; register one with @torch.library.register_fake("refused::unfaked")',
    ),
    "leading": (
        case("a", "refused_models:FIXED"),
        "Model 'a': expected the leading dimension of some input to be the size, found none at sizes [1, 4]; let inputs()",
    ),
    "random": (
        case("a", "refused_models:RANDOM"),
        "found two calls at size 1 that differ; draw everything random from the generator that is passed in",
    ),
    "dtype": (
        case("a", "refused_models:GOOD", dtype="float16"),
        "Model 'a': expected one of its dtypes float32, found 'float16'; add it to dtypes, or ask for another one",
    ),
    "engine": (case("a", "refused_models:GOOD", engine="nativ"), "expected a known engine, found 'nativ'; known are native"),
    "tier": (case("a", "refused_models:GOOD", tier="weekly"), "expected tier fastcheck, full, nightly, found 'weekly'"),
    "option": (case("a", "refused_models:GOOD", dtypes="float32"), "has no dtypes; expected engine, dtype, tier, "
               "device or expected"),
    "local": (
        "import pytest\nfrom refused_models import model\n@pytest.mark.piecewise(model())\n"
        "def test_a(piecewise): piecewise.check()\n",
        "Model 'a': expected it at the top level of an importable module, so that a child process can find it; found it",
    ),
    "no_model": (
        "import pytest\n@pytest.mark.piecewise\ndef test_a(piecewise): piecewise.check()\n",
        "test_no_model.py::test_a: expected @pytest.mark.piecewise(MODEL) on a test that uses the `piecewise` fixture",
    ),
    "no_marker": (
        "def test_a(piecewise): piecewise.check()\n",
        "test_no_marker.py::test_a: expected @pytest.mark.piecewise(MODEL) on a test that uses the `piecewise` fixture",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """All refused tests, and a good one, in one session; and the file that a build would leave."""
    directory = tmp_path_factory.mktemp("refusals")
    files = {f"test_{name}": content for name, (content, _) in REFUSALS.items()}
    project(directory, refused_models=REFUSED_MODELS, test_good=case("good", "refused_models:GOOD"), **files)
    return directory / "built", run_pytest(directory, *STAND_IN, BUILT=str(directory / "built"))


@pytest.mark.parametrize("name", REFUSALS)
def test_unusable_request_is_refused_at_collection(refusals: tuple[Path, Done], name: str) -> None:
    output = refusals[1].stdout
    found = re.search(
        rf"_+ ERROR collecting test_{name}.py _+\n(.*?)\n_* ?(ERROR collecting|=+ short test)", output, re.S
    )
    assert found, output
    assert REFUSALS[name][1] in " ".join(found[1].split())
    assert "pytest_piecewise/" not in found[1]  # no traceback of ours


def test_refusals_leave_nothing_built(refusals: tuple[Path, Done]) -> None:
    built, done = refusals
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert f"{len(REFUSALS)} errors during collection" in done.stdout
    assert not built.exists()


# Verdicts, over two workers and over none


VERDICTS = (
    case("clean", "tests.planted.models:CLEAN", "piecewise.check()", dtype="float32")
    + """
def found(piecewise):
    return {item.check: item.status for item in piecewise.result.findings}

@pytest.mark.piecewise("tests.planted.models:CLEAN", dtype="float32")
def test_result(piecewise):
    result = piecewise.result
    assert result is piecewise.result
    assert result.case == piecewise.case and result.case.id == "clean-native-float32"
    assert [build.variant for build in result.builds] == ["eager", "full", "piecewise", "reference", "comparison"]
    assert result.builds[2].counts.pieces == 2 and result.builds[2].counts.captures == 6
    assert found(piecewise)["equivalence"] == "PASS" and result.status == "PASS" and result.graph_kind == "recorded graphs"

wrong = pytest.mark.piecewise("tests.planted.models:CLEAN", engine="stand_in_wrong", dtype="float32")
recompiled = pytest.mark.piecewise("tests.planted.models:CLEAN", engine="stand_in_recompiled", dtype="float32")

@wrong
def test_wrong(piecewise):
    piecewise.check()

@wrong
def test_wrong_equivalence(piecewise):
    piecewise.check_equivalence()

@wrong
def test_wrong_structure(piecewise):
    piecewise.check_structure()

@wrong
def test_wrong_result(piecewise):
    assert found(piecewise)["equivalence"] == "FAIL"

@recompiled
def test_recompiled(piecewise):
    piecewise.check()

@recompiled
def test_recompiled_equivalence(piecewise):
    piecewise.check_equivalence()

@recompiled
def test_recompiled_structure(piecewise):
    piecewise.check_structure()
"""
)
EXPECTED = {
    "test_clean[native-float32]": "passed",
    "test_result[native-float32]": "passed",
    "test_wrong[stand_in_wrong-float32]": "failed",
    "test_wrong_equivalence[stand_in_wrong-float32]": "failed",
    "test_wrong_structure[stand_in_wrong-float32]": "passed",
    "test_wrong_result[stand_in_wrong-float32]": "passed",
    "test_recompiled[stand_in_recompiled-float32]": "failed",
    "test_recompiled_equivalence[stand_in_recompiled-float32]": "passed",
    "test_recompiled_structure[stand_in_recompiled-float32]": "failed",
}


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, dict[str, Any]]:
    directory = project(tmp_path_factory.mktemp("verdicts"), test_verdicts=VERDICTS)
    done = run_pytest(directory, "-n0", "-v", "--piecewise", "--piecewise-report=out", "--piecewise-seed=7")
    return done, read_report(directory)


def test_parts_of_the_check_fail_separately(one_process: tuple[Done, dict[str, Any]]) -> None:
    done, report = one_process
    assert outcomes(done) == EXPECTED, done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert verdicts(report) == {
        "clean-native-float32": set(),
        "clean-stand_in_wrong-float32": {"equivalence", "bits_full"},
        "clean-stand_in_recompiled-float32": {"recompiles"},
    }


def test_failing_test_shows_its_findings_and_no_others(one_process: tuple[Done, dict[str, Any]]) -> None:
    shown = dict(re.findall(r"\n_+ (test_\w+)\[\S+\] _+\n(.*?)\nrepeat: ", one_process[0].stdout, re.S))
    assert set(shown) == {name.partition("[")[0] for name, outcome in EXPECTED.items() if outcome == "failed"}
    assert "FAIL equivalence (piecewise): first, size 8: output[" in shown["test_wrong_equivalence"]
    assert "FAIL recompiles (full): 1 compilation(s) after warm-up" in shown["test_recompiled_structure"]
    assert "    the weather has changed" in shown["test_recompiled_structure"]
    assert "equivalence" not in shown["test_recompiled_structure"]
    assert not any("Traceback" in text or ".py" in text for text in shown.values())


def test_seed_is_that_of_the_results_and_of_the_command_that_repeats_them(
    one_process: tuple[Done, dict[str, Any]],
) -> None:
    done, report = one_process
    assert {result["seed"] for result in report["results"]} == {7}
    assert " of clean-stand_in_wrong-float32 on cpu, seed 7:" in done.stdout
    name = "test_verdicts.py::test_wrong[stand_in_wrong-float32]"
    assert f"repeat: pytest --piecewise=fastcheck --piecewise-seed 7 '{name}'" in done.stdout


def test_report_holds_what_was_measured(one_process: tuple[Done, dict[str, Any]]) -> None:
    report = one_process[1]
    assert (report["schema"], report["tier"], report["complete"]) == (1, "fastcheck", True)
    result = next(result for result in report["results"] if result["case"]["engine"] == "native")
    metrics = {f"{build['variant']}.{item['name']}": item for build in result["builds"] for item in build["metrics"]}
    assert metrics["piecewise.compiles"]["value"] == 2
    assert metrics["full.compile"]["kind"] == "seconds"
    assert 0 < metrics["full.compile"]["value"] < 300
    assert "piecewise.capture" not in metrics  # the time of a recorded graph is never called capture time
    assert result["environment"]["torch"]


def test_two_workers_give_the_same_verdicts_and_report(
    one_process: tuple[Done, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = project(tmp_path_factory.mktemp("verdicts-n2"), test_verdicts=VERDICTS)
    done = run_pytest(directory, "-n2", "-v", "--piecewise", "--piecewise-report=out", "--piecewise-seed=7")
    found = {name.partition("::")[2]: word.lower() for word, name in re.findall(r"(PASSED|FAILED) (\S+)", done.stdout)}
    assert {name: word for name, word in found.items() if name} == EXPECTED, done.stdout
    text = json.dumps(without_measurements(read_report(directory)), indent=1)
    before = json.dumps(without_measurements(one_process[1]), indent=1)
    assert len(before) > 5000
    assert text.replace(str(directory), str(directory.with_name("verdicts0"))) == before
    table = done.stdout.rpartition("= piecewise =")[2]
    assert table.index("clean-stand_in_wrong") < table.index("clean-native")  # failures first


# In the test's own process


BY_HAND = (
    """
import os
import tempfile

import pytest
import torch

from tests.planted.models import CLEAN

BEFORE = dict(os.environ)


def test_by_hand(eager_build, full_build, piecewise_build):
    eager, full, split = (make(CLEAN, dtype="float32") for make in (eager_build, full_build, piecewise_build))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(tempfile.gettempdir().rpartition("/")[0])
    assert (eager.counts.pieces, full.counts.pieces, full.counts.graphs) == (0, 1, 1)
    counts = split.counts
    assert (counts.pieces, counts.distinct_pieces, counts.compiles, counts.splitting_ops) == (2, 2, 2, 1)
    assert (counts.captures, counts.replays, counts.captured_sizes) == (6, 0, (1, 4, 8))
    assert eager.compile_seconds is None and full.compile_seconds > 0 and split.compile_seconds > 0
    assert split.capture_seconds is None and split.pool_bytes == 0  # no CUDA graphs here
    for size in (8, 1, 4, 3, 5):
        expected = eager(size=size, seed=3)["output"]
        assert expected.shape == (size, 16)
        for build in (full, split):
            torch.testing.assert_close(build(size=size, seed=3)["output"], expected)
    assert split.counts.replays == 2 * 5
    assert torch.equal(split(3, seed=3)["output"], split(3, seed=3, padding="nan")["output"])
    assert torch.equal(split(8, seed=3)["output"], split(8, seed=3, graphs=False)["output"])
    assert split.counts.replays == 2 * 8
    assert not torch.equal(split(8, seed=3)["output"], split(8, seed=4)["output"])
    assert not torch.equal(eager(8, seed=3)["output"], eager(8, seed=4)["output"])
    kept = split(8, seed=3)["output"]
    copy = kept.clone()
    split(8, seed=5)
    assert torch.equal(kept, copy)
    for size in (0, CLEAN.largest + 1):
        with pytest.raises(Exception, match=f"clean: expected a size from 1 to {CLEAN.largest}, found {size}"):
            eager(size)


def test_second_test_starts_afresh(piecewise_build):
    assert piecewise_build(CLEAN).counts.replays == 0


def test_environment_is_restored():
    changed = {key for key in BEFORE.keys() | os.environ.keys() if BEFORE.get(key) != os.environ.get(key)}
    assert changed <= {"PYTEST_CURRENT_TEST"}
    assert tempfile.gettempdir() == os.environ["TMPDIR"]

"""
    + case("clean", "tests.planted.models:CLEAN", "piecewise.check()", dtype="float32")
    + """
@pytest.mark.piecewise("tests.planted.models:CLEAN", dtype="float32")
def test_cost(piecewise):
    piecewise.check_baseline()
"""
)


def test_builds_alive_in_the_process_of_the_test(tmp_path: Path) -> None:
    directory = project(tmp_path / "project", test_by_hand=BY_HAND)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    arguments = ("-v", "-rs", "--piecewise", "--piecewise-isolation=none", "--piecewise-report=out")
    done = run_pytest(directory, *arguments, TMPDIR=str(temporary))
    assert outcomes(done) == {
        "test_by_hand": "passed",
        "test_second_test_starts_afresh": "passed",
        "test_environment_is_restored": "passed",
        "test_clean[native-float32]": "passed",
        "test_cost[native-float32]": "skipped",
    }, done.stdout
    assert "isolation none" in done.stdout
    reason = "not measured: with --piecewise-isolation=none builds share one process"
    assert f"cost: {reason}" in " ".join(done.stdout.split())
    findings = read_report(directory)["results"][0]["findings"]
    assert [item["summary"] for item in findings if item["check"] == "cost"] == [reason]
    assert [path.name for path in temporary.glob("piecewise-*")] == []


# Sessions that do not end by themselves


HANGING = """
import os
import subprocess
import time
from pathlib import Path

from tests.planted.models import Network, model


def hang():
    grandchild = subprocess.Popen(["sleep", "600"])
    Path(os.environ["HANGING"]).write_text(str(grandchild.pid))
    time.sleep(600)
    return Network()


HANG = model(name="hang", build=hang)
"""


@dataclass
class Running:
    """A session in a process group of its own, whose processes are known by a variable in their environment."""

    process: subprocess.Popen[str]
    directory: Path
    marker: str
    temporary: Path

    def processes(self) -> dict[int, str]:
        """Command lines of everything that the session has started and that still runs, itself included."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if self.marker.encode() in (entry / "environ").read_bytes():
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def wait_until_it_hangs(self) -> None:
        """Until the build has written its file."""
        deadline = time.monotonic() + 120
        while not (self.directory / "hanging").exists() or not (self.directory / "hanging").read_text():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def is_gone_within(self, seconds: float) -> bool:
        """Whether nothing of it is left, at the latest after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts a session whose second test hangs in a build, and waits until it does."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs /proc to look for what is left behind")
    started: list[Running] = []

    def start(*arguments: str) -> Running:
        first = case("first", "tests.planted.models:CLEAN", engine="stand_in", dtype="float32")
        files = {"hanging": HANGING, "test_a": first, "test_b": case("second", "hanging:HANG", engine="stand_in")}
        directory, temporary = project(tmp_path / "project", **files), tmp_path / "temporary"
        temporary.mkdir()
        marker = f"PIECEWISE_TEST_SESSION={uuid.uuid4()}"
        environ = environment(TMPDIR=str(temporary), HANGING=str(directory / "hanging"))
        environ |= dict([marker.split("=")])
        process = subprocess.Popen(
            command(directory, *STAND_IN, "--piecewise-report=out", *arguments),
            cwd=directory,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # In the background of a script, as CI may run this, Ctrl-C is ignored, and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(Running(process, directory, marker, temporary))
        started[-1].wait_until_it_hangs()
        return started[-1]

    yield start
    for running in started:
        for pid in running.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        running.process.communicate()


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_ends_everything_within_5_seconds(hanging: Callable[..., Running], workers: int) -> None:
    running = hanging(f"-n{workers}")
    wanted, deadline = (
        4 + 2 * workers,
        time.monotonic() + 60,
    )  # pytest, its workers, a server for each, child, its sleep
    while len(before := running.processes()) < wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(before) >= wanted, before
    assert int((running.directory / "hanging").read_text()) in before
    begin = time.monotonic()
    os.killpg(running.process.pid, signal.SIGINT)
    output, _ = running.process.communicate(timeout=30)
    assert running.is_gone_within(5 - (time.monotonic() - begin)), (output, running.processes())
    assert time.monotonic() - begin < 5
    assert running.process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "KeyboardInterrupt" in output
    assert read_report(running.directory)["complete"] is False
    assert [path.name for path in running.temporary.glob("piecewise-*")] == []


def test_killed_session_leaves_the_results_so_far_and_no_process(hanging: Callable[..., Running]) -> None:
    running = hanging("-n0")
    report = read_report(running.directory)
    assert report["complete"] is False
    assert verdicts(report) == {"clean-stand_in-float32": set()}
    text = (running.directory / "out" / "report.json").read_text()
    assert len(running.processes()) >= 4
    running.process.kill()
    running.process.wait()
    assert running.is_gone_within(10), running.processes()
    assert (running.directory / "out" / "report.json").read_text() == text


# Baselines


BASELINES_MODELS = """
from tests.planted.models import model

SAME, WORSE, BETTER, NEW, CORRUPT, WRONG = (
    model(name=name, capture_sizes=(4,)) for name in ("same", "worse", "better", "new", "corrupt", "wrong")
)
"""
NAMES = ("same", "worse", "better", "new", "corrupt")
BASELINES = "".join(case(name, f"counted:{name.upper()}", engine="stand_in") for name in NAMES) + case(
    "wrong", "counted:WRONG", engine="stand_in_wrong"
)
SAME_ONLY = case("same", "counted:SAME", engine="stand_in")


def id_of(name: str) -> str:
    return f"test_{name}[stand_in{'_wrong' if name == 'wrong' else ''}-float32]"


@dataclass
class Stored:
    """A project whose baselines were written, and the session that wrote them."""

    directory: Path
    done: Done

    @property
    def files(self) -> dict[str, Path]:
        return {path.name: path for path in self.directory.glob("baselines/*/*")}

    def path(self, name: str) -> Path:
        return self.files[f"{name}-stand_in-float32.json"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    directory = project(tmp_path_factory.mktemp("stored"), counted=BASELINES_MODELS, test_counts=BASELINES)
    return Stored(directory, run_pytest(directory, *IN_PROCESS, "-v", "--piecewise-update=new"))


def test_update_writes_one_file_per_case_that_passes(stored: Stored) -> None:
    assert outcomes(stored.done) == {id_of(name): "passed" for name in NAMES} | {id_of("wrong"): "failed"}
    assert set(stored.files) == {f"{name}-stand_in-float32.json" for name in NAMES}
    assert "baselines: 5 written, 0 unchanged, of 6 case(s)" in stored.done.stdout
    path = stored.path("same")
    assert f"  {path}" in stored.done.stdout
    assert re.fullmatch(r"cpu-[\w-]+-torch\d+\.\d+", path.parent.name)
    assert '    "piecewise.compiles": {"gate": "exact", "value": 2},\n' in path.read_text()
    assert "FAIL equivalence (piecewise)" in stored.done.stdout


def test_second_update_changes_no_byte(stored: Stored) -> None:
    before = {name: path.read_bytes() for name, path in stored.files.items()}
    done = run_pytest(stored.directory, *IN_PROCESS, "-v", "-k", "same or worse", "--piecewise-update=new")
    assert outcomes(done) == {id_of("same"): "passed", id_of("worse"): "passed"}, done.stdout
    assert "baselines: 0 written, 2 unchanged, of 2 case(s)" in done.stdout
    assert {name: path.read_bytes() for name, path in stored.files.items()} == before


PARTS = "".join(
    case(f"part_{part}", "counted:WORSE", f"piecewise.check_{part}()", engine="stand_in")
    for part in ("equivalence", "structure", "baseline")
)
"""The case whose counts are worse than stored, judged in parts."""


@dataclass
class Edited(Stored):
    """A copy in which each stored file was changed in one way; sessions on it without and with CI."""

    in_ci: Done


@pytest.fixture(scope="module")
def edited(stored: Stored, tmp_path_factory: pytest.TempPathFactory) -> Edited:
    directory = tmp_path_factory.mktemp("edited") / "project"
    shutil.copytree(stored.directory, directory, ignore=shutil.ignore_patterns("__pycache__"))
    copy = Stored(project(directory, test_parts=PARTS), stored.done)

    def edit(name: str, before: str, after: str) -> None:
        text = copy.path(name).read_text()
        assert before in text
        copy.path(name).write_text(text.replace(before, after))

    kernels = '"piecewise.kernels": {"gate": "exact", "value": %d}'
    edit("worse", kernels % 3, kernels % 2)
    edit("better", kernels % 3, kernels % 4)
    edit("corrupt", "{", "<<<<<<< HEAD\n{")
    copy.path("new").unlink()
    arguments = (*IN_PROCESS, "-v", "-rs", "--deselect", f"test_counts.py::{id_of('wrong')}")
    done = run_pytest(directory, *arguments)
    return Edited(directory, done, run_pytest(directory, *arguments, "--piecewise-report=out", CI="true"))


def shown(done: Done, name: str) -> str:
    """What a failing test of a session shows."""
    found = re.search(rf"\n_+ {re.escape(id_of(name))} _+\n(.*?)\nrepeat: ", done.stdout, re.S)
    assert found, done.stdout
    return found[1]


def test_counts_are_judged_against_their_baselines(edited: Edited) -> None:
    done = edited.done
    found = outcomes(done)
    assert {name: found[id_of(name)] for name in NAMES} == {
        "same": "passed",
        "worse": "failed",
        "better": "passed",
        "new": "passed",
        "corrupt": "failed",
    }, done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "FAIL baseline: piecewise.kernels: stored 2, now 3\n" in shown(done, "worse")
    assert "-> if this is intended: pytest --piecewise --piecewise-update=fix --piecewise-reason=" in shown(
        done, "worse"
    )
    corrupt = (
        f"FAIL baseline_file: {edited.path('corrupt')}:1: expected JSON, found Expecting value; restore it from git"
    )
    assert corrupt in shown(done, "corrupt")
    verdict = dict(re.findall(r"(\w+)-stand_in-float32 +piecewise .* (ok|STALE|NEW|FAIL \w+)\n", done.stdout))
    assert verdict == {
        "same": "ok",
        "worse": "FAIL baseline",
        "better": "STALE",
        "new": "NEW",
        "corrupt": "FAIL baseline_file",
    }


def test_baseline_fails_apart_from_the_other_checks(edited: Edited) -> None:
    found = outcomes(edited.done)
    assert {name: found[id_of(f"part_{name}")] for name in ("equivalence", "structure", "baseline")} == {
        "equivalence": "passed",
        "structure": "passed",
        "baseline": "failed",
    }
    assert "FAIL baseline: piecewise.kernels: stored 2, now 3\n" in shown(edited.done, "part_baseline")


def test_missing_baseline_is_red_only_with_ci(edited: Edited) -> None:
    done = edited.in_ci
    assert outcomes(done) == outcomes(edited.done) | {id_of("new"): "failed"}
    assert f"NEW baseline: no baseline {edited.path('worse').parent}/new-stand_in-float32.json" in shown(done, "new")
    assert "-> pytest --piecewise --piecewise-update=new" in shown(done, "new")
    findings = {
        result["case"]["name"]: item["summary"]
        for result in read_report(edited.directory)["results"]
        for item in result["findings"]
        if item["check"] == "baseline"
    }
    assert findings["better"] == "piecewise.kernels: stored 4, now 3"
    assert "new-stand_in-float32.json" not in edited.files  # judged, not written


def test_update_stores_what_has_changed(edited: Edited, stored: Stored, tmp_path: Path) -> None:
    directory = tmp_path / "project"
    shutil.copytree(edited.directory, directory, ignore=shutil.ignore_patterns("__pycache__"))
    update = ("--piecewise-update=new,fix,trim", "--piecewise-reason=because", "test_counts.py")
    done = run_pytest(directory, *IN_PROCESS, "-v", *update)
    # A broken file is never written over: it may hold margins and quarantines that nobody else knows.
    assert outcomes(done) == outcomes(stored.done) | {id_of("corrupt"): "failed"}
    assert "baselines: nothing trimmed, since the session did not pass" in done.stdout
    assert "baselines: 2 written, 2 unchanged, of 6 case(s)" in done.stdout
    assert "    piecewise.kernels: 2 -> 3 (fix)\n" in done.stdout
    updated = Stored(directory, done)
    for name in ("same", "new"):
        assert updated.path(name).read_bytes() == stored.path(name).read_bytes()
    line = '"piecewise.kernels": {"gate": "exact", "value": 3, "reason": "because"}'
    assert line in updated.path("worse").read_text()
    assert updated.path("better").read_bytes() == edited.path("better").read_bytes()


def test_update_is_refused_where_ci_is_set(tmp_path: Path) -> None:
    directory = project(tmp_path, counted=BASELINES_MODELS, test_counts=SAME_ONLY)
    done = run_pytest(directory, "--piecewise", "--piecewise-update=new", CI="true")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert (
        "ERROR: --piecewise-update is refused where CI is set: baselines are reviewed, not written by CI" in done.stderr
    )
    assert not (directory / "baselines").exists()


def test_platform_without_baselines_stays_green_also_in_ci(tmp_path: Path) -> None:
    directory = project(tmp_path, counted=BASELINES_MODELS, test_counts=SAME_ONLY)
    done = run_pytest(directory, *IN_PROCESS, "-v", "--piecewise-report=out", CI="true")
    assert outcomes(done) == {id_of("same"): "passed"}, done.stdout
    assert done.returncode == 0
    result = read_report(directory)["results"][0]
    (finding,) = [item for item in result["findings"] if item["check"] == "baseline"]
    platform = result["platform"]
    assert finding["status"] == "SKIP"
    assert finding["summary"] == (
        f"no baselines for platform {platform} in {directory}/baselines; "
        "to make some: pytest --piecewise --piecewise-update=new"
    )
    assert not (directory / "baselines").exists()


def test_live_line_on_a_terminal_says_what_is_under_way(tmp_path: Path) -> None:
    directory = configure(tmp_path, "tests.planted.engines")
    main, side = pty.openpty()
    process = subprocess.Popen(
        command(directory, "--piecewise", "--piecewise-timeout=3", "--piecewise-model=tests.planted.models:HANG"),
        cwd=directory,
        env=environment(),
        stdout=side,
        stderr=subprocess.DEVNULL,
    )
    os.close(side)
    written = b""
    with suppress(OSError):  # which is how a terminal whose other side has closed ends
        while data := os.read(main, 65536):
            written += data
    os.close(main)
    assert process.wait() == 1
    assert re.search(rb"\rhang-native-float32: eager model, [0-9.]+ s", written), written


def test_build_by_an_engine_that_is_absent_is_skipped_with_its_reason(tmp_path: Path) -> None:
    source = """
from tests.planted.models import CLEAN
def test_absent(piecewise_build):
    piecewise_build(CLEAN, engine="stand_in_absent")
def test_bad(piecewise_build):
    piecewise_build(CLEAN, dtype="float12")
"""
    done = run_pytest(project(tmp_path, test_absent=source), *STAND_IN, "-rs")
    assert "1 failed, 1 skipped" in done.stdout
    assert "expected dtype float32, bfloat16, float16, found 'float12'" in done.stdout
    assert "the engine is on holiday" in done.stdout
