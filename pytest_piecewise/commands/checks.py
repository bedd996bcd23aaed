"""Print every check by name, with what its PASS says."""

from __future__ import annotations

import argparse
import sys

from pytest_piecewise.records import CHECKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    width = max(map(len, CHECKS))
    sys.stdout.writelines(f"{name:{width}}  {text}\n" for name, text in CHECKS.items())
    return 0
