"""Print the JSON Schema of report.json."""

from __future__ import annotations

import argparse
import json
import sys

from pytest_piecewise.records import Report, json_schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(arguments: argparse.Namespace) -> int:
    """Prints the schema."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | json_schema(Report)
    sys.stdout.write(json.dumps(schema, indent=1) + "\n")
    return 0
