"""Look after stored baselines. diff two of them, pull what CI proposes, lint, gc what is orphaned, stats."""

from __future__ import annotations

import argparse
import datetime
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pytest_piecewise.baselines import files, survey, update
from pytest_piecewise.baselines.files import Baseline
from pytest_piecewise.errors import BaselineError
from pytest_piecewise.records import Report, from_plain
from pytest_piecewise.settings import read_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to do, and on which directory."""
    parser.add_argument("--baselines", metavar="DIR", help="default: as in pyproject.toml, or baselines/")
    actions = parser.add_subparsers(dest="action", required=True)
    diff = actions.add_parser("diff", help="what differs, by default between the last commit and the working tree")
    diff.add_argument("before", nargs="?", default="HEAD", help="a git revision or a directory")
    diff.add_argument("after", nargs="?", help="the same; default: the working tree")
    diff.add_argument("--markdown", action="store_true", help="as the text of a pull request")
    pull = actions.add_parser("pull", help="take the proposals out of a downloaded CI artefact")
    pull.add_argument("artefact", type=Path, help="the directory that --piecewise-update-to wrote, or one above it")
    pull.add_argument("--reason", default="", help="why what got worse is right; needed if something did")
    lint = actions.add_parser("lint", help="what is wrong, with file, line and remedy; 1 if anything is")
    lint.add_argument("--fix", action="store_true", help="write the canonical text where that is all that is wrong")
    gc = actions.add_parser("gc", help="remove files of cases that there are no longer")
    gc.add_argument("--report", type=Path, help="report.json of a full, unfiltered, all-passed nightly run")
    gc.add_argument("--dry-run", action="store_true", help="only say which")
    actions.add_parser("stats", help="what there is, what is in quarantine, margins against noise")


def run(arguments: argparse.Namespace) -> int:
    """Does what was asked."""
    root = Path.cwd()
    directory = root / (arguments.baselines or str(read_table(root).get("baselines", "baselines")))
    if not directory.is_dir():
        raise BaselineError(
            f"expected a directory of baselines, found none at {directory}; to make one: {files.UPDATE}"
        )
    today = datetime.datetime.now(tz=datetime.UTC).date()
    if arguments.action == "diff":
        return _diff(arguments, directory)
    if arguments.action == "pull":
        return _pull(arguments.artefact, directory, arguments.reason.strip())
    if arguments.action == "gc":
        return _gc(arguments, directory, root)
    if arguments.action == "stats":
        _print(survey.statistics(directory, today))
        return 0
    if arguments.fix:
        _canonical(directory)
    found = list(survey.problems(directory, root, today))
    _print([*found, f"{len(found)} problem(s) in {len(survey.files_in(directory))} file(s) of {directory}"])
    return 1 if found else 0


def _print(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _diff(arguments: argparse.Namespace, directory: Path) -> int:
    with _tree(arguments.before, directory) as before, _tree(arguments.after, directory) as after:
        rows = survey.differences(survey.read(before), survey.read(after))
    _print(survey.table(rows, markdown=arguments.markdown) or ["no differences"])
    return 0


@contextmanager
def _tree(name: str | None, directory: Path) -> Iterator[Path]:
    """A directory of baselines: the working tree's, another one, or that of a git revision, put into a temporary place."""
    if name is None or Path(name).is_dir():
        yield Path(name) if name else directory
        return
    command = ["git", "archive", "--format=tar", name, "."]
    done = subprocess.run(command, cwd=directory, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise BaselineError(f"expected a git revision or a directory, found {name!r}: {reason}")
    with tempfile.TemporaryDirectory(prefix="piecewise-baselines-") as place:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(place, filter="data")
        yield Path(place)


def _pull(artefact: Path, directory: Path, reason: str) -> int:
    """Proposals become baselines: read and checked, then written; what got worse takes the reason."""
    proposed = {
        path: files.load(path)
        for path in sorted(artefact.rglob("*.json"))
        if survey.PLATFORM.fullmatch(path.parent.name)
    }
    if not proposed:
        raise BaselineError(
            f"expected proposals as PLATFORM/CASE.json below {artefact}, found none; "
            "name the directory that --piecewise-update-to wrote"
        )
    places = {path: directory / path.parent.name / path.name for path in proposed}
    before = {path: files.load(place) for path, place in places.items() if place.exists()}
    explained = {path: _explained(before.get(path), baseline, reason) for path, baseline in proposed.items()}
    written = [places[path] for path, baseline in explained.items() if files.write(places[path], baseline)]
    old = {f"{path.parent.name}/{path.stem}": baseline for path, baseline in before.items()}
    new = {f"{path.parent.name}/{path.stem}": baseline for path, baseline in explained.items()}
    _print(survey.table(survey.differences(old, new), markdown=False))
    _print([f"{len(written)} of {len(proposed)} proposal(s) taken over into {directory}"])
    return 0


def _explained(before: Baseline | None, proposed: Baseline, reason: str) -> Baseline:
    """The proposal with the reason on every line that is no improvement; without a reason that is refused."""
    if before is None or before.revision != proposed.revision:
        return proposed
    metrics = dict(proposed.metrics)
    for name, entry in proposed.metrics.items():
        old = before.metrics.get(name)
        if old is not None and old.value != entry.value and not update.is_better(name, old, entry.value):
            if not (reason or entry.reason):
                raise BaselineError(
                    f"{proposed.case}: {name} got worse, {old.value} -> {entry.value}; "
                    'say why that is right with --reason "..."'
                )
            metrics[name] = replace(entry, reason=reason or entry.reason)
    return replace(proposed, metrics=metrics)


def _gc(arguments: argparse.Namespace, directory: Path, root: Path) -> int:
    report = from_plain(Report, json.loads(arguments.report.read_text())) if arguments.report else None
    found, refused = survey.orphans(directory, root, report)
    for path, why in found:
        _print([f"{'would remove' if arguments.dry_run else 'removed'} {path}: {why}"])
        if not arguments.dry_run:
            path.unlink()
    _print([f"only files whose source is gone were looked for: {refused}"] if refused else [])
    _print([f"{len(found)} orphaned file(s) in {directory}"])
    return 0


def _canonical(directory: Path) -> None:
    for path in survey.files_in(directory):
        try:
            files.write(path, files.load(path))
        except BaselineError:
            continue  # which the lint will name
