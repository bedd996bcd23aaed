"""Which paths a pattern covers, and lists of changed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_piecewise import PiecewiseError
from pytest_piecewise.changes import read_changed_files, touches


@pytest.mark.parametrize(
    ("patterns", "path", "covered"),
    [
        (["vllm/compilation/"], "vllm/compilation/backends.py", True),
        (["vllm/compilation"], "vllm/compilation/backends.py", True),
        (["vllm/compilation"], "vllm/compilation_extra/backends.py", False),
        (["vllm/config.py"], "vllm/config.py", True),
        (["vllm/config.py"], "vllm/config.pyi", False),
        (["."], "anything/at/all", True),
        (["csrc/*.cu"], "csrc/attention/kernel.cu", True),
        (["csrc/*.cu"], "csrc/kernel.cuh", False),
        (["vllm/", "!vllm/docs/"], "vllm/docs/a.md", False),
        (["vllm/", "!vllm/docs/"], "vllm/a.py", True),
        (["!vllm/docs/"], "vllm/a.py", False),
        ([], "vllm/a.py", False),
    ],
)
def test_pattern(patterns: list[str], path: str, covered: bool) -> None:
    assert touches(path, patterns) is covered


def test_list_of_changed_files(tmp_path: Path) -> None:
    listed = tmp_path / "changed"
    listed.write_text("a.py\n\n  b/c.py \n")
    assert read_changed_files(listed) == ("a.py", "b/c.py")
    listed.write_text("")
    assert read_changed_files(listed) == ()
    listed.write_text("a.py\n.\n")
    assert read_changed_files(listed) is None


@pytest.mark.parametrize("line", ["/abs/a.py", "../a.py"])
def test_paths_outside_the_project_are_refused(line: str, tmp_path: Path) -> None:
    listed = tmp_path / "changed"
    listed.write_text(f"{line}\n")
    with pytest.raises(PiecewiseError, match="relative to the root"):
        read_changed_files(listed)


def test_missing_list_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(PiecewiseError, match="git diff --name-only"):
        read_changed_files(tmp_path / "none")
