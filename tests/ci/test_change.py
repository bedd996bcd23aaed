"""What has changed, in real git repositories, and what a build's variables say of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_piecewise.ci.change import Difference, change_of, checked_out, difference_of


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


def commit(root: Path, name: str, text: str = "") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-m", name)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose branch `topic` has left `main`, which went on; two files changed, one of them moved."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init")
    commit(origin, "kept.py", "kept")
    commit(origin, "old name.py", "a long enough text to be taken for a rename\n" * 5)
    git(tmp_path, "clone", "origin", "clone")
    git(clone, "checkout", "-b", "topic")
    commit(clone, "new.py")
    git(clone, "mv", "old name.py", "moved.py")
    commit(clone, "new.py", "again")
    commit(origin, "meanwhile.py")
    git(clone, "fetch")
    return clone


def test_branch_differs_by_what_it_changed_since_it_left_main(clone: Path) -> None:
    found = difference_of({"BUILDKITE_BRANCH": "topic"}, clone)
    assert (found.files, found.problem) == (("moved.py", "new.py", "old name.py"), "")


def test_pull_request_is_compared_with_its_own_base(clone: Path) -> None:
    git(clone, "push", "origin", "topic~1:refs/heads/release")
    git(clone, "fetch")
    environ = {
        "BUILDKITE_PULL_REQUEST": "3",
        "BUILDKITE_BRANCH": "main",
        "BUILDKITE_PULL_REQUEST_BASE_BRANCH": "release",
    }
    assert difference_of(environ, clone).files == ("moved.py", "new.py", "old name.py")


def test_main_differs_by_its_last_commit(clone: Path) -> None:
    git(clone, "checkout", "main")
    git(clone, "pull")
    assert difference_of({"BUILDKITE_BRANCH": "main"}, clone).files == ("meanwhile.py",)


def test_clone_without_a_remote_has_a_main_too(clone: Path) -> None:
    git(clone, "checkout", "main")
    git(clone, "checkout", "topic")
    git(clone, "remote", "remove", "origin")
    assert difference_of({"BUILDKITE_BRANCH": "topic"}, clone).files == ("moved.py", "new.py", "old name.py")


def test_shallow_clone_is_a_difference_that_is_not_known(clone: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--depth", "1", "--branch", "topic", clone.as_uri(), "shallow")
    found = difference_of({"BUILDKITE_BRANCH": "topic"}, tmp_path / "shallow")
    assert found.files is None
    assert "git merge-base: " in found.problem


def test_no_git_is_a_difference_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert difference_of({}, tmp_path).files is None
    assert checked_out(tmp_path) == ("", "")
    monkeypatch.setenv("PATH", "")
    assert "git merge-base" in difference_of({}, tmp_path).problem


KNOWN = Difference(("a.py",), "base")


def test_variables_of_a_pull_request() -> None:
    environ = {
        "BUILDKITE_PULL_REQUEST": "12",
        "BUILDKITE_BRANCH": "main",
        "BUILDKITE_SOURCE": "webhook",
        "BUILDKITE_PULL_REQUEST_LABELS": "ready, other",
    }
    found = change_of(environ, KNOWN)
    assert (found.files, found.labels, found.source) == (("a.py",), {"ready", "other"}, "webhook")
    assert found.branch == "pull/12", "a fork's branch named main is none of ours"


def test_labels_of_an_earlier_pull_request_count_for_no_branch() -> None:
    environ = {"BUILDKITE_PULL_REQUEST": "false", "BUILDKITE_BRANCH": "x", "BUILDKITE_PULL_REQUEST_LABELS": "ready"}
    assert change_of(environ, KNOWN).labels == frozenset()


def test_variables_that_a_person_sets() -> None:
    environ = {"NIGHTLY": "1", "RUN_ALL": "1", "PIECEWISE_WITHOUT_DEVICES": "gpu, tpu", "PIECEWISE_ONLY_STEPS": "a,b"}
    found = change_of(environ, KNOWN)
    assert found.only == {"a", "b"}
    assert (found.source, found.run_all, found.without) == ("schedule", "RUN_ALL=1", {"gpu", "tpu"})
    assert change_of({}, KNOWN).run_all == ""
