"""A suspect segment in a reader's words: its layers and source lines, its neighbours, its worst element."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

from torch import fx

from pytest_piecewise.engines.layout import Layout, Section
from pytest_piecewise.localize.inspection import Suspect
from pytest_piecewise.located import CAUSES, Localization
from pytest_piecewise.records import Call
from pytest_piecewise.split import op_names

MOST_PLACES = 12
"""How many layers, and how many source lines, are named at most."""


def describe(variant: str, check: str, call: Call, suspect: Suspect) -> Localization:
    """The record of a suspect, as far as the piece."""
    step, worst = suspect.step, suspect.comparison
    section, layout = step.section, step.layout
    # Of a segment between pieces the splitting ops come first, then the views beside them.
    nodes = sorted(section.graph.graph.nodes, key=lambda node: not set(section.ops).intersection(op_names(node)))
    where = f"{segment_name(layout, section)} {between_text(layout, section)}".strip()
    summary = f"{where}: {CAUSES[suspect.cause]}"
    found = Localization(
        variant=variant,
        check=check,
        phase=call.phase,
        size=call.size,
        cause=suspect.cause,
        summary=summary,
        segment=section.label,
        position=step.position,
        piece=piece_number(layout, section),
        layers=layers_of(nodes),
        sources=sources_of(nodes),
        between=neighbours(layout, section),
        evidence=suspect.evidence,
    )
    if worst is None:
        return found
    return _with_worst(found, suspect)


def _with_worst(found: Localization, suspect: Suspect) -> Localization:
    worst = suspect.comparison
    assert worst is not None
    return dataclasses.replace(
        found,
        output=worst.output,
        index=worst.index,
        found=worst.found,
        expected=worst.expected,
        eager=worst.eager,
        error=worst.error,
        budget=worst.budget,
    )


def segment_name(layout: Layout, section: Section) -> str:
    """`piece 3 of 5`, or the splitting ops by name."""
    pieces = [item for item in layout.sections if item.is_piece]
    return f"{section.label} of {len(pieces)}" if section in pieces and len(pieces) > 1 else section.label


def piece_number(layout: Layout, section: Section) -> int:
    """Number of a piece among the pieces; -1 for a splitting op."""
    pieces = [item for item in layout.sections if item.is_piece]
    return pieces.index(section) if section in pieces else -1


def neighbours(layout: Layout, section: Section) -> tuple[str, ...]:
    """Labels of the segments before and after; `start` and `end` where there is none."""
    position = layout.sections.index(section)
    labels = ["start", *(item.label for item in layout.sections), "end"]
    return (labels[position], labels[position + 2])


def between_text(layout: Layout, section: Section) -> str:
    """Where a segment stands, unless it is alone."""
    before, after = neighbours(layout, section)
    return "" if len(layout.sections) == 1 else f"(between {before} and {after})"


def layers_of(nodes: Iterable[fx.Node]) -> tuple[str, ...]:
    """Paths of the submodules that the nodes were traced from, in order."""
    found: dict[str, None] = {}
    for node in nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            path = str(list(stack.values())[-1][0])
            found[module_path(path)] = None
    return tuple(name for name in found if name)[:MOST_PLACES]


def module_path(path: str) -> str:
    """`layers.0.attention` out of Dynamo's `L['self'].layers.0.attention` or `L__self___layers_0_attention`."""
    text = re.sub(r"^L\['\w+'\]\.?", "", path)
    text = re.sub(r"_modules\['([^']+)'\]", r"\1", text)
    return re.sub(r"\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", text).removeprefix(".")


def sources_of(nodes: Iterable[fx.Node]) -> tuple[str, ...]:
    """`file:line: code` of the innermost lines that the nodes were traced from, in order."""
    found: dict[str, None] = {}
    for node in nodes:
        if line := source_of(node):
            found[line] = None
    return tuple(found)[:MOST_PLACES]


def source_of(node: fx.Node) -> str:
    """`file:line: code` of the innermost line that a node was traced from; empty if that is not known."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    file, line, code = frames[-1]
    path = Path(file)
    short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{short}:{line}: {code.strip()}"
