"""What a session says while it runs: on a terminal, in the log of a CI system, and nowhere else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise.history.series import samples
from pytest_piecewise.history.store import History
from pytest_piecewise.records import Case, Settings
from pytest_piecewise.session.ending import Ending
from pytest_piecewise.session.live import LiveLine, duration
from tests.nights import night
from tests.reported import HOSTILE, report, result
from tests.running import configure, run_pytest

CASES = [Case(model=f"m:{name}", name=name) for name in ("a", "b", "c", "d")]
IDS = [case.id for case in CASES]


class Screen:
    """A pytest session's output, as far as the live line knows it."""

    fullwidth, width_of_current_line = 200, 0

    def __init__(self, *, terminal: bool, worker: bool = False) -> None:
        self.isatty, self.written, self.lines = terminal, "", []
        self.pluginmanager = self
        if worker:
            self.workerinput = {}

    def get_plugin(self, name: str) -> Any:
        return self if name == "terminalreporter" else None

    def get_terminal_writer(self) -> Any:
        return self

    def write(self, text: str, flush: bool) -> None:
        self.written += text

    def write_line(self, line: str) -> None:
        self.lines.append(line)


class Item:
    def __init__(self, case: Case) -> None:
        self.case = case


def live(screen: Screen, system: str = "none", **seconds: float) -> LiveLine:
    line = LiveLine(screen, system)  # type: ignore[arg-type]
    usual = {f"{name}-native-float32": value for name, value in seconds.items()}
    line.plan([Item(case) for case in CASES], lambda ids: {key: usual[key] for key in ids if key in usual})  # type: ignore[misc]
    return line


def ended(name: str, seconds: float, *, broken: bool = False) -> Any:
    return replace(result(name, broken=broken), seconds=seconds)


def test_terminal_shows_case_phase_and_what_is_left_as_the_history_has_it() -> None:
    screen = Screen(terminal=True)
    line = live(screen, a=10, b=20, c=30, d=40)
    line.tick(CASES[0])("full", "compile", 1.23)
    assert screen.written == "\r1/4 a-native-float32: full compile, 1.2 s, about 2 min left"
    line.clear()
    line.done(ended("a", 12))
    line.tick(CASES[1])("full", "compile", 1.23)
    assert screen.written.endswith("\r2/4 b-native-float32: full compile, 1.2 s, about 2 min left")
    assert screen.lines == []


def test_what_the_history_does_not_know_takes_as_long_as_what_is_done() -> None:
    screen = Screen(terminal=True)
    line = live(screen, c=1000)
    line.done(ended("a", 60))
    line.tick(CASES[1])("", "", 0)
    assert "about 19 min left" in screen.written  # 1000 s, and two cases of a minute
    assert "left" not in first_tick(live(Screen(terminal=True)))


