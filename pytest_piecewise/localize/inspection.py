"""Judges every segment of a call as it returns, and keeps the first that is wrong: its code, its memory, or its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_piecewise.compare import Reference
from pytest_piecewise.engines.layout import Section, duplicate
from pytest_piecewise.localize.observe import Step
from pytest_piecewise.localize.truth import (
    Judge,
    Results,
    Truth,
    named_results,
    real_rows,
    results_of,
    same_bits,
    truth_of,
)
from pytest_piecewise.records import Comparison
from pytest_piecewise.split import custom_ops


@dataclass(frozen=True, slots=True)
class Suspect:
    """The first segment that is wrong in a call, and why it is held to be."""

    step: Step
    cause: str
    evidence: tuple[str, ...]
    comparison: Comparison | None = None
    truth: Truth | None = None
    found: Results | None = None
    """The results that are wrong."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One floating-point result of one segment in one call, as called without a graph. Real rows only."""

    step: Step
    name: str
    reference: Reference
    eager: torch.Tensor
    found: torch.Tensor


class Inspector:
    """Told of the steps of one call in order; `suspect` is the first that is wrong, if any."""

    def __init__(self, judge: Judge, *, sampled: bool = False) -> None:
        self._judge, self._sampled = judge, sampled
        self.suspect: Suspect | None = None
        self.steps: list[Step] = []
        self.ratios: dict[str, float] = {}
        """Error over budget of every judged segment, by its name."""
        self.samples: list[Sample] = []
        self.returned: Results = {}
        """What the caller got, real rows only."""
        self._values: Results = {}
        self._live: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._writers: dict[str, str] = {}
        self._owners: dict[str, str] = {}

    def begin(self, inputs: Mapping[str, Any]) -> None:
        """Told of the inputs of the whole graph."""
        self._values.update({name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)})

    def look(self, step: Step) -> None:
        """Judges one segment, unless an earlier one is wrong already."""
        if self.suspect is None:
            self.suspect = self._operands(step) or self._results(step)
        self._remember(step)
        self.steps.append(step)

    # What a segment was given

    def _operands(self, step: Step) -> Suspect | None:
        """Whether every value arrived as its producer, or the last op entitled to write it, has left it."""
        lines = []
        cause = "wiring"
        for (name, node), value in zip(_placeholders(step.section), step.passed, strict=True):
            known = self._values.get(name)
            if not isinstance(value, torch.Tensor) or known is None:
                continue
            if self._agree(node, value, known):
                continue
            if name in self._writers:
                cause = "stale"
                lines.append(
                    f"input {name} was overwritten by {self._writers[name]} before {step.section.label} read it"
                )
                continue
            others = [other for other, held in self._values.items() if other != name and self._agree(node, value, held)]
            came = f"the value of {others[0]}" if others else "another value than its producer returned"
            lines.append(f"input {name} got {came}")
        if not lines:
            return None
        return Suspect(step, cause, (*lines, *order_of((*self.steps, step))))

    def _agree(self, node: Any, first: torch.Tensor, second: torch.Tensor) -> bool:
        call = self._judge.call
        if first.shape != second.shape or first.dtype != second.dtype:
            return False
        return same_bits(real_rows(node, first, call), real_rows(node, second, call))

    # What it made of that

    def _results(self, step: Step) -> Suspect | None:
        graph = step.section.graph
        truth = truth_of(graph, step.passed)
        found = named_results(graph, step.passed, step.after, step.outputs)
        comparison = self._judge.against(graph, truth, found)
        self.ratios[step.section.name] = comparison.ratio if comparison else 0.0
        judge_ = self._piece if step.section.is_piece else self._op
        return judge_(step, truth, found, comparison) or self._padding(step, truth)

    def _piece(self, step: Step, truth: Truth, found: Results, comparison: Comparison | None) -> Suspect | None:
        graph, code = step.section.graph, step.section.compiled
        assert code is not None
        called = results_of(graph, code, step.passed)
        verdict = self._judge.against(graph, truth, called)
        if self._sampled:
            self._sample(step, truth, called)
        if verdict is not None and not verdict.ok:
            return Suspect(step, "code", (), verdict, truth, called)
        wrong = comparison is not None and not comparison.ok
        if not wrong and (step.reads is None or self._equal(graph, truth, found, called)):
            return None
        if not self._equal(graph, truth, called, results_of(graph, code, step.passed)):
            return Suspect(step, "unstable", ("the same compiled code gave other bits the second time",), comparison)
        mistaken = self._mistaken_for(step, found)
        if mistaken:
            line = f"what ran in place of {step.section.label} is {mistaken}"
            return Suspect(step, "wiring", (line, *order_of((*self.steps, step))), comparison, truth, found)
        if step.reads is None:
            line = "called by itself on the same inputs the compiled code is right: something else ran in its place"
            return Suspect(step, "wiring", (line, *order_of((*self.steps, step))), comparison, truth, found)
        shown = comparison if wrong else self._first_difference(graph, truth, called, found)
        return Suspect(step, "stale", tuple(self._stale_inputs(step)), shown, truth, found)

    def _sample(self, step: Step, truth: Truth, called: Results) -> None:
        for name, value in called.items():
            if name in truth.reference and value.is_floating_point() and value.shape == truth.eager[name].shape:
                reference, eager, found = self._judge.prepared(step.section.graph, truth, name, value)
                self.samples.append(Sample(step, name, reference, eager, found))

    def _op(self, step: Step, truth: Truth, found: Results, comparison: Comparison | None) -> Suspect | None:
        graph = step.section.graph
        if self._equal(graph, truth, found, truth.eager):
            return None
        again, third = (results_of(graph, graph.forward, step.passed) for _ in range(2))
        if not self._equal(graph, truth, again, third):
            line = f"{step.section.label} gave other bits the second time, on the same inputs"
            return Suspect(step, "unstable", (line,), comparison, truth, found)
        alone = "right" if self._equal(graph, truth, again, truth.eager) else "as wrong"
        line = f"called by itself on the same inputs it is {alone}"
        shown = (
            comparison if comparison and not comparison.ok else self._first_difference(graph, truth, truth.eager, found)
        )
        return Suspect(step, "splitting_op", (line,), shown, truth, found)

    def _padding(self, step: Step, truth: Truth) -> Suspect | None:
        """Whether real rows of the results follow what lies in padding rows of the arguments."""
        call, graph = self._judge.call, step.section.graph
        if call.padded_size in (0, call.size):
            return None
        arguments = [
            self._repadded(node, value)
            for (_, node), value in zip(_placeholders(step.section), step.passed, strict=True)
        ]
        run: Callable[..., Any] = step.section.compiled or graph.forward
        first, second = results_of(graph, run, step.passed), results_of(graph, run, arguments)
        if self._equal(graph, truth, first, second):
            return None
        line = (
            f"with other values in the {call.padded_size - call.size} padding row(s) its {call.size} real rows change"
        )
        shown = self._first_difference(graph, truth, first, second)
        return Suspect(step, "padding", (line,), shown, truth, second)

    def _repadded(self, node: Any, value: Any) -> Any:
        """The argument with random numbers in its padding rows."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or 0 in value.stride():
            return value
        real = real_rows(node, value, self._judge.call)
        if real.shape == value.shape:
            return value
        other = duplicate(value)
        generator = torch.Generator(value.device).manual_seed(0)
        other.copy_(torch.randn(value.shape, generator=generator, device=value.device, dtype=torch.float32))
        real_rows(node, other, self._judge.call).copy_(real)
        return other

    # Telling causes apart

    def _equal(self, graph: Any, truth: Truth, first: Results, second: Results) -> bool:
        """Whether two sets of results agree bit for bit in what is defined, real rows only."""
        return all(self._same(graph, truth, name, first[name], second[name]) for name in first if name in second)

    def _same(self, graph: Any, truth: Truth, name: str, first: torch.Tensor, second: torch.Tensor) -> bool:
        if first.shape != second.shape:
            return False
        blank = truth.undefined.get(name)
        if blank is not None:
            first, second = (tensor.masked_fill(blank, 0) for tensor in (first, second))
        return same_bits(self._judge.real(graph, name, first), self._judge.real(graph, name, second))

    def _first_difference(self, graph: Any, truth: Truth, right: Results, wrong: Results) -> Comparison | None:
        """The first result that differs, shown against the right one."""
        for name in right:
            if name in wrong and not self._same(graph, truth, name, right[name], wrong[name]):
                return self._judge.bits(graph, name, wrong[name], right[name], truth)
        return None

    def _mistaken_for(self, step: Step, found: Results) -> str:
        """The other piece of the layout whose graph explains what was returned, or the piece whose graph was replayed."""
        graph = step.section.graph
        values = list(found.values())
        for other in step.layout.sections:
            if other is step.section or not other.is_piece or len(other.inputs) != len(step.section.inputs):
                continue
            try:
                truth = truth_of(other.graph, step.passed)
                named = dict(zip(truth.eager, values, strict=True))
                verdict = self._judge.against(other.graph, truth, named)
            except (RuntimeError, ValueError, IndexError, TypeError):  # made for other shapes: not this one
                continue
            own = self._judge.against(graph, truth_of(graph, step.passed), found)
            if verdict is not None and verdict.ok and own is not None and not own.ok:
                return f"the code of {other.label}"
        return ""

    def _stale_inputs(self, step: Step) -> Iterator[str]:
        assert step.reads is not None
        changed = []
        for index, (recorded, now) in step.moved.items():
            name, node = _placeholders(step.section)[index]
            read, passed = step.reads[index], step.passed[index]
            if self._agree(node, read, passed):
                continue
            differ = int((read != passed).sum())
            made = self._owners.get(recorded)
            written = f"; that memory is {made}" if made else ""
            changed.append(
                f"input {name} ({self._producer(step, name)}): recorded at {recorded}, now at {now}; "
                f"{differ} of {passed.numel()} elements differ{written}"
            )
        yield from changed
        ops = custom_ops(step.section.graph.graph)
        if not changed and ops:
            yield f"no input has moved; the Python of {', '.join(ops)} ran at capture only, its metadata included"
        elif not changed:
            yield (
                "every input lies where it lay at capture: the replay differs by something else that the code reads or "
                "writes (metadata of the capture, a workspace, memory used twice)"
            )

    def _producer(self, step: Step, name: str) -> str:
        makers = [section.label for section in step.layout.sections if name in section.outputs]
        return f"from {makers[0]}" if makers else "of the model's caller"

    # What later segments are held to

    def _remember(self, step: Step) -> None:
        """Keeps what the segment returned or wrote, and notes who has changed what it had no business with."""
        section = step.section
        written = {
            name
            for name, before, after in zip(section.inputs, step.passed, step.after, strict=True)
            if isinstance(before, torch.Tensor) and before is not after and not same_bits(before, after)
        }
        touched = {step.arguments[section.inputs.index(name)].untyped_storage().data_ptr() for name in written}
        for name, (live, copy) in list(self._live.items()):
            if same_bits(live, copy):
                continue
            entitled = live.untyped_storage().data_ptr() in touched and name in written
            if not entitled and name not in written:
                self._writers.setdefault(name, section.label)
            self._live[name] = (live, duplicate(live))
        for name, value in zip(section.inputs, step.after, strict=True):
            if isinstance(value, torch.Tensor) and (name in written or name not in self._values):
                self._values[name] = value
        for name, value, live in zip(section.outputs, step.outputs, step.live, strict=False):
            if isinstance(value, torch.Tensor):
                self._values[name], self._live[name] = value, (live, value)
                self._writers.pop(name, None)
                self._owners[hex(live.data_ptr())] = f"what {section.label} returned as {name}"
        for name, argument in zip(section.inputs, step.arguments, strict=True):
            if isinstance(argument, torch.Tensor):
                self._owners.setdefault(hex(argument.data_ptr()), f"input {name} of {section.label}")
        needed = {name for later in step.layout.sections[step.position + 1 :] for name in later.inputs}
        self._live = {name: pair for name, pair in self._live.items() if name in needed}

    def boundary(self, given: Sequence[Any], returned: Results) -> list[str]:
        """Which inputs the graph got otherwise than the call has them, and which outputs the caller got otherwise."""
        layout, call, lines = self.steps[-1].layout, self._judge.call, []
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        for node in layout.graph.graph.find_nodes(op="placeholder"):
            value, example = self._values.get(node.name), node.meta.get("example_value")
            sized = any(isinstance(extent, torch.SymInt) for extent in getattr(example, "shape", ()))
            if value is None or not sized or any(same_bits(real_rows(node, value, call), item) for item in tensors):
                continue
            lines.append(f"input {node.name} is none of the arguments of the call")
        held = [real_rows(node, self._values[node.name], call) for node in layout.graph.graph.nodes
                if node.name in self._values]  # fmt: skip
        for name, value in returned.items():
            if value.dim() and not any(same_bits(value, item) for item in held):
                lines.append(f"output {name} is nothing that a segment has returned")
        return lines

    def other_piece(self, suspect: Suspect) -> str:
        """The other piece whose inputs a replay has read, told once the whole call is over; empty if there is none."""
        recorded = [pair[0] for pair in suspect.step.moved.values()]
        owners = [self._owners.get(address, "") for address in recorded]
        others = {owner.rpartition(" of ")[2] for owner in owners if owner.startswith("input ")}
        others -= {suspect.step.section.label}
        return others.pop() if len(others) == 1 and len(recorded) > 1 and all(owners) else ""


def _placeholders(section: Section) -> list[tuple[str, Any]]:
    return [(node.name, node) for node in section.graph.graph.find_nodes(op="placeholder")]


def order_of(steps: Sequence[Step]) -> list[str]:
    """One line on segments that were called out of the order of the traced graph, if any were."""
    mine = [step for step in steps if step.layout is steps[-1].layout]
    called = [step.position for step in mine]
    if called == sorted(called):
        return []
    labels = ", ".join(step.section.label for step in mine[:8])
    return [f"segments are called in another order than traced: {labels}"]
