"""Where a failure begins, in lines of text. Strings out, no output of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_piecewise.located import Localization, Repro

SHOWN = 4
"""How many layers, source lines and rows of growth are shown."""


def localization_lines(item: Localization) -> Iterator[str]:
    """A localization as a reader meets it in a failed test, behind the findings."""
    call = f", {item.phase}" + (f", size {item.size}" if item.size else "") if item.phase else ""
    yield f"WHERE ({item.variant}, {item.check}{call}): {item.summary}"
    for line in item.evidence:
        yield f"    {line}"
    if item.found:
        yield f"    {_element(item)}"
    if item.op:
        kernel = f", in {item.kernel} ({', '.join(item.members)})" if item.kernel else ""
        yield f"    op {item.op}{kernel}" + (f": {item.op_source}" if item.op_source else "")
    if item.layers:
        yield f"    layers: {_first(item.layers)}"
    if not item.op_source:
        for source in item.sources[:SHOWN]:
            yield f"    {source}"
    for row in item.growth[:SHOWN] if item.cause == "rounding" else ():
        yield f"    {row.segment}: {row.alone:.3g} x budget by itself, {row.so_far:.3g} x with all before it"
    for note in item.notes:
        yield f"    {note}"
    if item.repro is not None:
        yield f"    {_repro(item.repro)}"


def _element(item: Localization) -> str:
    where = f"{item.output}{list(item.index)}" if item.index else item.output
    eager = f" (eager {item.eager})" if item.eager else ""
    error = f"; error {item.error:.3g}" + (f", budget {item.budget:.3g}" if item.budget else "")
    return f"{where}: found {item.found}, expected {item.expected}{eager}{error}"


def _first(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _repro(made: Repro) -> str:
    directory = Path(made.directory)
    if directory.is_relative_to(Path.cwd()):
        directory = directory.relative_to(Path.cwd())
    said = "exits 1 in a fresh process" if made.reproduced else "does NOT reproduce in a fresh process"
    return f"python {directory / 'repro.py'}: {said} ({made.inputs}; {made.size_bytes / 1024:.1f} KiB)"
