"""Files against the schemas of Buildkite and GitHub that check-jsonschema brings along."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

BUILDKITE, GITHUB = "vendor.buildkite", "vendor.github-workflows"


def schema_checker() -> str:
    """Why files cannot be checked against a schema here; empty if they can."""
    if importlib.util.find_spec("check_jsonschema") is None:
        return "check-jsonschema is not installed; pip install 'pytest-piecewise[ci]'"
    return ""


def schema_problems(schema: str, files: Sequence[Path]) -> list[str]:
    """What the schema refuses, one line each with file and place."""
    if not files:
        return []
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, "--output-format", "json"]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=False, timeout=300)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return [f"check-jsonschema ended with code {done.returncode}: {(done.stderr or done.stdout).strip()}"]
    found = [f"{error['filename']}: {error['path']}: {_best(error)}" for error in answer.get("errors", [])] + [
        f"{error['filename']}: {error.get('message', error)}" for error in answer.get("parse_errors", [])
    ]
    if done.returncode and not found:
        found = [f"check-jsonschema ended with code {done.returncode}: {done.stdout.strip()}"]
    return found


def _best(error: dict[str, object]) -> str:
    best = error.get("best_match")
    if isinstance(best, dict):
        return f"{best.get('path')}: {best.get('message')}"
    return str(error.get("message"))
