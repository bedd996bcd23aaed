"""What has changed: from the variables that Buildkite and GitHub set, and from git. What cannot be known runs everything."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_piecewise.ci.model import Change

MAIN = "main"
WITHOUT = "PIECEWISE_WITHOUT_DEVICES"
"""Environment variable: devices of the configuration that this place does not have, separated by commas."""
ONLY = "PIECEWISE_ONLY_STEPS"
"""Environment variable: keys of the steps that are to run, with what they need, separated by commas."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The files that differ from `base`; None, and the reason, where that could not be found out."""

    files: tuple[str, ...] | None
    base: str
    problem: str = ""


def change_of(environ: Mapping[str, str], difference: Difference) -> Change:
    """The change that a build is made for. A pull request is never on a branch of ours, whatever its own is called."""
    number = environ.get("BUILDKITE_PULL_REQUEST", "false")
    pull_request = number not in ("", "false")
    labels = _names(environ.get("BUILDKITE_PULL_REQUEST_LABELS", "")) if pull_request else frozenset[str]()
    scheduled = environ.get("NIGHTLY") == "1"
    return Change(
        files=difference.files,
        labels=labels,
        source="schedule" if scheduled else environ.get("BUILDKITE_SOURCE", "webhook"),
        branch=f"pull/{number}" if pull_request else environ.get("BUILDKITE_BRANCH", ""),
        run_all="RUN_ALL=1" if environ.get("RUN_ALL") == "1" else "",
        without=_names(environ.get(WITHOUT, "")),
        only=_names(environ.get(ONLY, "")),
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def difference_of(environ: Mapping[str, str], root: Path) -> Difference:
    """What a pull request or branch changes since it left its base; on the main branch, what its last commit changes."""
    pull_request = environ.get("BUILDKITE_PULL_REQUEST", "false") not in ("", "false")
    if environ.get("BUILDKITE_BRANCH") == MAIN and not pull_request:
        return _difference(root, "HEAD~1")
    target = environ.get("BUILDKITE_PULL_REQUEST_BASE_BRANCH") or MAIN
    problems = []
    for name in (f"origin/{target}", target):  # a clone without a remote has the latter only
        base, problem = _git(root, "merge-base", name, "HEAD")
        if not problem:
            return _difference(root, base.strip())
        problems.append(problem)
    return Difference(None, f"origin/{target}", problems[0])


def _difference(root: Path, base: str) -> Difference:
    # Without renames: then the old name of a moved file counts as well.
    names, problem = _git(root, "diff", "--name-only", "--no-renames", "-z", base)
    if problem:
        return Difference(None, base, problem)
    return Difference(tuple(sorted(name for name in names.split("\0") if name)), base)


def _git(root: Path, *arguments: str) -> tuple[str, str]:
    """What git prints, and what was wrong."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"git {arguments[0]}: {error}"
    if done.returncode:
        return "", f"git {arguments[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}"
    return done.stdout, ""


def checked_out(root: Path) -> tuple[str, str]:
    """Branch and commit of a checkout; empty where there is no git."""
    branch, _ = _git(root, "rev-parse", "--abbrev-ref", "HEAD")
    commit, _ = _git(root, "rev-parse", "HEAD")
    return branch.strip(), commit.strip()
