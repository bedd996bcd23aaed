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
    step, call = subject.suspect.step, subject.call
    graph, code = subject.section.graph, subject.section.compiled
    made = {item.name: item.make() for item in inputs}
    arguments = []
    for node, value in zip(graph.graph.find_nodes(op="placeholder"), step.passed, strict=True):
        is_size = isinstance(value, int) and isinstance(node.meta.get("example_value"), torch.SymInt)
        arguments.append(made.get(node.name, value * rows // (call.padded_size or call.size) if is_size else value))
    assert code is not None
    judge = Judge(subject.found.variant, dataclasses.replace(call, size=rows, padded_size=0), subject.unit)
    try:
        verdict = judge.against(graph, truth_of(graph, arguments), results_of(graph, code, arguments))
    except (RuntimeError, AssertionError, IndexError):  # code that was made for other strides, or indices out of range
        return False
    return verdict is not None and not verdict.ok


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
