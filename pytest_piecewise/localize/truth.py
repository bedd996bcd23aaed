"""What a graph gives when it is run eagerly, and in float64: the measure of whatever else claims to compute the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pytest_piecewise.bitwise import bit_comparison, bits
from pytest_piecewise.compare import Reference, budget_comparison, scale_of
from pytest_piecewise.engines.layout import duplicate, output_nodes
from pytest_piecewise.engines.lifted import PERTURBATIONS, row_change
from pytest_piecewise.engines.prepare import UNIT_ROUNDOFF
from pytest_piecewise.engines.reference import LiftedPrecision
from pytest_piecewise.records import Call, Comparison

WRITTEN = "argument "
"""Prefix of the name under which an argument that a graph writes into counts as one of its results."""

Results = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Truth:
    """A graph's results on given arguments: eagerly, in float64 with how far each row moves, and where they are defined."""

    eager: Results
    reference: Mapping[str, Reference]
    undefined: Mapping[str, torch.Tensor]
    """Elements that nobody has written, such as those of an `empty` that a later op fills."""


class Interpreter(fx.Interpreter):
    """Runs a graph node by node; memory that a node leaves uninitialised gets `fill`."""

    def __init__(self, graph: fx.GraphModule, fill: float) -> None:
        super().__init__(graph)
        self._fill = fill

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A function of the graph."""
        return self._filled(getattr(target, "__name__", ""), super().call_function(target, args, kwargs))

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A method of a tensor."""
        return self._filled(str(target), super().call_method(target, args, kwargs))

    def _filled(self, name: str, value: Any) -> Any:
        if name.partition(".")[0] in _EMPTY and isinstance(value, torch.Tensor):
            value.fill_(self._fill)
        return value


_EMPTY = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"])


def results_of(graph: fx.GraphModule, run: Callable[..., Any], arguments: Sequence[Any]) -> Results:
    """What `run` returns by the names of the graph's outputs, and the arguments that it has written into."""
    copies = [duplicate(value) for value in arguments]
    outputs = run(*copies)
    return named_results(graph, arguments, copies, outputs if isinstance(outputs, (tuple, list)) else (outputs,))


def named_results(
    graph: fx.GraphModule, before: Sequence[Any], after: Sequence[Any], outputs: Sequence[Any]
) -> Results:
    """Results by name, from what was passed, what became of it, and what was returned."""
    found = {node.name: value for node, value in zip(output_nodes(graph), outputs, strict=False)}
    for node, old, new in zip(graph.graph.find_nodes(op="placeholder"), before, after, strict=True):
        if isinstance(old, torch.Tensor) and not same_bits(old, new):
            found[WRITTEN + node.name] = new
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


Run = Callable[[float, Sequence[Any]], Results]
"""Results for a content of uninitialised memory, and for arguments."""


def truth_of(graph: fx.GraphModule, arguments: Sequence[Any]) -> Truth:
    """The truth of one graph."""
    return truth_by(lambda fill, values: results_of(graph, Interpreter(graph, fill).run, values), arguments)


def truth_by(run: Run, arguments: Sequence[Any]) -> Truth:
    """Runs eagerly twice over different uninitialised memory, and in float64 with perturbed arguments."""
    eager, other = (run(fill, arguments) for fill in (0.0, 1.0))
    undefined = {
        name: bits(value) != bits(other[name]) for name, value in eager.items() if name in other and value.numel()
    }
    values: Results = {}
    changes: Results = {}
    for attempt in range(PERTURBATIONS + 1):
        lifted = [_lifted(value, attempt, number) for number, value in enumerate(arguments)]
        with LiftedPrecision():
            found = run(0.0, lifted)
        for name, value in found.items():
            first = values.setdefault(name, value)
            change = row_change(first, value)
            changes[name] = torch.maximum(changes[name], change) if name in changes else change
    reference = {name: Reference(value.cpu(), changes[name].cpu()) for name, value in values.items()}
    return Truth(eager, reference, undefined)


def _lifted(value: Any, perturbation: int, number: int) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    high = value.double()
    if not perturbation or value.dtype not in UNIT_ROUNDOFF:
        return high
    generator = torch.Generator(value.device).manual_seed(perturbation * 1_000_003 + number)
    noise = torch.rand(value.shape, generator=generator, device=value.device, dtype=torch.float64)
    return high * (1 + UNIT_ROUNDOFF[value.dtype] * (2 * noise - 1))


