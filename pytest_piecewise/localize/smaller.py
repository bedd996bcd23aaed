"""Smaller arguments on which compiled code still is wrong: random numbers, fewer rows, fewer columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from pytest_piecewise.localize.inputs import Input, randomised, resized
from pytest_piecewise.localize.truth import Judge, results_of, truth_of

if TYPE_CHECKING:
    from pytest_piecewise.localize.repro import Subject

FEW_COLUMNS = 8
"""How far columns are reduced: fewer would not fill a vector register."""

MANY_ROWS = 256
"""Rows of the arguments that show what is off as a whole: rounding must average out."""


def smaller(
    subject: Subject, inputs: Sequence[Input], *, systematic: bool, engine: bool
) -> Iterator[tuple[list[Input], dict[int, int]]]:
    """Arguments to try, the best first, each with the dimensions that are symbolic by position of the argument."""
    sized = _sized(subject, inputs)
    call = subject.call
    rows = call.padded_size or call.size
    if systematic:
        yield _with_rows(randomised(_with_rows(inputs, sized, rows, MANY_ROWS)), sized, MANY_ROWS, MANY_ROWS), sized
        yield _with_rows(inputs, sized, rows, MANY_ROWS), sized
        return
    for few in _row_counts(rows) if not engine else (rows,):
        made = randomised(_with_rows(inputs, sized, rows, few))
        if few == rows or _still_wrong(subject, made, few):
            if not engine and (narrow := _with_fewer_columns(subject, made, sized, few)) is not made:
                yield narrow, sized if few > 1 else {}
            yield made, sized if few > 1 else {}
            break
    yield list(inputs), sized if rows > 1 else {}
    yield list(inputs), {}


def _row_counts(rows: int) -> list[int]:
    """From few rows to all of them. A single one would be compiled apart, as a constant."""
    counts = [1 << power for power in range(1, rows.bit_length()) if 1 << power < rows]
    return [*counts, rows]


def _still_wrong(subject: Subject, inputs: Sequence[Input], rows: int) -> bool:
    """Whether the piece's own code, which serves every size, is beyond its budget on these arguments."""
    call, graph, code = subject.call, subject.section.graph, subject.section.compiled
    arguments = _arguments(subject, inputs, rows)
    assert code is not None
    judge = Judge(subject.found.variant, dataclasses.replace(call, size=rows, padded_size=0), subject.unit)
    try:
        verdict = judge.against(graph, truth_of(graph, arguments), results_of(graph, code, arguments))
    except (RuntimeError, AssertionError, IndexError):  # code that was made for other strides, or indices out of range
        return False
    return verdict is not None and not verdict.ok


def _arguments(subject: Subject, inputs: Sequence[Input], rows: int) -> list[Any]:
    """What the piece's graph is called with: the inputs, and sizes that fit so many rows."""
    step, call = subject.suspect.step, subject.call
    made = {item.name: item.make() for item in inputs}
    arguments = []
    for node, value in zip(subject.section.graph.graph.find_nodes(op="placeholder"), step.passed, strict=True):
        is_size = isinstance(value, int) and isinstance(node.meta.get("example_value"), torch.SymInt)
        arguments.append(made.get(node.name, value * rows // (call.padded_size or call.size) if is_size else value))
    return arguments


def _with_fewer_columns(subject: Subject, inputs: list[Input], sized: dict[int, int], rows: int) -> list[Input]:
    """The inputs with every extent but that of the rows as small as the graph, called eagerly, allows; the same object if
    nothing is cut. Equal extents are one dimension, of activations and of weights. That the failure survives is seen when
    the script runs."""
    whole = _results(subject, inputs, rows)
    extents = {extent for number, item in enumerate(inputs) for extent in _columns(item, sized.get(number)).values()}
    for extent in sorted(extents, reverse=True):
        wanted = FEW_COLUMNS
        while wanted < extent:
            shapes = [_cut(item, sized.get(number), extent, wanted) for number, item in enumerate(inputs)]
            cut = resized(inputs, shapes)
            results = _results(subject, cut, rows) if extent % wanted == 0 else None
            # A graph that reshapes to a fixed width may run, and take several rows for one.
            if results is not None and results == whole:
                inputs = cut
                break
            wanted *= 2
    return inputs


def _columns(item: Input, rows_at: int | None) -> dict[int, int]:
    """Dimension -> extent, without the one of the rows."""
    shape = item.value.shape if isinstance(item.value, torch.Tensor) else ()
    return {dimension: extent for dimension, extent in enumerate(shape) if dimension != rows_at}


def _cut(item: Input, rows_at: int | None, extent: int, wanted: int) -> tuple[int, ...] | None:
    columns = _columns(item, rows_at)
    if extent not in columns.values():
        return None
    changed = {dimension: wanted for dimension, found in columns.items() if found == extent}
    return tuple(changed.get(dimension, found) for dimension, found in enumerate(item.value.shape))


def _results(subject: Subject, inputs: Sequence[Input], rows: int) -> list[tuple[int, int]] | None:
    """Leading extent and number of dimensions of all that the graph returns; None if it does not run."""
    try:
        with torch.no_grad():
            results = subject.section.graph(*_arguments(subject, inputs, rows))
    except Exception:  # noqa: BLE001 - whatever a graph says to shapes that it was not traced with
        return None
    results = results if isinstance(results, (tuple, list)) else [results]
    found = [value for value in results if isinstance(value, torch.Tensor)]
    return [(value.shape[0] if value.dim() else 0, value.dim()) for value in found]


def _with_rows(inputs: Sequence[Input], sized: dict[int, int], rows: int, wanted: int) -> list[Input]:
    shapes: list[tuple[int, ...] | None] = []
    for number, item in enumerate(inputs):
        shape: Any = tuple(item.value.shape) if isinstance(item.value, torch.Tensor) else None
        if shape is not None and number in sized:
            dimension = sized[number]
            shape = (*shape[:dimension], shape[dimension] // rows * wanted, *shape[dimension + 1 :])
        shapes.append(shape if number in sized else None)
    return resized(inputs, shapes)


def _sized(subject: Subject, inputs: Sequence[Input]) -> dict[int, int]:
    """Position of the argument -> its symbolic dimension."""
    examples = {
        node.name: node.meta.get("example_value") for node in subject.section.graph.graph.find_nodes(op="placeholder")
    }
    found = {}
    for number, item in enumerate(inputs):
        example = examples[item.name]
        if isinstance(example, torch.Tensor):
            symbolic = [d for d, extent in enumerate(example.shape) if isinstance(extent, torch.SymInt)]
            if symbolic:
                found[number] = symbolic[0]
    return found