def first_tick(line: LiveLine) -> str:
    line.tick(CASES[0])("full", "compile", 0)
    screen: Any = line._config
    return str(screen.written)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (89, "89 s"), (90, "2 min"), (3000, "50 min"), (9000, "2.5 h")]
)
def test_durations_are_told_roughly(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_buildkite_has_a_group_per_case_which_a_failure_unfolds() -> None:
    screen = Screen(terminal=False)
    line = live(screen, "buildkite", a=60, b=60, c=60, d=60)
    for name, broken in (("a", False), ("b", True)):
        line.begin(next(case for case in CASES if case.name == name))
        line.done(ended(name, 60, broken=broken))
    line.heading([ended("b", 1, broken=True)])
    line.heading([ended("a", 1)])
    assert screen.lines == [
        "--- piecewise 1/4 a-native-float32, about 4 min left",
        "piecewise 1/4 a-native-float32 PASS, 60 s, about 3 min left",
        "--- piecewise 2/4 b-native-float32, about 3 min left",
        "^^^ +++",
        "piecewise 2/4 b-native-float32 FAIL, 60 s, about 2 min left",
        "+++ piecewise",
        "--- piecewise",
    ]
    assert screen.written == ""


def test_github_has_groups_that_end() -> None:
    screen = Screen(terminal=False)
    line = live(screen, "github")
    line.begin(CASES[0])
    line.done(ended("a", 5))
    assert screen.lines == [
        "::group::piecewise 1/4 a-native-float32",
        "::endgroup::",
        "piecewise 1/4 a-native-float32 PASS, 5 s, about 15 s left",
    ]


def test_log_is_never_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("pytest_piecewise.session.live.time.monotonic", lambda: now[0])
    screen = Screen(terminal=False)
    tick = live(screen, "buildkite").tick(CASES[0])
    for second in range(150):
        now[0] = float(second)
        tick("full", "compile", second)
    assert screen.lines == [
        "piecewise: a-native-float32: full compile, 61.0 s",
        "piecewise: a-native-float32: full compile, 122.0 s",
    ]


@pytest.mark.parametrize(
    ("screen", "system"),
    [
        (Screen(terminal=False), "none"),
        (Screen(terminal=True, worker=True), "none"),
        (Screen(terminal=False, worker=True), "buildkite"),
    ],
    ids=["a file", "a worker", "a worker in CI"],
)
def test_anything_else_is_left_alone(screen: Screen, system: str) -> None:
    line = live(screen, system, a=5)
    line.begin(CASES[0])
    line.tick(CASES[0])("full", "compile", 100)
    line.done(ended("a", 5))
    line.heading([])
    line.clear()
    assert (screen.written, screen.lines) == ("", [])


def test_workers_share_what_is_left() -> None:
    screen = Screen(terminal=False)
    line = LiveLine(screen, "buildkite")  # type: ignore[arg-type]
    line.plan_tests(
        [
            "test_a.py::test_a[native-float32]",
            "test_b.py::test_other",
            *(f"t[native-bfloat16-{n}-float32]" for n in range(8)),
        ],
        2,
    )
    line.done(ended("a", 60))
    assert screen.lines == ["piecewise 1/9 a-native-float32 PASS, 60 s, about 4 min left"]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_are_no_marks(text: str) -> None:
    screen = Screen(terminal=False)
    line = live(screen, "github")
    line.begin(replace(CASES[0], name=text))
    line.done(replace(result("a"), case=replace(CASES[0], name=text)))
    assert all(shown.isprintable() and len(shown) < 2200 for shown in screen.lines)
    assert [shown for shown in screen.lines if shown.startswith(("::", "##["))] == [screen.lines[0], "::endgroup::"]


def test_usual_seconds_are_the_median_of_the_last_runs_in_the_history(tmp_path: Path) -> None:
    ending = Ending(Settings(), tmp_path, tmp_path, {}, {})
    assert ending.usual_seconds(["tiny-native-float32"]) == {}
    assert not (tmp_path / ".piecewise").exists()
    with History(str(tmp_path / ".piecewise/history.db")) as history:
        for number, seconds in enumerate((90, 90, 5, 10, 20, 30, 40)):
            shown = report(replace(result("tiny"), seconds=seconds), replace(result("other"), seconds=1))
            history.append(night(number), samples(shown))
    assert ending.usual_seconds(["tiny-native-float32", "unknown"]) == {"tiny-native-float32": 20}


def test_history_that_cannot_be_read_gives_no_estimate_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 500)
    assert Ending(Settings(), tmp_path, tmp_path, {"history": "text"}, {}).usual_seconds(["a"]) == {}


def test_session_in_buildkite_has_its_marks(tmp_path: Path) -> None:
    directory = configure(tmp_path, "tests.stand_in")
    models = [f"--piecewise-model=tests.planted.models:{name}" for name in ("CLEAN", "ZERO_WEIGHTS")]
    options = ("-p", "tests.stand_in", "--piecewise", "--piecewise-engine=stand_in", "--piecewise-dtype=float32")
    environ = {"BUILDKITE": "true", "PATH": "/usr/bin:/bin", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    done = run_pytest(directory, *options, *models, **environ)
    assert re.search(r"(?m)^--- piecewise 1/2 clean-stand_in-float32$", done.stdout), done.stdout
    assert re.search(r"(?m)^piecewise 1/2 clean-stand_in-float32 PASS, \d+ s, about \d+ (s|min) left$", done.stdout)
    assert re.search(r"(?m)^\^\^\^ \+\+\+$", done.stdout)
    assert re.search(r"(?m)^\+\+\+ piecewise$", done.stdout)