@dataclass(frozen=True, slots=True)
class Judge:
    """Compares what a graph's stand-in has returned in one call with the truth, real rows only."""

    variant: str
    call: Call
    unit: float

    def against(self, graph: fx.GraphModule, truth: Truth, found: Results) -> Comparison | None:
        """The worst of the comparisons of all results; None if there is nothing to compare."""
        made = [self._compare(graph, truth, name, value) for name, value in found.items() if name in truth.eager]
        missing = [name for name in truth.eager if name not in found]
        if missing:
            made.append(self._unwritten(missing[0]))
        return max(made, key=lambda item: (not item.ok, item.ratio), default=None)

    def _compare(self, graph: fx.GraphModule, truth: Truth, name: str, found: torch.Tensor) -> Comparison:
        expected = truth.eager[name]
        if name not in truth.reference or not expected.is_floating_point() or found.shape != expected.shape:
            found, expected = (self._cleared(graph, truth, name, tensor) for tensor in (found, expected))
            against = "the graph run eagerly"
            made = bit_comparison("exact", self.variant, against, self.call, {name: found}, {name: expected})
            return dataclasses.replace(made, output=name, ratio=0.0 if made.ok else float("inf"))
        reference, expected, found = self.prepared(graph, truth, name, found)
        scale = scale_of([reference], [expected])
        return budget_comparison(self.variant, self.call, name, reference, expected, found, scale, self.unit)

    def prepared(
        self, graph: fx.GraphModule, truth: Truth, name: str, found: torch.Tensor
    ) -> tuple[Reference, torch.Tensor, torch.Tensor]:
        """A result's reference, its eager value and what was found, on the CPU: real rows, undefined elements as 0."""
        value, moved = truth.reference[name].value, truth.reference[name].sensitivity
        if moved.dim():
            moved = self.real(graph, name, moved.expand(value.shape))[..., :1]
        reference = Reference(self._cleared(graph, truth, name, value), moved)
        return reference, self._cleared(graph, truth, name, truth.eager[name]), self._cleared(graph, truth, name, found)

    def _cleared(self, graph: fx.GraphModule, truth: Truth, name: str, tensor: torch.Tensor) -> torch.Tensor:
        blank = truth.undefined.get(name)
        if blank is not None and blank.shape == tensor.shape and blank.any():
            tensor = tensor.masked_fill(blank.to(tensor.device), 0)
        return self.real(graph, name, tensor).cpu()

    def bits(
        self, graph: fx.GraphModule, name: str, found: torch.Tensor, expected: torch.Tensor, truth: Truth
    ) -> Comparison:
        """One result bit for bit, with the eager and the float64 value of the first element that differs."""
        found, expected = (self.real(graph, name, tensor).cpu() for tensor in (found, expected))
        against = "the same code called without a graph"
        made = bit_comparison("bits_graphs", self.variant, against, self.call, {name: found}, {name: expected})
        if name not in truth.reference or not made.index:
            return dataclasses.replace(made, output=name)
        value, eager = truth.reference[name].value, truth.eager[name]
        return dataclasses.replace(
            made, output=name, expected=f"{value[made.index].item():.9g}", eager=f"{eager[made.index].item():.9g}"
        )

    def _unwritten(self, name: str) -> Comparison:
        return Comparison(
            check="equivalence", axis="bits", variant=self.variant, against="the graph run eagerly", call=self.call.index,
            phase=self.call.phase, size=self.call.size, output=name, ok=False, elements=0, ratio=float("inf"),
            reason="was not written" if name.startswith(WRITTEN) else "is missing",
        )  # fmt: skip

    def real(self, graph: fx.GraphModule, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of one of the graph's values that are no padding."""
        return real_rows(_node(graph, name), tensor, self.call)


def _node(graph: fx.GraphModule, name: str) -> fx.Node | None:
    name = name.removeprefix(WRITTEN)
    return next((node for node in graph.graph.nodes if node.name == name), None)


def real_rows(node: fx.Node | None, tensor: torch.Tensor, call: Call) -> torch.Tensor:
    """A tensor without padding: dimensions that its node has as symbolic are cut to the call's real size."""
    padded = call.padded_size
    example = node.meta.get("example_value") if node is not None else None
    if padded in (0, call.size) or not isinstance(example, torch.Tensor) or example.dim() != tensor.dim():
        return tensor
    for dimension, extent in enumerate(example.shape):
        if isinstance(extent, torch.SymInt) and not tensor.shape[dimension] % padded:
            tensor = tensor.narrow(dimension, 0, tensor.shape[dimension] // padded * call.size)
    return tensor


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are equal bit for bit; NaN equals NaN."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return bool((bits(first) == bits(second)).all())
