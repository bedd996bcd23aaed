"""`pytest-piecewise baselines`: diff, pull, lint, gc, stats, on directories as people and CI leave them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise.baselines.entries import Entry
from pytest_piecewise.baselines.files import Baseline, load, write
from pytest_piecewise.cli import main
from pytest_piecewise.records import Case, CaseResult, Finding, Report, Status, to_plain

PLATFORM = "cpu-avx2-torch2.13"
ONE = Baseline(
    case="one",
    revision="r1",
    source="tests/test_one.py",
    metrics={"full.graphs": Entry(gate="exact", value=1), "full.kernels": Entry(gate="exact", value=4)},
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one good baseline, which is the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").touch()
    write(tmp_path / "baselines" / PLATFORM / "one.json", ONE)
    return tmp_path


def stored(project: Path, name: str = "one", platform: str = PLATFORM) -> Path:
    return project / "baselines" / platform / f"{name}.json"


def changed(**metrics: Entry) -> Baseline:
    """The good baseline with some of its metrics (with `_` for `.`) put in place."""
    return replace(ONE, metrics=ONE.metrics | {name.replace("_", ".", 1): entry for name, entry in metrics.items()})


def do(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[str]:
    """The lines that the command prints."""
    assert main(["baselines", *arguments]) == code
    captured = capsys.readouterr()
    return (captured.out + captured.err).splitlines()


def test_directory_that_is_not_there_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = do(capsys, "--baselines=elsewhere", "lint", code=2)
    assert line.startswith("pytest-piecewise baselines: expected a directory of baselines, found none at ")


# lint


def test_good_directory_has_no_problem(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert do(capsys, "lint") == [f"0 problem(s) in 1 file(s) of {project}/baselines"]


OBSERVED = Entry(gate="observe", value=4, until="2020-01-01", issue="X-1")
NOISY = Entry(gate="ratio", value=0.8, noise=0.1)
QUIET = Entry(gate="ratio", value=0.8, noise=0.08)

FAULTS: list[tuple[str, Baseline, str]] = [
    ("ended quarantine", changed(full_kernels=OBSERVED), ":8: the quarantine of full.kernels has ended on 2020-01-01"),
    ("noise", changed(full_r=NOISY), ":9: the margin of full.r, 25%, is below 3 times its noise of 10.0%; raise it to 0.30"),
    ("name", replace(ONE, case="two"), ": holds case two, a duplicate or a renamed file"),
    ("source", replace(ONE, source="tests/gone.py"), ": its source tests/gone.py is gone"),
]  # fmt: skip


@pytest.mark.parametrize(("baseline", "problem"), [pytest.param(*fault, id=name) for name, *fault in FAULTS])
def test_each_fault_is_named_with_its_line(
    project: Path, capsys: pytest.CaptureFixture[str], baseline: Baseline, problem: str
) -> None:
    write(stored(project), baseline)
    line, last = do(capsys, "lint", code=1)
    assert line.startswith(f"{stored(project)}{problem}")
    assert last == f"1 problem(s) in 1 file(s) of {project}/baselines"


def test_margin_of_three_times_the_noise_is_wide_enough(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(stored(project), changed(full_r=QUIET))
    do(capsys, "lint")


def test_everything_wrong_with_a_directory_is_named_at_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(project, "corrupt").write_text("{")
    (project / "baselines" / "README").touch()
    write(stored(project, platform="my-laptop"), ONE)
    write(stored(project, platform="cpu-avx2-torch2.10"), ONE)
    write(stored(project, platform="cpu-avx2-torch2.11"), ONE)
    *found, last = do(capsys, "lint", code=1)
    assert last.startswith("4 problem(s)")
    text = "\n".join(found)
    for problem in (
        "README: expected PLATFORM/CASE.json and nothing else",
        "my-laptop: expected a platform as DEVICE-PRODUCT-torchX.Y",
        "corrupt.json:1: expected JSON",
        "torch2.10: more than 2 torch minors behind (2, 13)",
    ):
        assert problem in text


def test_text_that_is_not_canonical_is_put_right_on_request(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(project)
    good = path.read_text()
    path.write_text(json.dumps(json.loads(good)))
    assert do(capsys, "lint", code=1)[0].startswith(f"{path}:1: expected the canonical text")
    do(capsys, "lint", "--fix")
    assert path.read_text() == good


# diff


def git(project: Path, *arguments: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *who, *arguments], cwd=project, check=True, capture_output=True)


def test_diff_is_between_the_last_commit_and_the_working_tree(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "x")
    assert do(capsys, "diff") == ["no differences"]
    write(stored(project), changed(full_kernels=Entry(gate="exact", value=5, reason="a | b")))
    write(stored(project, "two"), replace(ONE, case="two"))
    place = f"{PLATFORM}/one"
    assert do(capsys, "diff") == [f"{place}  full.kernels  4  5  +25.0%  a | b", f"{PLATFORM}/two: new, 2 metrics"]
    assert do(capsys, "diff", "--markdown") == [
        "| case | metric | before | now | change | why |",
        "|---|---|---|---|---|---|",
        f"| {place} | full.kernels | 4 | 5 | +25.0% | a \\| b |",
        "",
        f"- {PLATFORM}/two: new, 2 metrics",
    ]
    git(project, "add", ".")
    git(project, "commit", "-qm", "y")
    assert do(capsys, "diff", "HEAD~1", "HEAD") == do(capsys, "diff", "HEAD~1")
    (line,) = do(capsys, "diff", "nowhere", code=2)
    assert "expected a git revision or a directory, found 'nowhere'" in line


def test_diff_of_two_directories_tells_what_is_gone_and_what_is_in_quarantine(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = replace(OBSERVED, until="2999-01-01")
    write(project / "other" / PLATFORM / "one.json", replace(ONE, metrics={"full.kernels": held}))
    place = f"{PLATFORM}/one"
    assert do(capsys, "diff", "baselines", "other") == [
        f"{place}  full.graphs  1  -  gone",
        f"{place}  full.kernels  4  4  +0.0%  exact -> observe; until 2999-01-01, X-1",
    ]


# pull


def propose(project: Path, baseline: Baseline) -> Path:
    """An artefact as CI leaves it, a directory deep."""
    path = project / "artefact" / "proposals" / PLATFORM / f"{baseline.case}.json"
    write(path, baseline)
    (project / "artefact" / "report.json").write_text("{}")
    return path


def test_pull_takes_new_and_better_without_a_reason(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    better = changed(full_kernels=Entry(gate="exact", value=3), full_x=Entry(gate="exact", value=1))
    propose(project, better)
    propose(project, replace(ONE, case="two"))
    lines = do(capsys, "pull", "artefact")
    assert lines[-1] == f"2 of 2 proposal(s) taken over into {project}/baselines"
    assert load(stored(project)) == better
    assert stored(project, "two").exists()
    assert do(capsys, "pull", "artefact")[-1].startswith("0 of 2")


def test_pull_of_what_got_worse_needs_a_reason_and_stores_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    propose(project, changed(full_kernels=Entry(gate="exact", value=5), full_x=Entry(gate="exact", value=1)))
    before = stored(project).read_bytes()
    (line,) = do(capsys, "pull", "artefact", code=2)
    assert "one: full.kernels got worse, 4 -> 5; say why that is right with --reason" in line
    assert stored(project).read_bytes() == before
    do(capsys, "pull", "artefact", "--reason", "the epilogue is apart")
    reasons = {name: entry.reason for name, entry in load(stored(project)).metrics.items()}
    assert reasons == {"full.kernels": "the epilogue is apart", "full.graphs": "", "full.x": ""}


def test_pull_reads_everything_before_it_writes_anything(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    propose(project, changed(full_kernels=Entry(gate="exact", value=3)))
    propose(project, replace(ONE, case="zero")).write_text("{")
    before = stored(project).read_bytes()
    (line,) = do(capsys, "pull", "artefact", code=2)
    assert "zero.json:1: expected JSON" in line
    assert stored(project).read_bytes() == before


def test_artefact_without_proposals_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "artefact").mkdir()
    (line,) = do(capsys, "pull", "artefact", code=2)
    assert "expected proposals as PLATFORM/CASE.json below artefact, found none" in line


# gc


def report(project: Path, status: Status = Status.PASS, **changes: Any) -> str:
    """A report of a session in which `tests/test_one.py` had the case `one-native-float32` alone."""
    result = CaseResult(
        case=Case(model="test_one:ONE", file=str(project / "tests" / "test_one.py"), name="one"),
        seed=0,
        platform=PLATFORM,
        revision="r1",
        graph_kind="",
        findings=(Finding(check="build", status=status, summary="x"),),
        builds=(),
    )
    made = Report(tier="nightly", complete=True, environment={}, results=(result,))
    path = project / "report.json"
    path.write_text(json.dumps(to_plain(replace(made, **changes))))
    return str(path)


@pytest.fixture
def orphan(project: Path) -> Path:
    """A baseline whose source still is, but has no such case any more."""
    stored(project).unlink()
    for name in ("one-native-float32", "old-native-float32"):
        write(stored(project, name), replace(ONE, case=name))
    write(stored(project, "other"), replace(ONE, case="other", source=""))
    return stored(project, "old-native-float32")


def test_full_report_shows_which_cases_are_gone(
    project: Path, orphan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {stored(project, "one-native-float32"), stored(project, "other")}
    lines = do(capsys, "gc", "--report", report(project), "--dry-run")
    assert lines[0] == f"would remove {orphan}: tests/test_one.py has no such case any more"
    assert orphan.exists()
    do(capsys, "gc", "--report", report(project))
    assert set(orphan.parent.iterdir()) == kept


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"left_out": ("-k",)}, "the report is of a session that left tests out: -k"),
        ({"complete": False}, "the report is of a session that left tests out: its end"),
        ({"tier": "fastcheck"}, "the report is of tier fastcheck, which leaves out the cases of higher ones"),
        ({"status": Status.FAIL}, "not all passed: one-native-float32"),
        ({"status": Status.NEW}, "not all passed: one-native-float32"),
    ],
)
def test_report_that_cannot_tell_removes_nothing(
    project: Path, orphan: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], reason: str
) -> None:
    first, last = do(capsys, "gc", "--report", report(project, **changes))
    assert first == f"only files whose source is gone were looked for: {reason}"
    assert last.startswith("0 orphaned")
    assert orphan.exists()


def test_file_whose_source_is_gone_needs_no_report(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "tests" / "test_one.py").unlink()
    lines = do(capsys, "gc")
    assert lines[0] == f"removed {stored(project)}: its source tests/test_one.py is gone"
    assert not stored(project).exists()


# stats


def test_stats_count_by_gate_and_show_quarantine_and_margins(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(stored(project), changed(full_kernels=OBSERVED, full_r=NOISY, full_q=Entry(gate="ratio", value=1.0)))
    assert do(capsys, "stats") == [
        f"{PLATFORM}: 1 cases, 4 metrics (1 exact, 1 observe, 2 ratio), 0 with a reason",
        f"  observed: {PLATFORM}/one full.kernels, X-1, ended",
        f"  ratio: {PLATFORM}/one full.q = 1.0, margin 25%, noise not known; `pytest-piecewise null` measures it",
        f"  ratio: {PLATFORM}/one full.r = 0.8, margin 25%, noise 10.0%",
    ]
