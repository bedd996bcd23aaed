"""Where the history lies, and opening it where the libraries for it are installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_piecewise.errors import HistoryError

if TYPE_CHECKING:
    from pytest_piecewise.history.store import History

DEFAULT = ".piecewise/history.db"
OFF = "none"
INSTALL = "pip install 'pytest-piecewise[history]'"


def is_installed() -> bool:
    """Whether a history can be kept here. Costs no import."""
    return importlib.util.find_spec("sqlalchemy") is not None


def has_alerts() -> bool:
    """Whether steps can be looked for here."""
    return all(importlib.util.find_spec(name) is not None for name in ("scipy", "ruptures"))


def place_of(option: str | None, directory: Path, stored: str | None, rootdir: Path) -> str:
    """Where a session's history lies: as the option says, relative to `directory`, else as pyproject.toml does, relative to
    `rootdir`. An address is left as it is."""
    where, base = (option, directory) if option else (stored or DEFAULT, rootdir)
    return where if where == OFF or "://" in where else str(base / where)


def exists(place: str) -> bool:
    """Whether there is anything to read; of a server that is taken for granted."""
    return place.startswith("postgres") or Path(place.removeprefix("sqlite:///")).exists()


def unavailable(place: str) -> str:
    """Why no history is kept, or empty."""
    if place == OFF:
        return "not asked for"
    return "" if is_installed() else f"needs SQLAlchemy: {INSTALL}"


def open_history(place: str) -> History:
    """The history at a path or URL, made if it is not there."""
    if not is_installed():
        raise HistoryError(f"a history needs SQLAlchemy: {INSTALL}")
    from pytest_piecewise.history.store import History  # noqa: PLC0415 - SQLAlchemy, where it is needed

    return History(place)
