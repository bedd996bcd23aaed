"""Say where the failures of a case in a report begin, later or on another machine; writes and runs the script, too."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from pytest_piecewise import hooks
from pytest_piecewise.errors import PiecewiseError
from pytest_piecewise.records import LOCALIZE, Case, CaseResult, Report, from_plain
from pytest_piecewise.reports.located import localization_lines
from pytest_piecewise.runner import localize_result
from pytest_piecewise.settings import make_settings, read_table
from pytest_piecewise.workers import Children


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The report and the case, and how closely to look."""
    parser.add_argument("report", type=Path, help="report.json, or the directory that holds it")
    parser.add_argument("case", help="the case's id, such as tiny-llama-native-float32")
    parser.add_argument("--to", choices=LOCALIZE[:2], default=LOCALIZE[0], help="the op (default), or the piece alone")
    parser.add_argument("--device", default="", help="instead of the report's: cpu, cuda or cuda:INDEX")
    parser.add_argument("--repro", type=Path, help="where scripts go; default: repro/ beside the report")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds per variant")


def run(arguments: argparse.Namespace) -> int:
    """0 if every failure has its place or there was none to follow, 1 if one has not."""
    path = arguments.report / "report.json" if arguments.report.is_dir() else arguments.report
    result, root = chosen(path, arguments.case), Path.cwd()
    case = found_here(result.case, root)
    result = dataclasses.replace(result, case=dataclasses.replace(case, device=arguments.device or case.device))
    options = {"seed": result.seed, "localize": arguments.to, "timeout": arguments.timeout}
    settings = dataclasses.replace(
        make_settings(root, read_table(root), options),  # which also brings in the plugins of the project
        repro=str((arguments.repro or path.parent / "repro").resolve()),
    )
    sys.path.insert(0, str(root))  # where pytest was started, and models were found
    children = Children(tuple(getattr(hooks.find_engine(result.case.engine), "preload", ())))
    try:
        found = localize_result(result, settings, children)
    finally:
        children.close()
    for item in found:
        sys.stdout.writelines(f"{line}\n" for line in localization_lines(item))
    if not found:
        sys.stdout.write(f"{result.case.id}: no failed comparison that has a place\n")
    return int(any(item.cause in ("not_seen", "unavailable") for item in found))


def found_here(case: Case, root: Path) -> Case:
    """The case with its model's file as it lies here, below `root`: a report of another machine names it as it lay there."""
    file = Path(case.file)
    if not case.file or file.exists():
        return case
    below = (root.joinpath(*file.parts[start:]) for start in range(1, len(file.parts)))
    here = next((path for path in below if path.exists()), None)
    if here is None:
        raise PiecewiseError(
            f"expected the model's file {file}, or the same path below {root}, found neither; "
            "go to the directory in which pytest was run"
        )
    return dataclasses.replace(case, file=str(here))


def chosen(path: Path, case: str) -> CaseResult:
    """The result of a case in a report; an unknown one is an error that shows those with failures first."""
    try:
        report = from_plain(Report, json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PiecewiseError(f"expected a report at {path}, found {type(error).__name__}: {error}") from error
    known = {result.case.id: result for result in report.results}
    if case not in known:
        names = ", ".join(sorted(known, key=lambda name: (known[name].status != "FAIL", name))) or "none"
        raise PiecewiseError(f"expected a case of {path}, found {case!r}; it has {names}")
    return known[case]
