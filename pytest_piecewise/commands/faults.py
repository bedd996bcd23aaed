"""Print the catalogue of planted faults: kind, name, what goes wrong, the report it models, the checks that catch it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator

from pytest_piecewise.faults import FAULTS, KINDS, Fault

COLUMNS = ("kind", "fault", "what goes wrong", "report", "caught by", "for")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--markdown` and `--kind`."""
    parser.add_argument("--markdown", action="store_true", help="as a Markdown table")
    parser.add_argument("--kind", choices=KINDS, help="only those of one kind")


def run(arguments: argparse.Namespace) -> int:
    """Prints the catalogue."""
    chosen = [item for item in FAULTS.values() if arguments.kind in (None, item.kind)]
    lines = markdown(chosen) if arguments.markdown else text(chosen)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def text(faults: Iterable[Fault]) -> Iterator[str]:
    """Three lines per fault."""
    for item in faults:
        yield f"{item.kind}  {item.name}  ({item.report}; {_for(item)})"
        yield f"    {item.summary}"
        yield f"    caught by {' or '.join(item.caught_by)}"


def markdown(faults: Iterable[Fault]) -> Iterator[str]:
    """The same as a table."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for item in faults:
        cells = (item.kind, f"`{item.name}`", item.summary, item.report, ", ".join(item.caught_by), _for(item))
        yield f"| {' | '.join(cells)} |"


def _for(item: Fault) -> str:
    place = "" if len(item.devices) > 1 else f" on {item.devices[0]}"
    return f"{', '.join(item.variants)} of {', '.join(item.engines)}{place}"
