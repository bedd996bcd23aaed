"""A report as files, one per kind of reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_piecewise.errors import ReportError
from pytest_piecewise.records import Report
from pytest_piecewise.reports import html, junit, markdown

KINDS: Mapping[str, tuple[str, Callable[[Report], str]]] = {
    "html": ("report.html", html.render),
    "markdown": ("report.md", markdown.render),
    "junit": ("junit.xml", junit.render),
}
"""The usual name of each kind, and what renders it."""


def write_file(report: Report, kind: str, path: Path) -> None:
    """Writes one kind of report, whole or not at all."""
    text = KINDS[kind][1](report)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(path)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error


def write_files(report: Report, directory: Path) -> tuple[list[str], list[str]]:
    """Writes every kind into `directory`. Returns the names of the files, and reasons why some are not there."""
    names, reasons = [], []
    for kind, (name, _) in KINDS.items():
        try:
            write_file(report, kind, directory / name)
            names.append(name)
        except ReportError as error:
            reasons.append(str(error))
    return names, reasons
