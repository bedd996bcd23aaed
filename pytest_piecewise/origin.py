"""Which run of which code this is: from the CI's environment variables, else from git. No network, no failure."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pytest_piecewise.records import Run

GIT_SECONDS = 10
"""A repository on a slow network share must not hold up a run for longer."""


def this_run(directory: Path, environ: Mapping[str, str] = os.environ) -> Run:
    """A new run in the repository that `directory` lies in, if it lies in one."""
    commit, _, committed = _git(directory, "log", "-1", "--format=%H %cI").partition(" ")
    return Run(
        id=_build_id(environ) + uuid.uuid4().hex[:12],
        started=utc(datetime.now(UTC)),
        commit=environ.get("BUILDKITE_COMMIT") or environ.get("GITHUB_SHA") or commit,
        committed=utc(datetime.fromisoformat(committed)) if committed else "",
        branch=environ.get("BUILDKITE_BRANCH")
        or environ.get("GITHUB_REF_NAME")
        or _git(directory, "branch", "--show-current"),
        dirty=bool(_git(directory, "status", "--porcelain", "--untracked-files=no")),
        url=_url(environ),
    )


def utc(moment: datetime) -> str:
    """`2026-12-01T06:30:00Z`: sorts as text."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _build_id(environ: Mapping[str, str]) -> str:
    if number := environ.get("BUILDKITE_BUILD_NUMBER"):
        return f"{environ.get('BUILDKITE_PIPELINE_SLUG', 'buildkite')}/{number}/"
    if number := environ.get("GITHUB_RUN_ID"):
        return f"{environ.get('GITHUB_REPOSITORY', 'github')}/{number}/"
    return ""


def _url(environ: Mapping[str, str]) -> str:
    if url := environ.get("BUILDKITE_BUILD_URL"):
        job = environ.get("BUILDKITE_JOB_ID", "")
        return f"{url}#{job}" if job else url
    if run := environ.get("GITHUB_RUN_ID"):
        server, repository = environ.get("GITHUB_SERVER_URL", ""), environ.get("GITHUB_REPOSITORY", "")
        return f"{server}/{repository}/actions/runs/{run}"
    return ""


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
