"""Say which measurements of the history have changed for good. Exit code 10: a regression stands, not acknowledged."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_piecewise.errors import HistoryError
from pytest_piecewise.history.places import DEFAULT, has_alerts, open_history
from pytest_piecewise.history.series import Trace
from pytest_piecewise.reports.terminal import clean
from pytest_piecewise.settings import read_table

if TYPE_CHECKING:
    from pytest_piecewise.alerts.grouping import Findings

REGRESSION_STANDS = 10
COMMAND_SECONDS = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to look at, and where to write."""
    parser.add_argument("--history", default=DEFAULT, metavar="URL", help="path or URL; default %(default)s")
    parser.add_argument("--series", default="*", metavar="PATTERN", help="CASE/VARIANT/METRIC with * and ?")
    parser.add_argument("--branch", metavar="NAME", help="runs of this branch only")
    parser.add_argument("--last", type=int, default=250, metavar="N", help="points of a series; default %(default)s")
    parser.add_argument(
        "--acknowledged", type=Path, default=Path("piecewise-alerts.toml"), metavar="FILE",
        help="known regressions with their reasons; default %(default)s",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="a missing series counts as a regression")
    for name, text in (("json", "everything"), ("markdown", "for people"), ("github-issue", "the body of a request"),
                       ("slack", "the body of a message")):  # fmt: skip
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=text)
    parser.add_argument(
        "--notify", nargs=argparse.REMAINDER, metavar="COMMAND",
        help="last: run this when a regression stands, JSON on its input; also alert-command in pyproject.toml",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Looks, writes, notifies."""
    if not has_alerts():
        raise HistoryError("alerts need scipy and ruptures: pip install 'pytest-piecewise[alerts]'")
    from pytest_piecewise.alerts import acknowledged, grouping, rules, texts  # noqa: PLC0415 - scipy

    known = acknowledged.read(arguments.acknowledged)
    with open_history(arguments.history) as history:
        traces = [
            _of_branch(trace, arguments.branch)
            for trace in history.traces(lambda series: fnmatch(series.name, arguments.series), last=arguments.last)
        ]
    findings = grouping.find_alerts(traces, datetime.now(UTC), known)
    for line in texts.terminal_lines(findings):
        sys.stdout.write(line + "\n")
    _write(arguments, findings)
    stands = bool(findings.of(grouping.Kind.REGRESSION))
    if (command := arguments.notify or read_table(Path.cwd()).get("alert-command")) and stands:
        sys.stdout.write(clean(_notify(command, json.dumps(texts.plain(findings)))) + "\n")
    silent = arguments.strict and bool(findings.series(rules.State.MISSING))
    return REGRESSION_STANDS if stands or silent else 0


def _of_branch(trace: Trace, branch: str | None) -> Trace:
    if branch is None:
        return trace
    return Trace(trace.series, tuple(point for point in trace.points if point.run.branch == branch))


def _write(arguments: argparse.Namespace, findings: Findings) -> None:
    from pytest_piecewise.alerts import texts  # noqa: PLC0415 - scipy

    made: dict[str, Callable[[], str]] = {
        "json": lambda: json.dumps(texts.plain(findings), indent=1) + "\n",
        "markdown": lambda: texts.markdown(findings),
        "github_issue": lambda: json.dumps(texts.github_issue(findings)) + "\n",
        "slack": lambda: json.dumps(texts.slack_message(findings)) + "\n",
    }
    for name, make in made.items():
        path: Path | None = getattr(arguments, name)
        if path is not None:
            try:
                path.write_text(make(), encoding="utf-8")
            except OSError as error:
                raise HistoryError(f"{path}: {error.strerror}") from error


def _notify(command: Sequence[str], text: str) -> str:
    """Runs the user's command. That it fails is said, and changes nothing else."""
    try:
        done = subprocess.run(command, input=text.encode(), timeout=COMMAND_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"not notified: {error}"
    return "notified" if not done.returncode else f"not notified: {command[0]} ended with {done.returncode}"
