"""What becomes of a session's report: history, files, and publishing, none of which can fail a run."""

from __future__ import annotations

import dataclasses
import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_piecewise.history import places
from pytest_piecewise.records import Settings, Status
from pytest_piecewise.reports import document, publish
from pytest_piecewise.session.ending import Ending
from tests.reported import report, result
from tests.running import ROOT, configure, run_pytest

SESSION = ("-p", "tests.stand_in", "--piecewise", "--piecewise-model", "tests.planted.models:CLEAN",
           "--piecewise-engine=stand_in", "--piecewise-dtype=float32")  # fmt: skip


def project(directory: Path) -> Path:
    return configure(directory, "tests.stand_in")


def points(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute("SELECT count(*) FROM piecewise_points").fetchone()[0])


def test_every_run_is_appended_without_any_set_up(tmp_path: Path) -> None:
    directory = project(tmp_path)
    for number in (1, 2):
        done = run_pytest(directory, *SESSION, "--junitxml=own.xml")
        assert done.returncode == 0, done.stdout
        new = points(tmp_path / ".piecewise" / "history.db")
        assert f"history: {new // number} measurements appended to " in done.stdout
        assert new == number * (new // number) > 0
    assert (tmp_path / ".piecewise" / ".gitignore").read_text() == "*\n"
    properties = {
        item.get("name"): item.get("value") for item in ElementTree.parse(tmp_path / "own.xml").iter("property")
    }
    assert (properties["piecewise.verdict"], properties["piecewise.full.kernels"]) == ("PASS", "3")
    assert sorted(path.name for path in (tmp_path / ".piecewise").iterdir()) == [".gitignore", "history.db"]


def ended(directory: Path, **given: str) -> list[str]:
    """What is said at the end of a session in `directory` with these options."""
    settings = Settings(report=given.pop("report", ""), isolation=given.pop("isolation", "process"))
    return list(Ending(settings, directory, directory, given, {}).end(report(result("tiny"))))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"history": "mysql://host/x"}, "history: nothing appended: expected a history in sqlite or postgresql"),
        ({"history": "text"}, "history: nothing appended: history .*text cannot be used: file is not a database"),
        ({"history": "postgresql://u:secret@127.0.0.1:9/x"}, r"nothing appended: history .*\*\*\*@127"),
        ({"isolation": "none"}, "history: nothing appended: with --piecewise-isolation=none"),
    ],
)
def test_history_that_cannot_be_written_is_a_line(tmp_path: Path, given: dict[str, str], said: str) -> None:
    (tmp_path / "text").write_text("no database" * 500)
    (line,) = ended(tmp_path, **given)
    assert re.search(said, line), line
    assert "secret" not in line
    assert not (tmp_path / ".piecewise").exists()


@pytest.mark.parametrize("complete", [True, False])
def test_what_takes_seconds_to_import_is_left_out_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("pytest_piecewise.history.places.has_alerts", lambda: bool(asked.append(True)))
    shown = dataclasses.replace(report(result("tiny")), complete=complete)
    (line,) = Ending(Settings(), tmp_path, tmp_path, {}, {}).end(shown)
    assert "measurements appended" in line
    assert bool(asked) is complete


def test_history_that_is_not_wanted_is_not_kept(tmp_path: Path) -> None:
    assert ended(tmp_path, history="none") == []
    assert not (tmp_path / ".piecewise").exists()


def test_history_of_the_project_and_of_the_command_line_are_where_they_are_said_to_be(tmp_path: Path) -> None:
    root, here = tmp_path / "root", tmp_path / "here"
    assert places.place_of(None, here, None, root) == str(root / ".piecewise/history.db")
    assert places.place_of(None, here, "kept.db", root) == str(root / "kept.db")
    assert places.place_of("kept.db", here, "other.db", root) == str(here / "kept.db")
    assert places.place_of("postgresql://h/n", here, None, root) == "postgresql://h/n"
    assert places.place_of("none", here, "kept.db", root) == "none"


def test_without_its_library_there_is_a_line_in_the_header(tmp_path: Path) -> None:
    directory = project(tmp_path)
    (directory / "absent.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'sqlalchemy' else find(name, *more)\n"
    )
    done = run_pytest(directory, "-p", "absent", *SESSION, PYTHONPATH=f"{directory}:{ROOT}")
    assert done.returncode == 0, done.stdout
    assert "piecewise: no history is kept: needs SQLAlchemy: pip install 'pytest-piecewise[history]'" in done.stdout
    assert not (tmp_path / ".piecewise").exists()


# Files and publishing


AGENT = """#!{python}
import json, pathlib, sys
text = sys.stdin.read()
with open(pathlib.Path(__file__).with_name("calls.jsonl"), "a") as file:
    file.write(json.dumps([sys.argv[1:], text]) + "\\n")
sys.stderr.write("the agent says why\\n")
sys.exit({code})
"""


def agent(directory: Path, code: int = 0) -> Path:
    """A buildkite-agent that writes down what it was asked."""
    directory.mkdir()
    program = directory / "buildkite-agent"
    program.write_text(AGENT.format(python=sys.executable, code=code))
    program.chmod(0o755)
    return program.parent


