"""report.json: written anew, atomically, after every case, so that a killed session loses none."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pytest_piecewise.records import Report, to_plain

NAME = "report.json"


def write(report: Report, directory: Path) -> Path:
    """Writes the report into `directory` and returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path, part = directory / NAME, directory / f".{NAME}.{os.getpid()}"
    part.write_text(json.dumps(to_plain(report), indent=1) + "\n")
    part.replace(path)
    return path
