"""Counts -> findings with positive evidence: what was traced, split, compiled, captured and replayed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_piecewise.findings import finding
from pytest_piecewise.models import Model
from pytest_piecewise.records import Counts, Finding, Status

NOTHING_TRACED = "check TORCH_COMPILE_DISABLE, TORCHDYNAMO_DISABLE and torch.compiler.disable on the model"

SHARED_CACHE = (
    "a build has a cache of its own, so that another model's code is never run for this one: do not point the caches of "
    "vLLM or Inductor elsewhere"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one build reports, and how much it was asked to do. `plain_calls` ran without graphs, `graph_calls` with."""

    model: Model
    variant: str
    counts: Counts
    plain_calls: int
    graph_calls: int
    drops_guards: bool = False
    """Whether the engine drops Dynamo's guards, so that one graph serves size 1 too, however sizes are made symbolic."""
    without_graphs: str = ""
    """Why a piecewise build has no graphs here; empty where it must have them."""


def structure_findings(evidence: Evidence) -> tuple[Finding, ...]:
    """Every structural check of one compiled build, passed ones with their numbers."""
    checks = _common_checks(evidence)
    if evidence.variant == "piecewise":
        checks = (*checks, *_piecewise_checks(evidence))
    if evidence.counts.recompiles:
        checks = tuple(_not_judged(item) if item.check in HANGING_ON_ONE_GRAPH else item for item in checks)
    return tuple(checks)


HANGING_ON_ONE_GRAPH = ("pieces", "compiles", "captures", "replays")
"""Checks whose expected numbers hold for one graph; what was compiled again after warm-up has no captures at all."""


def _not_judged(item: Finding) -> Finding:
    reason = f"not judged, since the model was compiled again after warm-up (found: {item.summary})"
    return _skipped(item.check, item.variant, reason)


def _skipped(check: str, variant: str, reason: str) -> Finding:
    return Finding(check=check, status=Status.SKIP, variant=variant, summary=reason)


def _common_checks(evidence: Evidence) -> tuple[Finding, ...]:
    return (
        *_graph_checks(evidence),
        _compiles(evidence),
        _executed(evidence),
    )


def _graph_checks(evidence: Evidence) -> Iterator[Finding]:
    counts, variant, model = evidence.counts, evidence.variant, evidence.model
    apart = model.dynamic_shapes == "backed" and model.capture_sizes[0] == 1 and model.largest > 1
    wanted = 2 if apart and not evidence.drops_guards else 1
    late = len(counts.recompiles)
    yield finding(
        "graphs",
        variant,
        counts.graphs == wanted + late and counts.graphs > 0,
        f"Dynamo handed over {counts.graphs} graph(s), expected {wanted}",
        action=_graphs_action(counts),
    )
    yield finding(
        "graph_breaks",
        variant,
        not counts.graph_breaks,
        f"{len(counts.graph_breaks)} graph break(s)",
        counts.graph_breaks,
    )
    yield finding(
        "recompiles",
        variant,
        not late,
        f"{late} compilation(s) after warm-up",
        counts.recompiles,
        "make what the guard names the same in every call, or pass it as a tensor",
    )
    yield _splitting_ops(evidence)


def _splitting_ops(evidence: Evidence) -> Finding:
    counts = evidence.counts
    declared = {op.partition(".")[0] for op in evidence.model.splitting_ops}
    captured = [place for place in counts.captured_ops if place.partition(" in ")[0] in declared]
    summary = f"{counts.splitting_ops} splitting op call(s) in the graph"
    summary += f"; never found: {', '.join(counts.missing_ops)}" if counts.missing_ops else ""
    summary += f"; captured: {', '.join(captured)}" if captured else ""
    return finding(
        "splitting_ops",
        evidence.variant,
        not counts.missing_ops and not captured,
        summary,
        action="correct the name in splitting_ops, or remove it: an op that is not there splits nothing"
        if counts.missing_ops
        else "the op was declared to stay eager: its Python, metadata included, runs at capture only",
    )


def _graphs_action(counts: Counts) -> str:
    if counts.graphs:
        return "look at the guards that made Dynamo trace again"
    return SHARED_CACHE if counts.loaded else NOTHING_TRACED


