"""Makes findings: one verdict with its numbers out of conditions and comparisons. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_piecewise.models import Model
from pytest_piecewise.records import Comparison, Finding, Status

SHOWN = 6
"""How many failed comparisons after the first a finding shows."""


def finding(check: str, variant: str, ok: bool, summary: str, lines: Iterable[str] = (), action: str = "") -> Finding:
    """PASS or FAIL of one check; `lines` and `action` are kept only for a failure."""
    detail = "" if ok else "\n".join(lines)
    return Finding(
        check=check,
        status=Status.PASS if ok else Status.FAIL,
        variant=variant,
        summary=summary,
        detail=detail,
        action="" if ok else action,
    )


def allowed(model: Model, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Failures of checks that the model switches off become SKIPs that show the reason and what was found."""
    return tuple(
        Finding(
            check=item.check,
            status=Status.SKIP,
            variant=item.variant,
            summary=f"allowed by the model: {model.allow[item.check]} (found: {item.summary})",
        )
        if item.status is Status.FAIL and item.check in model.allow
        else item
        for item in findings
    )


def bits_findings(comparisons: Iterable[Comparison]) -> list[Finding]:
    """One finding per check and variant out of comparisons of the bit axis."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for item in comparisons:
        groups.setdefault((item.check, item.variant), []).append(item)
    found = []
    for (check, variant), items in groups.items():
        bad = [item for item in items if not item.ok]
        elements = sum(item.elements for item in items)
        summary = f"{len(items) - len(bad)} of {len(items)} comparison(s) bit-equal, {elements} elements"
        if bad:
            summary = f"{summary}; first: {describe_comparison(bad[0])}"
        found.append(finding(check, variant, not bad, summary, further_comparisons(bad), _BIT_ACTIONS.get(check, "")))
    return found


_CALLS_REPEATED = ("bits_graphs", "bits_full", "bits_repeat", "padding", "second_build")
"""Checks of bits that make a call again."""

_BIT_ACTIONS = {
    "bits_graphs": "the replay reads or writes other memory than the call, or Python ran at capture only: "
    "look at the addresses finding, and at ops inside captured pieces that read per-call metadata",
    "bits_full": "splitting alone changes no bits in float32: a piece got other operands, or another compiled code",
    "bits_repeat": "something is not deterministic, or state leaks from one call into the next",
    "padding": "padding rows reach real rows: give ops that mix rows the number of real rows through `context`",
    "kept_outputs": "return copies: a graph's outputs lie where its next replay writes",
    "second_build": "the builds share memory: captures, buffers or workspaces have to belong to one build alone",
    "answer": "compare with the answer computed by hand first: eager may be the one that is wrong",
}


def without_noise_of_eager(findings: Sequence[Finding]) -> list[Finding]:
    """With failures of builds' bits as SKIPs where eager itself gives other bits when a call is repeated: what is left is
    the cause."""
    failed = {(item.check, item.variant) for item in findings if item.status is Status.FAIL}
    unsteady = ("bits_repeat", "eager") in failed
    return [
        replace(
            item,
            status=Status.SKIP,
            summary=f"says nothing, since eager gives other bits each time ({item.summary})",
            detail="",
            action="",
        )
        if unsteady and item.status is Status.FAIL and item.variant != "eager" and item.check in _CALLS_REPEATED
        else item
        for item in findings
    ]


def further_comparisons(bad: Sequence[Comparison]) -> list[str]:
    """One line each for those after the first, which the summary has; some of them where there are many."""
    lines = [describe_comparison(item) for item in bad[1 : SHOWN + 1]]
    more = len(bad) - 1 - len(lines)
    return [*lines, f"... and {more} more, in the report"] if more > 0 else lines


def describe_comparison(item: Comparison) -> str:
    """One line: where, what was found and expected, error against budget."""
    place = f"{item.phase}, size {item.size}" if item.size else item.phase
    where = f"{item.output}{list(item.index)}" if item.index else item.output or "outputs"
    if item.ok:
        return f"{place}: {where} within budget"
    numbers = f" found {item.found}, expected {item.expected}" if item.found else ""
    numbers += f" (eager {item.eager})" if item.eager else ""
    if item.axis == "budget" and math.isfinite(item.ratio) and item.budget:
        numbers += f"; error {item.error:.3g} = {item.error / item.budget:.3g} x budget {item.budget:.3g}"
        numbers += f", row {item.row_ratio:.3g} x" if item.row_ratio > 1 else ""
    wrong = f", {item.wrong} of {item.elements} elements" if item.wrong else ""
    return f"{place}: {where}{numbers}; {item.reason}{wrong} against {item.against}"
