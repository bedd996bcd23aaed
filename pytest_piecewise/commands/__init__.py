"""The commands of `pytest-piecewise`, one module each: its docstring is the help, `add_arguments` and `run` the command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

NAMES = (
    "schema", "checks", "faults", "baselines", "null", "history", "alerts", "report", "localize", "doctor", "pipeline",
)  # fmt: skip
"""Every command by the name of its module, in the order of the help."""


class Command(Protocol):
    """What a module here provides. Importing it imports neither torch nor pytest."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares what the command takes."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Does it, and returns the exit code."""


def commands() -> Mapping[str, Command]:
    """All commands by name."""
    return {name: cast(Command, import_module(f"{__name__}.{name}")) for name in NAMES}
