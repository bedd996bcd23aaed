"""A PostgreSQL server of the tests' own, where Debian's package is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def postgres_programs() -> Path | None:
    """The directory of initdb and pg_ctl, newest version first."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]), reverse=True)
    return found[0].parent if found else None


@contextmanager
def postgresql() -> Iterator[str]:
    """A server that listens on a socket in a directory of its own only; its address."""
    programs = postgres_programs()
    if programs is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have PostgreSQL: .ci/services installs it")
        pytest.skip("needs Debian's package postgresql")
    home = Path(tempfile.mkdtemp(prefix="piecewise-pg-"))
    user: list[str] = []
    if os.geteuid() == 0:  # which PostgreSQL refuses to run as
        shutil.chown(home, "postgres")
        user = ["runuser", "-u", "postgres", "--"]

    def do(program: str, *arguments: str) -> None:
        with (home.parent / f"{home.name}.log").open("a") as log:
            command = [*user, str(programs / program), "-D", str(home / "data"), *arguments]
            subprocess.run(command, check=True, cwd="/", stdout=log, stderr=log, timeout=60)

    try:
        do("initdb", "--auth=trust", "--username=tester", "--no-sync", "--encoding=UTF8")
        do("pg_ctl", "-w", "-o", f"-k {home} -h '' -F", "start")
        try:
            yield f"postgresql://tester@/postgres?host={home}"
        finally:
            do("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
        (home.parent / f"{home.name}.log").unlink(missing_ok=True)
