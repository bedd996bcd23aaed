"""Make an HTML page, Markdown and JUnit XML of report.json. The reports of several shards become one."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pytest_piecewise.reports import document, files, publish, terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Reports and what to make of them."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="report.json, or the directory that has it")
    for kind in files.KINDS:
        parser.add_argument(f"--{kind}", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="DIR", help="the merged report.json")
    parser.add_argument(
        "--ci",
        choices=publish.CHOICES,
        default="none",
        help="publish there, all kinds of report made beside the first RUN",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes what was asked for; without an option, prints the table. A report that has failures is no failure here."""
    report = document.merge([document.read(path) for path in arguments.runs])
    wanted = {kind: path for kind in files.KINDS if (path := getattr(arguments, kind))}
    for kind, path in wanted.items():
        files.write_file(report, kind, path)
        _say(f"{kind}: {path}")
    if arguments.json:
        _say(f"json: {document.write(report, arguments.json)}")
    system = publish.chosen(arguments.ci, os.environ)
    if system != "none":
        first: Path = arguments.runs[0]
        directory = first if first.is_dir() else first.parent
        names, reasons = files.write_files(report, directory)
        for line in (*reasons, *publish.publish(system, report, directory, names, os.environ)):
            _say(line)
    if not wanted and not arguments.json and system == "none":
        for line in terminal.summary_table(report.results):
            _say(line)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(terminal.clean(line) + "\n")
