"""How far a call is from the whole graph's truth after each segment: where an error comes in, or that it only adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pytest_piecewise.engines.layout import TRACED_AS, Layout, Section, duplicate
from pytest_piecewise.localize.observe import Step
from pytest_piecewise.localize.truth import WRITTEN, Interpreter, Judge, Results, Truth, named_results, truth_by
from pytest_piecewise.located import Growth

MOST = 1e300
"""Stands for an infinite ratio."""


def growth_of(steps: Sequence[Step], alone: Mapping[str, float], judge: Judge) -> tuple[Growth, ...]:
    """Per segment in the order called, error over budget by itself and over all that came before."""
    layout = steps[-1].layout
    mine = [step for step in steps if step.layout is layout]
    found = {
        step.section.name: named_results(step.section.graph, step.passed, step.after, step.outputs) for step in mine
    }
    truths = _truths(layout, mine, found)
    rows = []
    for step in mine:
        section = step.section
        compared = judge.against(section.graph, truths[section.name], found[section.name])
        ratio = compared.ratio if compared else 0.0
        rows.append(
            Growth(segment=section.label, alone=min(alone.get(section.name, 0.0), MOST), so_far=min(ratio, MOST))
        )
    return tuple(rows)


def _truths(layout: Layout, steps: Sequence[Step], found: Mapping[str, Results]) -> dict[str, Truth]:
    """The whole graph's truth, cut at the ends of segments."""
    known: dict[str, Any] = {}
    for step in steps:
        for name, value in step.given().items():
            known.setdefault(name, value)
    arguments = [known.get(node.name) for node in layout.graph.graph.find_nodes(op="placeholder")]
    wanted = {section.name: tuple(found.get(section.name, ())) for section in layout.sections}

    def run(fill: float, values: Sequence[Any]) -> Results:
        interpreter = _Snapshots(layout, fill, wanted)
        interpreter.run(*map(duplicate, values))
        return interpreter.taken

    whole = truth_by(run, arguments)

    def part(section: Section, values: Mapping[str, Any]) -> dict[str, Any]:
        prefix = f"{section.name} "
        return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}

    return {
        section.name: Truth(part(section, whole.eager), part(section, whole.reference), part(section, whole.undefined))
        for section in layout.sections
    }


class _Snapshots(Interpreter):
    """Runs the whole graph and copies what each segment has returned or written as soon as its last node has run."""

    def __init__(self, layout: Layout, fill: float, wanted: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(layout.graph, fill)
        self.garbage_collect_values = False
        self.taken: Results = {}
        """By the segment's name and the result's, with a space between."""
        self._wanted = wanted
        self._nodes = {node.name: node for node in layout.graph.graph.nodes}
        order = {name: index for index, name in enumerate(self._nodes)}
        self._ends: dict[str, Section] = {}
        for section in layout.sections:
            names = [
                self._traced(node) for node in section.graph.graph.nodes if node.op not in ("placeholder", "output")
            ]
            self._ends[max((name for name in names if name in order), key=order.__getitem__)] = section

    @staticmethod
    def _traced(node: fx.Node) -> str:
        return str(node.meta.get(TRACED_AS, node.name))

    def run_node(self, n: fx.Node) -> Any:
        """Runs a node, then takes what its segment has made if it was the last of it."""
        value = super().run_node(n)
        self.env[n] = value
        section = self._ends.get(n.name)
        if section is not None:
            self._take(section)
        return value

    def _take(self, section: Section) -> None:
        outputs = {node.name: self._traced(node) for node in section.graph.graph.nodes}
        for name in self._wanted[section.name]:
            traced = name.removeprefix(WRITTEN) if name.startswith(WRITTEN) else outputs[name]
            value = self.env.get(self._nodes[traced])
            if isinstance(value, torch.Tensor):
                self.taken[f"{section.name} {name}"] = duplicate(value)
