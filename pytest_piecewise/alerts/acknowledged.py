"""The file in which people say that a regression is known, and why: reviewed like code.

[[acknowledge]]
at = "4fa01c2"                    # the commit, or the run, that the alert names
series = "tiny-*/full/compile*"   # all of them, by default
reason = "the new pass is worth its time, see 412"
until = 2027-01-31                # for ever, by default
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pytest_piecewise.errors import HistoryError

NAME = "piecewise-alerts.toml"
KEYS = {"at": str, "series": str, "reason": str, "until": date}
LEAST_COMMIT = 7
"""Characters of a commit that are enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """One entry of the file."""

    at: str
    reason: str
    series: str = "*"
    until: date | None = None


def read(path: Path) -> list[Acknowledgement]:
    """The entries of a file, none if it is not there."""
    if not path.exists():
        return []
    try:
        data = tomllib.loads(path.read_bytes().decode())
    except (OSError, ValueError) as error:
        raise HistoryError(f"{path}: expected TOML, found {error}") from error
    entries = data.pop("acknowledge", [])
    if data or not isinstance(entries, list):
        raise HistoryError(f"{path}: expected [[acknowledge]] and nothing else, found {', '.join(data) or 'a value'}")
    return [_entry(item, f"{path}: [[acknowledge]] number {number}") for number, item in enumerate(entries, 1)]


def _entry(item: Any, where: str) -> Acknowledgement:
    for key, value in item.items():
        # A time of day is a date, too, to isinstance.
        if key not in KEYS or type(value) is not KEYS[key]:
            raise HistoryError(
                f"{where}: expected at, series, reason as text and until as a date, found {key} = {value!r}"
            )
    if not str(item.get("reason", "")).strip():
        raise HistoryError(f"{where}: expected a reason, found none")
    if len(item.get("at", "")) < LEAST_COMMIT:
        raise HistoryError(
            f"{where}: expected at least {LEAST_COMMIT} characters of a commit, found {item.get('at', '')!r}"
        )
    return Acknowledgement(**item)
