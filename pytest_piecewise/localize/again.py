"""The search once more, in a process of its own: what a script runs that only the whole model can reproduce."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_piecewise.hooks import PLUGINS_VARIABLE
from pytest_piecewise.records import Case, Settings, from_plain
from pytest_piecewise.server import private_directories, warm_imports


def main(task: Mapping[str, Any]) -> int:
    """Localises again what `task` names, prints what it found, and returns 1 for the same cause in the same segment."""
    os.environ[PLUGINS_VARIABLE] = task["plugins"]
    with tempfile.TemporaryDirectory(prefix="piecewise-repro-") as folder:
        warm_imports()
        private_directories(Path(folder))
        from pytest_piecewise.localize.task import run_localization  # noqa: PLC0415 - after the caches have their place

        case, settings = from_plain(Case, task["case"]), from_plain(Settings, task["settings"])
        record = run_localization(case, task["variant"], settings, task["failures"], lambda phase: None)
    (found,) = record.localizations
    sys.stdout.write(f"{found.summary}\n")
    sys.stdout.writelines(f"  {line}\n" for line in found.evidence)
    if found.index:
        where = f"{found.output}{list(found.index)}"
        sys.stdout.write(f"{where}: expected {found.expected}, found {found.found}, budget {found.budget:.3g}\n")
    same = (found.cause, found.segment) == (task["cause"], task["segment"])
    sys.stdout.write("reproduced\n" if same else "not reproduced\n")
    return int(same)
