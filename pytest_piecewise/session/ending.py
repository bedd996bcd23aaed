"""What becomes of a session's report: the history, files for readers, and where the CI system shows them, in this order.
Nothing that goes wrong here is a failure of the run: it is a line in the summary."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pytest_piecewise.errors import HistoryError
from pytest_piecewise.history import places
from pytest_piecewise.history.series import CASE, samples
from pytest_piecewise.records import Report, Settings
from pytest_piecewise.reports import document, files, publish

if TYPE_CHECKING:
    from pytest_piecewise.history.store import History

DIRECTORY = ".piecewise"
"""Where a report is written that only the CI system has asked for."""


class Ending:
    """What the options say of it. `given` are the options of the command line, `table` those of pyproject.toml."""

    def __init__(
        self, settings: Settings, rootdir: Path, invoked: Path, given: Mapping[str, Any], table: Mapping[str, Any]
    ) -> None:
        self._unfit = "with --piecewise-isolation=none builds share one process" * (
            settings.isolation == "none"
        ) or "a fault was planted" * bool(settings.fault)
        self._history = places.place_of(given.get("history"), invoked, table.get("history"), rootdir)
        self.system = publish.chosen(given.get("ci") or table.get("ci", "auto"), os.environ)
        directory = settings.report or ("" if self.system == "none" else DIRECTORY)
        self.directory = invoked / directory if directory else None

    def header(self) -> list[str]:
        """What will be missing at the end."""
        reason = places.unavailable(self._history)
        return [f"piecewise: no history is kept: {reason}"] if reason else []

    def usual_seconds(self, cases: Collection[str]) -> dict[str, float]:
        """How long these cases took, in the median of their last runs; those that the history knows."""
        if places.unavailable(self._history) or not places.exists(self._history):
            return {}
        try:
            with places.open_history(self._history) as history:
                wanted = history.traces(lambda series: series.metric == CASE and series.case in cases, last=5)
                return {trace.series.case: median(point.value for point in trace.points) for trace in wanted}
        except HistoryError:
            return {}  # the end of the session will say so

    def write(self, report: Report) -> None:
        """The report as it is by now."""
        if self.directory is not None:
            document.write(report, self.directory)

    def end(self, report: Report) -> Iterator[str]:
        """Does everything, and says what was done. `report` is then the one with its history."""
        self.report = report
        if report.results and not places.unavailable(self._history):
            yield from self._keep(report)
        if self.directory is None:
            return
        self.write(self.report)
        names, reasons = files.write_files(self.report, self.directory)
        yield f"report: {', '.join((str(self.directory / document.NAME), *names))}"
        yield from (f"report: {reason}" for reason in reasons)
        names = [document.NAME, *names]
        published = publish.publish(self.system, self.report, self.directory, names, os.environ)
        yield from (f"{self.system}: {line}" for line in published)

    def _keep(self, report: Report) -> Iterator[str]:
        if self._unfit:
            yield f"history: nothing appended: {self._unfit}"
            return
        if measured := list(samples(report)):
            try:
                with places.open_history(self._history) as history:
                    new = history.append(report.run, measured)
                    yield f"history: {new} measurements appended to {history.shown}"
                    self.report = _with_trends(report, history)
            except HistoryError as error:
                yield f"history: nothing appended: {error}"


def _with_trends(report: Report, history: History) -> Report:
    """With what the history says of it, where the libraries for that are installed. Not after Ctrl-C: importing them takes
    seconds."""
    if not report.complete or not places.has_alerts():
        return report
    from pytest_piecewise.alerts.trends import with_trends  # noqa: PLC0415 - scipy, once there is something to see

    return with_trends(report, history)
