"""Say what this machine can check, what it cannot and why. Exit code 1 if no engine can build anything here."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence

from pytest_piecewise.doctor import Answer, diagnose


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How to look, and how to say it."""
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument(
        "--try", dest="attempt", action="store_true", help="compile and capture something small as well"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the diagnosis."""
    found = diagnose(attempt=arguments.attempt)
    if arguments.json:
        sys.stdout.write(json.dumps(dataclasses.asdict(found) | {"able": found.able}, indent=1) + "\n")
    else:
        for title, answers in (
            ("here", found.here),
            ("can be checked", found.checks),
            ("known to be broken", found.broken),
        ):
            sys.stdout.writelines(f"{line}\n" for line in _table(title, answers))
    return 0 if found.able else 1


def _table(title: str, answers: Sequence[Answer]) -> Iterator[str]:
    if not answers:
        return
    yield f"{title}:"
    width = max(len(item.subject) for item in answers)
    for item in answers:
        remedy = f"; {item.remedy}" if item.remedy else ""
        yield f"  {item.status:3}  {item.subject:{width}}  {item.found}{remedy}"
