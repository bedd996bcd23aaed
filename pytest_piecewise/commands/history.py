"""Append reports to a history of measurements, list it, and exchange it as JSON Lines, CSV or pytest-benchmark JSON."""

from __future__ import annotations

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path

from pytest_piecewise.history.places import DEFAULT, open_history
from pytest_piecewise.reports import document, terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The actions and what they take."""
    actions = parser.add_subparsers(dest="action", required=True)
    add = actions.add_parser("add", help="append the measurements of reports; what is there already is left as it is")
    add.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="report.json, or the directory that has it")
    listing = actions.add_parser("list", help="the series, with the number of points and the newest value")
    out = actions.add_parser("export", help="write the history to a file, or for pytest-benchmark to a directory")
    take = actions.add_parser("import", help="append what a file has")
    take.add_argument("files", nargs="+", type=Path, metavar="FILE")
    out.add_argument("file", type=Path, metavar="FILE")
    for action in (out, take):
        action.add_argument(
            "--format", choices=("jsonl", "csv", "pytest-benchmark"), help="default: by the file's name"
        )
    for action in (listing, out):
        action.add_argument("--series", default="*", metavar="PATTERN", help="CASE/VARIANT/METRIC with * and ?")
    for action in (add, listing, out, take):
        action.add_argument("--history", default=DEFAULT, metavar="URL", help="path or URL; default %(default)s")


def run(arguments: argparse.Namespace) -> int:
    """Does the action."""
    return {"add": _add, "list": _list, "export": _export, "import": _import}[arguments.action](arguments)


def _add(arguments: argparse.Namespace) -> int:
    from pytest_piecewise.history.series import samples  # noqa: PLC0415 - commands that need no database load none

    reports = [document.read(path) for path in arguments.runs]
    with open_history(arguments.history) as history:
        for path, report in zip(arguments.runs, reports, strict=True):
            measured = list(samples(report))
            _say(f"{path}: {history.append(report.run, measured)} of {len(measured)} measurements appended")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    with open_history(arguments.history) as history:
        for trace in history.traces(lambda series: fnmatch(series.name, arguments.series)):
            newest = trace.points[-1]
            words = (trace.series.name, trace.series.kind, f"{len(trace.points)} point(s)", f"{newest.value:.6g}")
            _say("  ".join((*words, newest.run.started, dict(trace.series.environment).get("torch", ""))).rstrip())
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from pytest_piecewise.history import exchange  # noqa: PLC0415

    with open_history(arguments.history) as history:
        traces = history.traces(lambda series: fnmatch(series.name, arguments.series))
        measured = exchange.by_run(traces)
    exchange.WRITERS[arguments.format or exchange.format_of(arguments.file)](measured, arguments.file)
    _say(f"{arguments.file}: {len(measured)} run(s), {sum(len(item.samples) for item in measured)} measurements")
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from pytest_piecewise.history import exchange  # noqa: PLC0415

    with open_history(arguments.history) as history:
        for path in arguments.files:
            runs = new = total = skipped = 0
            for item in exchange.READERS[arguments.format or exchange.format_of(path)](path):
                new += history.append(item.run, item.samples)
                runs, total, skipped = runs + 1, total + len(item.samples), skipped + item.skipped
            _say(f"{path}: {runs} run(s), {new} of {total} measurements appended, {skipped} without a number left out")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(terminal.clean(line) + "\n")
