"""`pytest-piecewise`: the schema of report.json, and the list of checks."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from pytest_piecewise import __version__, located, records
from pytest_piecewise.cli import main
from pytest_piecewise.records import CHECKS

REPORTED = (
    "Report", "Run", "Selection", "CaseResult", "Case",
    "Expectation", "Finding", "Change", "BuildRecord", "Comparison", "Metric", "Part",
    "Phase", "Counts", "Trial", "Trend", "Mark", "Costs", "Sample", "Ratio", "Localization", "Growth", "Repro",
)  # fmt: skip
JSON_TYPES = {"object", "array", "string", "boolean", "integer", "number", "null"}


def printed_schema(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["schema"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def objects_in(schema: Any) -> dict[str, dict[str, Any]]:
    """Every titled object of a schema, by title."""
    found: dict[str, dict[str, Any]] = {}
    if isinstance(schema, dict):
        if "title" in schema and isinstance(schema["title"], str):
            found[schema["title"]] = schema
        for value in schema.values():
            found |= objects_in(value)
    if isinstance(schema, list):
        for value in schema:
            found |= objects_in(value)
    return found


def malformed(schema: Any, path: str = "$") -> list[str]:
    """What JSON Schema 2020-12 would refuse in a schema made of these keywords."""
    if not isinstance(schema, dict):
        return [f"{path} is no object"]
    known = {
        "$schema",
        "title",
        "description",
        "type",
        "properties",
        "required",
        "items",
        "additionalProperties",
        "enum",
        "anyOf",
    }
    found = [f"{path}: unknown keyword {key}" for key in schema if key not in known]
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        found += [f"{path}: no such type {name}" for name in types if name not in JSON_TYPES]
        found += [f"{path}: types repeat"] if len(set(types)) != len(types) else []
    elif not {"enum", "anyOf"} & schema.keys():
        found.append(f"{path}: says nothing")
    for key, part in schema.get("properties", {}).items():
        found += malformed(part, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        found += malformed(schema[key], f"{path}.{key}") if key in schema else []
    for index, part in enumerate(schema.get("anyOf", [])):
        found += malformed(part, f"{path}.anyOf[{index}]")
    required = schema.get("required", [])
    found += [
        f"{path}: requires {name}, which it does not describe" for name in required if name not in schema["properties"]
    ]
    found += [f"{path}: requires repeats"] if len(set(required)) != len(required) else []
    return found


def test_schema_is_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    schema = printed_schema(capsys)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "Report"
    assert malformed(schema) == []


def test_malformed_schema_would_be_seen() -> None:
    assert malformed({"type": "integr"}) == ["$: no such type integr"]
    assert malformed({"type": "object", "properties": {}, "required": ["a"]}) == [
        "$: requires a, which it does not describe"
    ]
    assert malformed({}) == ["$: says nothing"]


def test_schema_has_every_field_of_every_record_of_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    found = objects_in(printed_schema(capsys))
    assert set(found) == set(REPORTED)
    for name in REPORTED:
        fields = dataclasses.fields(getattr(records, name, None) or getattr(located, name))
        assert list(found[name]["properties"]) == [field.name for field in fields]
        assert found[name]["required"] == [
            field.name
            for field in fields
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        ]


def test_schema_describes_its_records(capsys: pytest.CaptureFixture[str]) -> None:
    for name, part in objects_in(printed_schema(capsys)).items():
        assert len(part["description"]) > 20, name
        assert "\n" not in part["description"]


def test_schema_lists_the_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    finding = objects_in(printed_schema(capsys))["Finding"]
    assert finding["properties"]["status"] == {"enum": ["PASS", "FAIL", "STALE", "NEW", "SKIP"]}


def test_checks_are_listed_with_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CHECKS)
    for line, (name, text) in zip(lines, CHECKS.items(), strict=True):
        assert line.split(maxsplit=1) == [name, text]
    assert len({line.index(text) for line, text in zip(lines, CHECKS.values(), strict=True)}) == 1  # one column


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize("arguments", [[], ["chekcs"]])
def test_unknown_command_is_refused_with_the_known_ones(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "usage: pytest-piecewise" in error
    assert "schema" in error
    assert "checks" in error


def test_command_line_imports_neither_torch_nor_pytest() -> None:
    code = (
        "import sys; from pytest_piecewise.cli import main; main(['checks']); "
        "sys.exit(bool({'torch', 'pytest'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_reader_that_has_seen_enough_gets_no_traceback() -> None:
    command = f"{sys.executable} -m pytest_piecewise.cli schema"
    done = subprocess.run(["bash", "-c", f"{command} | true; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("141", "")
