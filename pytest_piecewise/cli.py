"""Prints the JSON Schema of report.json, and the list of checks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from pytest_piecewise import __version__
from pytest_piecewise.records import CHECKS, json_schema


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="pytest-piecewise", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("schema", help="print the JSON Schema of report.json")
    commands.add_parser("checks", help="print every check by name, with what its PASS says")
    command = parser.parse_args(arguments).command
    if command == "schema":
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | json_schema()
        sys.stdout.write(json.dumps(schema, indent=1) + "\n")
    else:
        width = max(map(len, CHECKS))
        sys.stdout.writelines(f"{name:{width}}  {text}\n" for name, text in CHECKS.items())
    return 0


if __name__ == "__main__":
    sys.exit(main())
