"""Generate, lint and run the CI pipeline of .buildkite. Needs the extra `ci`; docs/ci.md says how it hangs together."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_piecewise.ci.local import Build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One parser for each action."""
    parser.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="the repository; default: here")
    actions = parser.add_subparsers(dest="action", required=True)
    generate = actions.add_parser("generate", help="write the pipeline for the change that is checked out")
    generate.add_argument("--out", type=Path, metavar="FILE", help="default: print it")
    generate.add_argument("--changed-files", type=Path, metavar="FILE", help="one path a line; default: ask git")
    lint = actions.add_parser("lint", help="say what is wrong with the repository's pipeline, or with pipeline files")
    lint.add_argument("files", nargs="*", type=Path, metavar="FILE", help="uploaded or static pipelines")
    changed = actions.add_parser("changed-files", help="print what --piecewise-changed-files takes; `.` is everything")
    changed.add_argument("--out", type=Path, metavar="FILE", help="default: print it")
    local = actions.add_parser("run-local", help="run a pipeline on this machine, with a stub agent")
    local.add_argument("file", nargs="?", type=Path, default=Path(".buildkite/pipeline.yaml"), metavar="FILE")
    local.add_argument("--branch", help="default: the one that is checked out")
    local.add_argument("--source", default="ui", help="webhook, ui or schedule; default ui")
    local.add_argument("--pull-request", metavar="NUMBER", help="the build is of this pull request")
    local.add_argument("--label", action="append", default=[], help="of the pull request; may be repeated")
    local.add_argument("--without", action="append", default=[], metavar="DEVICE", help="steps on it are skipped")
    local.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="of the build")
    local.add_argument(
        "--unblock", action="append", default=[], metavar="KEY", help="open this block; `all`: every one"
    )
    local.add_argument(
        "--only", action="append", default=[], metavar="KEY", help="run this step, and what it needs; may be repeated"
    )
    local.add_argument(
        "--spool", type=Path, metavar="DIR", help="logs, artifacts, annotations; default: a new one in /tmp"
    )
    local.add_argument("--with-agent", action="store_true", help="uploads are parsed by a real buildkite-agent as well")
    report = actions.add_parser("report", help="judge the results that steps owe, and publish one verdict")
    report.add_argument("expected", nargs="*", metavar="FILE", help="default: what the generated pipeline says")
    report.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="default: the artifacts of the build")
    report.add_argument("--out", type=Path, metavar="DIR", default=Path(".piecewise/report"), help="all results as one, as "
                        "HTML, Markdown, JUnit and JSON; default .piecewise/report")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Does one action."""
    return _ACTIONS[arguments.action](arguments)


def _generate(arguments: argparse.Namespace) -> int:
    from pytest_piecewise.changes import read_changed_files  # noqa: PLC0415 - all of these need the extra `ci`
    from pytest_piecewise.ci.change import Difference, change_of, difference_of  # noqa: PLC0415
    from pytest_piecewise.ci.document import dump  # noqa: PLC0415
    from pytest_piecewise.ci.generate import generate, runs_everything  # noqa: PLC0415
    from pytest_piecewise.ci.steps import read_config  # noqa: PLC0415

    config = read_config(arguments.root)
    if arguments.changed_files:
        difference = Difference(read_changed_files(arguments.changed_files), str(arguments.changed_files))
    else:
        difference = difference_of(os.environ, arguments.root)
    change = change_of(os.environ, difference)
    text = dump(generate(config, change))
    known = "unknown" if change.files is None else str(len(change.files))
    said = [
        f"branch {change.branch or 'unknown'}, source {change.source}, labels {', '.join(sorted(change.labels)) or 'none'}",
        f"changed files: {known}, against {difference.base}" + (f" ({difference.problem})" * bool(difference.problem)),
    ]
    if why := runs_everything(config, change):
        said.append(f"all steps of the tiers that are due run: {why}")
    sys.stderr.writelines(f"{line}\n" for line in said)
    _write(arguments.out, text)
    return 0


def _write(path: Path | None, text: str) -> None:
    if path is None:
        sys.stdout.write(text)
    else:
        path.write_text(text)
        sys.stderr.write(f"written: {path}\n")


def _lint(arguments: argparse.Namespace) -> int:
    from pytest_piecewise.ci.document import read_document  # noqa: PLC0415
    from pytest_piecewise.ci.repository import Linted, lint_files, lint_repository  # noqa: PLC0415

    found: Linted
    if arguments.files:
        found = lint_files(arguments.root, [read_document(path) for path in arguments.files])
    else:
        found = lint_repository(arguments.root)
    sys.stdout.writelines(f"{problem}\n" for problem in found.problems)
    sys.stdout.writelines(f"not checked: {what}\n" for what in found.unchecked)
    sys.stdout.write(f"{len(found.problems)} problem(s) in {', '.join(found.looked_at)}\n")
    return 1 if found.problems else 0


def _run_local(arguments: argparse.Namespace) -> int:
    from pytest_piecewise.ci.local import Choices, LocalBuild, find_agent  # noqa: PLC0415
    from pytest_piecewise.ci.model import PipelineError  # noqa: PLC0415

    given = dict(pair.partition("=")[::2] for pair in arguments.env)
    if without := [pair for pair in arguments.env if "=" not in pair]:
        raise PipelineError(f"expected --env NAME=VALUE, found {without[0]!r}")
    agent = find_agent() if arguments.with_agent else ""
    if arguments.with_agent:
        sys.stdout.write(f"uploads are parsed by {agent}\n" if agent else "no buildkite-agent on the PATH: stub only\n")
    spool = (arguments.spool or Path(tempfile.mkdtemp(prefix="piecewise-run-local-"))).resolve()
    if spool.exists() and any(spool.iterdir()):
        raise PipelineError(f"expected --spool to name an empty directory, found files in {spool}")
    choices = Choices(
        environ=_variables(arguments) | given,
        unblock=frozenset(arguments.unblock),
        only=frozenset(arguments.only),
        real_agent=agent,
    )
    build = LocalBuild(arguments.root, spool, choices, _print).run(arguments.root / arguments.file)
    _summarise(build)
    return 0 if build.passed else 1


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _summarise(build: Build) -> None:
    width = max(len(step.key) for step in build.steps)
    sys.stdout.write("\n")
    for step in build.steps:
        codes = f" exit {', '.join(map(str, step.exit_codes))}" if step.exit_codes else ""
        sys.stdout.write(f"{step.key:{width}}  {step.state}{codes}{f', {step.reason}' if step.reason else ''}\n")
    sys.stdout.write(f"build {'passed' if build.passed else 'failed'}; logs, artifacts, annotations: {build.spool}\n")


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    from pytest_piecewise.ci.change import ONLY, WITHOUT, checked_out  # noqa: PLC0415

    branch, commit = checked_out(arguments.root)
    found = {
        "BUILDKITE_BRANCH": arguments.branch or branch,
        "BUILDKITE_COMMIT": commit,
        "BUILDKITE_SOURCE": arguments.source,
        WITHOUT: ",".join(arguments.without),
        ONLY: ",".join(arguments.only),
    }
    if arguments.pull_request or arguments.label:
        found["BUILDKITE_PULL_REQUEST"] = arguments.pull_request or "1"
        found["BUILDKITE_PULL_REQUEST_LABELS"] = ",".join(arguments.label)
    return found


def _report(arguments: argparse.Namespace) -> int:
    from pytest_piecewise.ci.generate import EXPECTED  # noqa: PLC0415
    from pytest_piecewise.ci.publish import expected_from, report  # noqa: PLC0415

    expected = expected_from(os.environ, arguments.expected, EXPECTED)
    return report(os.environ, expected, arguments.folder, arguments.out)


def _changed_files(arguments: argparse.Namespace) -> int:
    from pytest_piecewise.changes import EVERYTHING  # noqa: PLC0415
    from pytest_piecewise.ci.change import difference_of  # noqa: PLC0415

    found = difference_of(os.environ, arguments.root)
    if found.problem:
        sys.stderr.write(f"everything may have changed: {found.problem}\n")
    _write(arguments.out, "".join(f"{name}\n" for name in (EVERYTHING,) if found.files is None) or _lines(found.files))
    return 0


def _lines(files: tuple[str, ...] | None) -> str:
    return "".join(f"{name}\n" for name in files or ())


_ACTIONS = {
    "generate": _generate,
    "lint": _lint,
    "changed-files": _changed_files,
    "run-local": _run_local,
    "report": _report,
}
