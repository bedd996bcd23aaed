"""Which run of which code: git repositories and the variables of two CI systems."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_piecewise.origin import this_run


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("a = 1\n")
    author = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
    for arguments in (["init", "-q", "-b", "work"], ["add", "a.py"], [*author, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, env={"PATH": "/usr/bin:/bin", "HOME": "/"})
    return tmp_path


def head(repository: Path) -> str:
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=repository, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_commit_branch_and_times_come_from_git(repository: Path) -> None:
    run = this_run(repository, {})
    assert (run.commit, run.branch, run.dirty, run.url) == (head(repository), "work", False, "")
    assert run.committed <= run.started
    assert (len(run.started), run.started[-1], run.committed[-1]) == (20, "Z", "Z")


def test_changed_file_makes_it_dirty_and_a_new_one_does_not(repository: Path) -> None:
    (repository / "b.py").write_text("")
    assert not this_run(repository, {}).dirty
    (repository / "a.py").write_text("a = 2\n")
    assert this_run(repository, {}).dirty


def test_every_run_has_an_id_of_its_own(repository: Path) -> None:
    assert len({this_run(repository, {}).id for _ in range(5)}) == 5


def test_outside_a_repository_there_is_an_id_and_a_time(tmp_path: Path) -> None:
    run = this_run(tmp_path, {"GIT_CEILING_DIRECTORIES": str(tmp_path)})
    assert run.id
    assert run.started


def test_buildkite_says_commit_branch_and_address(tmp_path: Path) -> None:
    said = {
        "BUILDKITE_COMMIT": "4fa01c2",
        "BUILDKITE_BRANCH": "fix",
        "BUILDKITE_PIPELINE_SLUG": "piecewise",
        "BUILDKITE_BUILD_NUMBER": "412",
        "BUILDKITE_BUILD_URL": "https://example.org/piecewise/builds/412",
        "BUILDKITE_JOB_ID": "018f",
    }
    run = this_run(tmp_path, said)
    assert (run.commit, run.branch) == ("4fa01c2", "fix")
    assert run.url == "https://example.org/piecewise/builds/412#018f"
    assert run.id.startswith("piecewise/412/")


def test_github_says_commit_branch_and_address(tmp_path: Path) -> None:
    said = {
        "GITHUB_SHA": "4fa01c2",
        "GITHUB_REF_NAME": "fix",
        "GITHUB_RUN_ID": "77",
        "GITHUB_SERVER_URL": "https://example.org",
        "GITHUB_REPOSITORY": "o/r",
    }
    run = this_run(tmp_path, said)
    assert (run.commit, run.branch, run.url) == ("4fa01c2", "fix", "https://example.org/o/r/actions/runs/77")
    assert run.id.startswith("o/r/77/")
