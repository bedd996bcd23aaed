"""What a session is doing and how much is left: one line on a terminal, plain lines in the log of a CI system."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from pytest_piecewise.records import DTYPES, Case, CaseResult, Status
from pytest_piecewise.reports import terminal
from pytest_piecewise.reports.tables import cut

SILENCE_SECONDS = 60.0
"""In a log there is a line at least this often: some systems end a job that says nothing."""


class LiveLine:
    """Tells of cases as they run. On a terminal one line is overwritten; `system` other than none gets lines in its log and
    its marks for what can be folded; anything else gets nothing."""

    def __init__(self, config: pytest.Config, system: str = "none") -> None:
        self._config, self._system = config, system
        self._length = 0
        self._planned: dict[str, float] = {}
        self._total = self._done = 0
        self._spent = 0.0
        self._said = time.monotonic()
        self._workers = 1

    def plan(self, items: Sequence[pytest.Item], usual_seconds: Callable[[set[str]], Mapping[str, float]]) -> None:
        """What is going to be run. How long it took before is asked for, by the ids of cases, if anybody will see it."""
        cases = [case for item in items if (case := case_of(item)) is not None]
        self._total = len(cases)
        if len(cases) > 1 and (self._on_terminal() or self._in_log()):
            known = usual_seconds({case.id for case in cases})
            self._planned = {case.id: known.get(case.id, 0.0) for case in cases}

    def plan_tests(self, ids: Sequence[str], workers: int) -> None:
        """Under xdist: the ids of all tests, of which ours end with a dtype, and by how many they are run."""
        self._total = sum(name.endswith(tuple(f"-{dtype}]" for dtype in DTYPES)) for name in ids)
        self._workers = max(workers, 1)

    def begin(self, case: Case) -> None:
        """A case is about to be run in this process."""
        if self._in_log():
            mark = {"buildkite": "--- ", "github": "::group::"}[self._system]
            self._log(f"piecewise {self._count(1)}{case.id}{self._left()}", mark)

    def tick(self, case: Case) -> Callable[[str, str, float], None]:
        """The function that the runner tells about progress."""

        def on_tick(variant: str, phase: str, seconds: float) -> None:
            text = f"{case.id}: {variant} {phase}".rstrip() + f", {seconds:.1f} s"
            if self._on_terminal():
                self._write(self._count(1) + text + self._left())
            elif self._in_log() and time.monotonic() - self._said > SILENCE_SECONDS:
                self._log(f"piecewise: {text}")

        return on_tick

    def clear(self) -> None:
        """Leaves the line as it was found."""
        if self._length:
            self._write("")
            self._length = 0

    def done(self, result: CaseResult) -> None:
        """A case has ended, here or in a worker."""
        self._done += 1
        self._spent += result.seconds
        self._planned.pop(result.case.id, None)
        if not self._in_log():
            return
        if self._system == "github" and self._workers == 1:
            self._log("", "::endgroup::")
        if self._system == "buildkite" and self._workers == 1 and result.status is Status.FAIL:
            self._log("", "^^^ +++")
        self._log(f"piecewise {self._count(0)}{result.case.id} {result.status}, {result.seconds:.0f} s{self._left()}")

    def heading(self, results: Sequence[CaseResult]) -> None:
        """The summary follows: in a log that folds, unfolded if it has bad news."""
        failed = any(result.status is Status.FAIL for result in results)
        if self._in_log() and self._system == "buildkite":
            self._log("piecewise", "+++ " if failed else "--- ")

    def _count(self, under_way: int) -> str:
        return f"{min(self._done + under_way, self._total)}/{self._total} " if self._total > 1 else ""

    def _left(self) -> str:
        """How long the rest takes: as the history says, else as long per case as those that are done."""
        rest = self._total - self._done
        known = [seconds for seconds in self._planned.values() if seconds]
        usual = self._spent / self._done if self._done else sum(known) / len(known) if known else 0.0
        if self._total < 2 or rest < 1 or not usual:
            return ""
        return f", about {duration((sum(known) + (rest - len(known)) * usual) / self._workers)} left"

    def _on_terminal(self) -> bool:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        return reporter is not None and bool(reporter.isatty) and not hasattr(self._config, "workerinput")

    def _in_log(self) -> bool:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        here = reporter is not None and not reporter.isatty and not hasattr(self._config, "workerinput")
        return here and self._system in ("buildkite", "github")

    def _log(self, text: str, mark: str = "") -> None:
        """A line behind a mark of the CI system's; a text that looks like one is none."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        self._said = time.monotonic()
        writer = self._config.get_terminal_writer()
        with self._uncaptured():
            if writer.width_of_current_line:  # pytest's dots: marks are such at the beginning of a line only
                writer.line()
            reporter.write_line(mark + terminal.clean(cut(text, terminal.LINE)))

    def _write(self, text: str) -> None:
        if not self._on_terminal():
            return
        writer = self._config.get_terminal_writer()
        text = terminal.clean(text)[: writer.fullwidth - 1]
        with self._uncaptured():
            writer.write("\r" + text.ljust(self._length) + ("\r" if not text else ""), flush=True)
        self._length = len(text)

    def _uncaptured(self) -> AbstractContextManager[None]:
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        context: AbstractContextManager[None] = nullcontext()
        return context if capture is None else capture.global_and_fixture_disabled()


def case_of(item: pytest.Item) -> Case | None:
    """The case that a test runs, if it is one of ours."""
    case = getattr(item, "case", None) or getattr(getattr(item, "callspec", None), "params", {}).get("piecewise")
    return case if isinstance(case, Case) else None


def duration(seconds: float) -> str:
    """`40 s`, `4 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
