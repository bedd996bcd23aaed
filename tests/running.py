"""pytest in a subprocess, as a user starts it: in a directory of his own that is not on `sys.path`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def configure(directory: Path, *plugins: str, table: str = "") -> Path:
    """Makes `directory` a project whose pyproject.toml enables `plugins`."""
    names = ", ".join(f'"{name}"' for name in plugins)
    (directory / "pyproject.toml").write_text(f"[tool.pytest_piecewise]\nplugins = [{names}]\n{table}\n")
    return directory


def command(directory: Path, *arguments: str) -> list[str]:
    """What starts pytest there. `-P`: Python itself must not put the directory on the path."""
    return [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={directory}", *arguments]


def environment(**more: str) -> dict[str, str]:
    """This process's, without what a CI or an outer pytest puts there, and with this repository on the path.

    Inductor need not try, in each of many sessions, whether the compiler's vector instructions work here.
    """
    ours = ("PYTEST_", "BUILDKITE", "GITHUB_")
    outer = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith(ours)}
    path = os.pathsep.join(filter(None, (str(ROOT), outer.get("PYTHONPATH"))))
    return outer | {"PYTHONPATH": path, "TORCHINDUCTOR_VEC_ISA_OK": "1"} | more


def run_pytest(directory: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A whole session, its output, and its exit code."""
    return subprocess.run(
        command(directory, *arguments),
        cwd=directory,
        env=environment(**environ),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
