"""Which paths a change touches: one rule for pipeline steps and for the models of a test session."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from pathlib import Path

from pytest_piecewise.errors import ModelError

EVERYTHING = "."
"""As a pattern: every path. As the only line of a list of changed files: everything may have changed."""


def touches(path: str, patterns: Iterable[str]) -> bool:
    """Whether `path` is covered by one of `patterns` and excluded by none that begins with `!`.

    A pattern is a file, a directory (with all below it), or a glob, in which `*` also stands for `/`.
    """
    patterns = list(patterns)
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return any(_covers(pattern, path) for pattern in wanted) and not any(_covers(pattern, path) for pattern in excluded)


def _covers(pattern: str, path: str) -> bool:
    if pattern == EVERYTHING:
        return True
    if any(character in pattern for character in "*?["):
        return fnmatch.fnmatchcase(path, pattern)
    return path == pattern or path.startswith(pattern.rstrip("/") + "/")


def read_changed_files(path: Path) -> tuple[str, ...] | None:
    """The paths in a file, one a line, as `git diff --name-only` prints them; None if everything may have changed."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"expected a list of changed files in {path}, one path a line, found {error}; "
            "make one: git diff --name-only --no-renames BASE > FILE, or: pytest-piecewise pipeline changed-files"
        ) from error
    files = tuple(line.strip() for line in lines if line.strip())
    for name in files:
        if Path(name).is_absolute() or name.startswith("../"):
            raise ModelError(f"{path}: expected paths relative to the root of the project, found {name!r}")
    return None if EVERYTHING in files else files
