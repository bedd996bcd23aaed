"""The baseline file: where it lies, how it is read and checked, its one canonical text, and its atomic writing."""

from __future__ import annotations

import datetime
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_piecewise.baselines.entries import GATES, Entry
from pytest_piecewise.errors import BaselineError
from pytest_piecewise.records import Case

SCHEMA = 2
KEYS = ("schema", "case", "revision", "source", "metrics", "kernels")
UPDATE = "pytest --piecewise --piecewise-update=new"
"""What makes a baseline where there is none."""
FIX = 'pytest --piecewise --piecewise-update=fix --piecewise-reason="..."'
TRIM = "pytest --piecewise --piecewise-update=trim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What is stored for one case: `metrics` by `variant.metric`, `kernels` as `variant name` with how many there are.

    `source` is the file that defines the model, relative to the project; empty for a model named by its module.
    """

    case: str
    revision: str
    source: str = ""
    metrics: dict[str, Entry]
    kernels: dict[str, int] = field(default_factory=dict)


def path_of(directory: Path, platform: str, case: Case) -> Path:
    """Where the baseline of a case lies."""
    return directory / platform / f"{case.id}.json"


def load(path: Path) -> Baseline:
    """Reads a baseline file; whatever is wrong with it is named with the line and the remedy."""
    try:
        text = path.read_text()
        data = json.loads(text, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise BaselineError(f"{path}: expected text, found {error.reason}; restore it from git") from error
    except json.JSONDecodeError as error:
        raise BaselineError(f"{path}:{error.lineno}: expected JSON, found {error.msg}; restore it from git") from error
    except _DuplicateKeyError as error:
        place = _place(text, str(error), last=True)
        raise BaselineError(
            f"{path}{place}: expected every name once, found {str(error)!r} twice; remove one of the lines"
        ) from error
    name, problem = _problem_with(data)
    if problem:
        raise BaselineError(
            f"{path}{_place(text, name)}: {problem}; restore it from git, or delete it and run {UPDATE}"
        )
    return Baseline(
        case=data["case"],
        revision=data["revision"],
        source=data["source"],
        metrics={name: _entry(line) for name, line in data["metrics"].items()},
        kernels=data["kernels"],
    )


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKeyError(key)
        found[key] = value
    return found


def _place(text: str, name: str, *, last: bool = False) -> str:
    """`:line` of the line that starts with a name; empty if there is none."""
    numbers = [number for number, line in enumerate(text.splitlines(), 1) if json.dumps(name) + ":" in line]
    return f":{numbers[-1 if last else 0]}" if name and numbers else ""


def _problem_with(data: Any) -> tuple[str, str]:
    """The name at fault, which may be empty, and what is wrong with it; two empty texts if nothing is."""
    if not isinstance(data, Mapping):
        return "", f"expected the keys {', '.join(KEYS)}, found {type(data).__name__}"
    if data.get("schema") != SCHEMA:
        return "schema", f"expected schema {SCHEMA}, found {data.get('schema')!r}"
    if odd := [key for key in (*data, *KEYS) if key not in KEYS or key not in data]:
        return odd[0], f"expected the keys {', '.join(KEYS)}, found {', '.join(data)}"
    for key, kind in (("case", str), ("revision", str), ("source", str), ("metrics", dict), ("kernels", dict)):
        if not isinstance(data[key], kind):
            return key, f"expected {key} as {'text' if kind is str else 'names with values'}, found {data[key]!r}"
    for name, line in data["metrics"].items():
        if problem := _problem_with_line(line):
            return name, f"metric {name!r}: {problem}"
    for name, number in data["kernels"].items():
        if type(number) is not int or number < 1:
            return name, f"kernel {name!r}: expected how many there are, found {number!r}"
    return "", ""


_EXPECTED: Mapping[str, str] = {
    "exact": "an integer or text",
    "work": "a positive integer",
    "budget": "a positive integer",
    "ratio": "a positive number",
    "observe": "a number or text",
    "margin": "a positive number",
    "slack": "bytes",
    "noise": "a positive number",
    "sides": "two positive numbers",
    "parts": "numbers by name",
    "until": "a date as YYYY-MM-DD",
    "issue": "text that says where it is followed up",
    "reason": "text",
}


def _problem_with_line(line: Any) -> str:
    if not isinstance(line, Mapping) or line.get("gate") not in GATES:
        return f"expected a gate out of {', '.join(GATES)}, found {line!r}"
    allowed = ("gate", "value", "reason", *GATES[line["gate"]])
    if unknown := [key for key in line if key not in allowed]:
        return f"expected {', '.join(allowed)} on a line with the gate {line['gate']}, found {unknown[0]!r}"
    if "value" not in line or not _is_value(line["gate"], line["value"]):
        return f"expected value as {_EXPECTED[line['gate']]}, found {line.get('value')!r}"
    for key in line.keys() - {"gate", "value"}:
        if not _is_value(key, line[key]):
            return f"expected {key} as {_EXPECTED[key]}, found {line[key]!r}"
    if line["gate"] == "observe" and (missing := {"until", "issue"} - line.keys()):
        return (
            f"expected {' and '.join(sorted(missing))} on a line that is only observed, found neither a gate nor an end"
        )
    return ""


def _is_value(key: str, value: Any) -> bool:
    if key in ("issue", "reason"):
        return isinstance(value, str) and bool(value.strip())
    if key == "until":
        return isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None and _is_date(value)
    if key == "sides":
        return isinstance(value, list) and len(value) == 2 and all(_is_value("ratio", side) for side in value)
    if key == "parts":
        return isinstance(value, dict) and all(type(number) in (int, float) for number in value.values())
    if key in ("exact", "work", "budget", "slack"):
        return (type(value) is int and value >= (key in ("work", "budget"))) or (
            key == "exact" and isinstance(value, str)
        )
    if key == "observe" and isinstance(value, str):
        return True
    return type(value) in (int, float) and (value > 0 or key == "observe")


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _entry(line: Mapping[str, Any]) -> Entry:
    return Entry(**dict(line) | {"sides": tuple(line.get("sides", ()))})


def dump(baseline: Baseline) -> str:
    """The canonical text: sorted, one metric per line, nothing that changes by itself."""
    metrics = [f"{json.dumps(name)}: {_line(entry)}" for name, entry in sorted(baseline.metrics.items())]
    kernels = [f"{json.dumps(name)}: {number}" for name, number in sorted(baseline.kernels.items())]
    head = {"schema": SCHEMA, "case": baseline.case, "revision": baseline.revision, "source": baseline.source}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines += [f'"metrics": {_block(metrics)}', f'"kernels": {_block(kernels)}']
    return "{\n  " + ",\n  ".join(lines) + "\n}\n"


def _block(lines: list[str]) -> str:
    return "{\n    " + ",\n    ".join(lines) + "\n  }" if lines else "{}"


def _line(entry: Entry) -> str:
    names = ("gate", "value", "margin", "slack", "noise", "sides", "parts", "until", "issue", "reason")
    said = {name: getattr(entry, name) for name in names}
    kept = {name: value for name, value in said.items() if value is not None and value not in ("", (), {})}
    return json.dumps(kept)


def write(path: Path, baseline: Baseline) -> bool:
    """Puts the canonical text into place, at once or not at all. False if it was there already, to the byte."""
    text = dump(baseline)
    if path.exists() and path.read_bytes() == text.encode():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, suffix=".part") as part:
        part.write(text)
    Path(part.name).chmod(0o644)
    Path(part.name).replace(path)
    return True