def _compiles(evidence: Evidence) -> Finding:
    counts, graphs = evidence.counts, max(1, evidence.counts.graphs)
    wanted = counts.distinct_pieces if evidence.variant == "piecewise" else graphs
    loaded = f"; {counts.loaded} came compiled out of a cache" if counts.loaded else ""
    action = "one piece was compiled more than once"
    if counts.compiles < wanted:
        action = "the backend returned something that Inductor did not generate: it fell back to eager"
    return finding(
        "compiles",
        evidence.variant,
        counts.compiles == wanted > 0 and not counts.loaded,
        f"Inductor compiled {counts.compiles} graph(s) into {counts.kernels} kernel(s), expected {wanted}{loaded}",
        action=SHARED_CACHE if counts.loaded else action,
    )


def _executed(evidence: Evidence) -> Finding:
    counts = evidence.counts
    per_call = counts.pieces // max(1, counts.graphs) if evidence.variant == "piecewise" else 1
    wanted = per_call * evidence.plain_calls
    return finding(
        "executed",
        evidence.variant,
        counts.compiled_calls >= wanted > 0,
        f"compiled code ran {counts.compiled_calls} time(s) in {evidence.plain_calls} call(s) without graphs, "
        f"expected at least {wanted}",
        action="calls were answered without compiled code: Dynamo ran them eagerly",
    )


def _piecewise_checks(evidence: Evidence) -> tuple[Finding, ...]:
    model, counts, variant = evidence.model, evidence.counts, evidence.variant
    if evidence.without_graphs:
        skipped = ("captures", "replays", "covered_sizes", "addresses")
        return (_pieces(evidence), *(_skipped(check, variant, evidence.without_graphs) for check in skipped))
    sizes = len(model.capture_sizes)
    replays = counts.pieces * evidence.graph_calls // max(1, counts.graphs)
    return (
        _pieces(evidence),
        finding(
            "captures",
            variant,
            counts.captures == counts.pieces // max(1, counts.graphs) * sizes > 0,
            f"{counts.captures} capture(s) = {counts.pieces} piece(s) x {sizes} size(s) expected",
            action="some piece or size has no graph: it would run without one, silently",
        ),
        finding(
            "replays",
            variant,
            counts.replays == replays > 0,
            f"{counts.replays} replay(s) of pieces in {evidence.graph_calls} call(s), expected {replays}",
            action="calls that should have replayed graphs ran something else",
        ),
        finding(
            "covered_sizes",
            variant,
            set(model.capture_sizes) <= set(counts.captured_sizes),
            f"captured sizes {counts.captured_sizes}, largest call {model.largest}",
            action="capture the sizes that are declared, the largest above all",
        ),
        finding(
            "addresses",
            variant,
            not counts.moved_inputs,
            f"{len(counts.moved_inputs)} input(s) of captured pieces moved after capture"
            + (f"; {len(counts.copied_inputs)} copied before each replay" if counts.copied_inputs else ""),
            counts.moved_inputs,
            "a replay reads the old address: keep the tensor in place (write into an `out` argument, copy_ into weights)",
        ),
    )


def _pieces(evidence: Evidence) -> Finding:
    model, counts = evidence.model, evidence.counts
    per_graph = counts.pieces // max(1, counts.graphs)
    summary = (
        f"{counts.pieces} piece(s), {counts.distinct_pieces} distinct, {counts.splitting_ops} splitting op call(s)"
    )
    if counts.empty_pieces:
        summary, action = (
            f"{summary}; without compute: {', '.join(counts.empty_pieces)}",
            "an empty graph would be captured",
        )
    elif per_graph == 1 and not model.splitting_ops:
        captured = f": {', '.join(counts.captured_ops)}" if counts.captured_ops else ""
        summary = f"{summary}; splitting_ops is empty, so that everything is captured{captured}"
        action = "name the ops that must stay eager in splitting_ops, or allow 'pieces' with the reason"
    else:
        action = "the graph was not split"
    ok = not counts.empty_pieces and (per_graph > 1 or counts.splitting_ops > 0 or bool(counts.missing_ops))
    return finding("pieces", evidence.variant, ok, summary, action=action)
