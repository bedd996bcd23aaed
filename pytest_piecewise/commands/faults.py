"""Print the catalogue of planted faults: kind, name, what goes wrong, the report it models, the checks that catch it; or,
of canary runs, which check caught which."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_piecewise.errors import PiecewiseError
from pytest_piecewise.faults import FAULTS, KINDS, Fault
from pytest_piecewise.records import CaseResult, Report, from_plain

COLUMNS = ("kind", "fault", "what goes wrong", "report", "caught by", "for")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--markdown`, `--kind` and `--matrix`."""
    parser.add_argument("--markdown", action="store_true", help="as a Markdown table")
    parser.add_argument("--matrix", nargs="+", type=Path, metavar="REPORT", help="report.json files of canary runs")
    parser.add_argument("--kind", choices=KINDS, help="only those of one kind")


def run(arguments: argparse.Namespace) -> int:
    """Prints the catalogue."""
    chosen = [item for item in FAULTS.values() if arguments.kind in (None, item.kind)]
    if arguments.matrix:
        lines = matrix(chosen, read_results(arguments.matrix))
    else:
        lines = markdown(chosen) if arguments.markdown else text(chosen)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def text(faults: Iterable[Fault]) -> Iterator[str]:
    """Three lines per fault."""
    for item in faults:
        yield f"{item.kind}  {item.name}  ({item.report}; {_for(item)})"
        yield f"    {item.summary}"
        yield f"    caught by {' or '.join(item.caught_by)}"


def markdown(faults: Iterable[Fault]) -> Iterator[str]:
    """The same as a table."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for item in faults:
        cells = (item.kind, f"`{item.name}`", item.summary, item.report, ", ".join(item.caught_by), _for(item))
        yield f"| {' | '.join(cells)} |"


def read_results(paths: Iterable[Path]) -> list[CaseResult]:
    """The cases of reports in which faults were planted."""
    found = []
    for path in paths:
        try:
            report = from_plain(Report, json.loads(path.read_text()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PiecewiseError(f"expected the report.json of a canary run, found {path}: {error}") from error
        found += [result for result in report.results if result.canary]
    if not found:
        raise PiecewiseError(
            "expected cases with planted faults in the reports, found none; run with --piecewise-canary"
        )
    return found


def matrix(faults: Iterable[Fault], results: Sequence[CaseResult]) -> Iterator[str]:
    """A row per fault: in how many cases it was caught and by which checks, missed, without effect, and not applicable."""
    yield "| kind | fault | caught by | missed in | no effect | does not apply |"
    yield "|---|---|---|---|--:|--:|"
    for item in faults:
        trials = [(result, trial) for result in results for trial in result.canary if trial.fault == item.name]
        by = Counter(check.partition(" ")[0] for _, t in trials if t.outcome == "caught" for check in t.checks)
        caught = sum(trial.outcome == "caught" for _, trial in trials)
        missed = [f"{r.case.name} {r.case.dtype}" for r, trial in trials if trial.outcome == "missed"]
        checks = ", ".join(check if number == caught else f"{check} {number}" for check, number in by.most_common())
        others = [sum(trial.outcome == outcome for _, trial in trials) for outcome in ("not planted", "not applicable")]
        said = f"{caught} of {caught + len(missed)}: {checks}" if checks else ""
        yield f"| {item.kind} | `{item.name}` | {said} | {', '.join(missed)} | {others[0] or ''} | {others[1] or ''} |"


def _for(item: Fault) -> str:
    place = "" if len(item.devices) > 1 else f" on {item.devices[0]}"
    return f"{', '.join(item.variants)} of {', '.join(item.engines)}{place}"