def calls(directory: Path) -> list[tuple[list[str], str]]:
    return [
        (arguments, text) for arguments, text in map(json.loads, (directory / "calls.jsonl").read_text().splitlines())
    ]


def test_report_directory_has_all_kinds(tmp_path: Path) -> None:
    names = ["report.json", "report.html", "report.md", "junit.xml"]
    (line,) = ended(tmp_path, report="out", history="none", ci="none")
    assert line == f"report: {tmp_path / 'out'}/{', '.join(names)}"
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(names)


def test_failing_session_tells_buildkite_and_keeps_its_exit_code(tmp_path: Path) -> None:
    folder = agent(tmp_path / "bin", 7)
    environ = {"BUILDKITE": "true", "PATH": f"{folder}:/usr/bin:/bin"}
    done = run_pytest(project(tmp_path), *SESSION, "--piecewise-engine=stand_in_wrong", **environ)
    assert done.returncode == 1, done.stdout
    (annotate, text), (upload, _) = calls(folder)
    assert annotate == ["annotate", "--style", "error", "--context", "piecewise"]
    assert text.startswith("## piecewise: 1 failed\n")
    assert "[the whole report](artifact://report.html)" in text
    assert upload == ["artifact", "upload", "report.json;report.html;report.md;junit.xml"]
    assert "buildkite: annotation not published: buildkite-agent ended with 7: the agent says why" in done.stdout


def test_buildkite_has_a_context_per_step_and_shard(tmp_path: Path) -> None:
    folder = agent(tmp_path / "bin")
    environ = {"PATH": str(folder), "BUILDKITE_STEP_KEY": "fast", "BUILDKITE_PARALLEL_JOB": "3"}
    assert publish.publish("buildkite", report(result("tiny")), tmp_path, ["a", "b"], environ) == [
        "annotation published",
        "2 artifacts published",
    ]
    assert calls(folder)[0][0] == ["annotate", "--style", "success", "--context", "piecewise/fast/3"]


def test_buildkite_without_an_agent_is_normal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDKITE", "true")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    *_, line = ended(tmp_path, history="none")
    assert line == f"buildkite: nothing published: no buildkite-agent here; the files are in {tmp_path / '.piecewise'}"
    assert (tmp_path / ".piecewise" / "report.html").exists()
    assert ended(tmp_path, history="none", ci="none") == []


def test_github_gets_a_summary_after_those_that_are_there(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n")
    environ = {"GITHUB_STEP_SUMMARY": str(summary)}
    assert publish.publish("github", report(result("tiny")), tmp_path, [], environ) == ["summary published"]
    assert summary.read_text().startswith("# before\n## piecewise: 1 passed\n")


def test_github_summary_never_grows_beyond_the_limit(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("x" * (1024 * 1024 - 5000))
    many = report(*(result(f"case{index}", broken=True) for index in range(100)))
    environ = {"GITHUB_STEP_SUMMARY": str(summary)}
    assert publish.publish("github", many, tmp_path, [], environ) == ["summary published"]
    assert summary.stat().st_size <= 1024 * 1024
    assert "further part(s) did not fit" in summary.read_text()
    (tmp_path / "full.md").write_text("x" * 1024 * 1024)
    assert publish.publish("github", many, tmp_path, [], {"GITHUB_STEP_SUMMARY": str(tmp_path / "full.md")}) == [
        "summary not published: the summaries of this step are full"
    ]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "summary not published: GITHUB_STEP_SUMMARY names no file"),
        ({"GITHUB_STEP_SUMMARY": "/nowhere/summary.md"}, "summary not published: "),
    ],
)
def test_github_without_a_summary_is_a_line(tmp_path: Path, environ: dict[str, str], said: str) -> None:
    (line,) = publish.publish("github", report(result("tiny")), tmp_path, [], environ)
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("asked", "environ", "system"),
    [
        ("auto", {"BUILDKITE": "true"}, "buildkite"),
        ("auto", {"GITHUB_ACTIONS": "true"}, "github"),
        ("auto", {"CI": "true"}, "none"),
        ("none", {"BUILDKITE": "true"}, "none"),
        ("github", {"BUILDKITE": "true"}, "github"),
    ],
)
def test_system_is_the_one_asked_for_or_the_one_around(asked: str, environ: dict[str, str], system: str) -> None:
    assert publish.chosen(asked, environ) == system


def test_shards_are_published_as_one_by_the_command(tmp_path: Path) -> None:
    folder = agent(tmp_path / "bin")
    for name in ("a", "b"):
        document.write(report(result(name, broken=name == "b")), tmp_path / name)
    command = [sys.executable, "-m", "pytest_piecewise.cli", "report", "a", "b", "--ci=buildkite"]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": str(folder), "PYTHONPATH": ":".join(sys.path)}, check=True,
                          capture_output=True, text=True)  # fmt: skip
    assert done.stdout == "annotation published\n3 artifacts published\n"
    assert calls(folder)[0][1].startswith("## piecewise: 1 failed, 1 passed\n")
    assert [item.status for item in document.read(tmp_path / "a").results] == [Status.PASS]
