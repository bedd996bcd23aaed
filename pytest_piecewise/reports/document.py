"""report.json: written anew, atomically, after every case, so that a killed session loses none; read back and merged."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_piecewise.errors import ReportError
from pytest_piecewise.records import SCHEMA_VERSION, TIERS, Report, from_plain, to_plain

NAME = "report.json"


def write(report: Report, directory: Path) -> Path:
    """Writes the report into `directory` and returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path, part = directory / NAME, directory / f".{NAME}.{os.getpid()}"
    part.write_text(json.dumps(to_plain(report), indent=1) + "\n")
    part.replace(path)
    return path


def read(path: Path) -> Report:
    """The report in a file, or in a directory under its usual name."""
    file = path / NAME if path.is_dir() else path
    try:
        data = json.loads(file.read_bytes().decode("utf-8", "replace"))
    except OSError as error:
        raise ReportError(
            f"expected a report at {file}, found {error.strerror}; `pytest --piecewise --piecewise-report DIR` writes one"
        ) from error
    except ValueError as error:
        raise ReportError(f"{file}: expected JSON, found {error}") from error
    found = data.get("schema") if isinstance(data, dict) else None
    if found != SCHEMA_VERSION:
        raise ReportError(f"{file}: expected a report of schema {SCHEMA_VERSION}, found {found!r}")
    try:
        return from_plain(Report, data)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ReportError(f"{file}: expected what `pytest-piecewise schema` describes, found {error}") from error


def merge(reports: Sequence[Report]) -> Report:
    """The reports of shards as one. Of a case that several have, the result of the run that started last is kept."""
    if len(reports) == 1:
        return reports[0]
    ordered = sorted(reports, key=lambda report: report.run.started)
    results = {(item.case.id, item.case.device, item.platform): item for report in ordered for item in report.results}
    return replace(
        ordered[0],
        tier=max((report.tier for report in ordered), key=TIERS.index),
        complete=all(report.complete for report in ordered),
        exit_code=max(report.exit_code for report in ordered),
        results=tuple(results[key] for key in sorted(results)),
    )
