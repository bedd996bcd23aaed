"""A session's report -> the history. What goes wrong here is a line for people and never a failure of the run."""

from __future__ import annotations

from pytest_piecewise.errors import HistoryError
from pytest_piecewise.history.places import OFF, open_history
from pytest_piecewise.history.series import samples
from pytest_piecewise.records import Report


def keep(report: Report, place: str) -> str:
    """Appends what was measured, and says what became of it; empty if there was nothing to append."""
    measured = list(samples(report))
    if place == OFF or not measured:
        return ""
    try:
        with open_history(place) as history:
            new = history.append(report.run, measured)
            return f"{new} measurements appended to {history.shown}"
    except HistoryError as error:
        return f"nothing appended: {error}"
