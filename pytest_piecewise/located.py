"""Where a failed comparison begins: records that travel inside a `CaseResult`. No torch and no pytest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CAUSES: Mapping[str, str] = {
    "code": "the compiled code is wrong",
    "stale": "the code is right, but the replay read or wrote other memory than the call",
    "splitting_op": "an op between pieces is wrong",
    "padding": "padding rows reach real rows",
    "wiring": "right pieces, wrong order or operands",
    "graph": "the graph is not what Dynamo traced: something has changed it before it was split",
    "boundary": "every segment is right, but not what the caller gives to the first, or gets from the last",
    "rounding": "rounding that accumulates: no segment is beyond its budget by itself",
    "unstable": "the same call gave other results the second time",
    "not_seen": "the failure did not come back when the build was made again",
    "unavailable": "this build cannot be looked into",
}
"""What a localization may come to, with what it says."""

FOLLOWED = (
    "bits_graphs", "padding", "equivalence", "exact", "answer", "bits_repeat", "bits_full", "kept_outputs", "addresses",
)  # fmt: skip
"""Checks whose failure has a place in the model, the most telling first: of several that failed one is followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Error over budget of what one segment returned, judged by itself and over all that came before it."""

    segment: str
    alone: float
    so_far: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Repro:
    """A script that shows a failure by itself. `reproduced` is what a fresh process said of it, `output` its words."""

    directory: str
    size_bytes: int
    reproduced: bool
    output: str
    inputs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Localization:
    """Where a failed comparison begins. `cause` is one of `CAUSES`; `segment` the first that is wrong.

    `layers` and `sources` say where in the model it comes from; `between` what stands on both sides of it; `evidence`
    has one line each for what was seen. `error`, `budget` and `index` are of its worst element, whose values are
    `found`, `expected` (in float64) and `eager`.
    """

    variant: str
    check: str
    phase: str
    size: int
    cause: str
    summary: str
    segment: str = ""
    position: int = -1
    piece: int = -1
    layers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    output: str = ""
    index: tuple[int, ...] = ()
    found: str = ""
    expected: str = ""
    eager: str = ""
    error: float = 0.0
    budget: float = 0.0
    op: str = ""
    op_source: str = ""
    kernel: str = ""
    members: tuple[str, ...] = ()
    kernel_source: str = ""
    growth: tuple[Growth, ...] = ()
    repro: Repro | None = None
    compiles: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
