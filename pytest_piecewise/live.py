"""The line on a terminal that says which build is in which phase, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from pytest_piecewise.records import Case
from pytest_piecewise.reports import terminal


class LiveLine:
    """One line on a terminal that is overwritten while a build runs; nothing anywhere else."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._length = 0

    def tick(self, case: Case) -> Callable[[str, str, float], None]:
        """The function that the runner tells about progress."""

        def on_tick(variant: str, phase: str, seconds: float) -> None:
            text = f"{case.id}: {variant} {phase}".rstrip() + f", {seconds:.1f} s"
            self._write(text)

        return on_tick

    def clear(self) -> None:
        """Leaves the line as it was found."""
        if self._length:
            self._write("")
            self._length = 0

    def _write(self, text: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or not reporter.isatty or hasattr(self._config, "workerinput"):
            return
        writer = self._config.get_terminal_writer()
        text = terminal.clean(text)[: writer.fullwidth - 1]
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
            writer.write("\r" + text.ljust(self._length) + ("\r" if not text else ""), flush=True)
        self._length = len(text)
