"""What a build compiled, and what it compiled again: Dynamo's word beside the build's own evidence."""

from __future__ import annotations

from torch._dynamo.utils import counters, get_compilation_metrics

from pytest_piecewise.engines import describe
from pytest_piecewise.engines.pieces import Evidence
from pytest_piecewise.models import Model
from pytest_piecewise.records import Counts


class CompileWatch:
    """What was compiled again after warm-up, and why, and which graphs broke.

    That a graph was handed over again is this build's own evidence; the reasons are Dynamo's, newest last.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._warm_graphs: int | None = None
        self._breaks_before = sum(counters["graph_break"].values())
        self._cache_before = _cache_counters()

    def warm(self) -> None:
        """From here on every compilation is one too many."""
        self._warm_graphs = self._evidence.graphs

    @property
    def recompiles(self) -> tuple[str, ...]:
        """Reasons of compilations after warm-up."""
        late = 0 if self._warm_graphs is None else self._evidence.graphs - self._warm_graphs
        reasons = [entry.recompile_reason for entry in get_compilation_metrics() if entry.recompile_reason]
        known = [describe(reason) for reason in reasons[-late:]] if late else []
        return tuple(known + ["no reason given by Dynamo"] * (late - len(known)))

    @property
    def graph_breaks(self) -> tuple[str, ...]:
        """Dynamo's reasons of graph breaks."""
        if sum(counters["graph_break"].values()) == self._breaks_before:
            return ()
        return tuple(describe(reason) for reason in counters["graph_break"])

    @property
    def cache(self) -> tuple[int, int]:
        """Hits and misses of torch's compilation caches on disk since this watch began; a bypass is a miss."""
        hits, misses = (now - before for now, before in zip(_cache_counters(), self._cache_before, strict=True))
        return hits, misses


def _cache_counters() -> tuple[int, int]:
    """Inductor's cache of graphs, and AOTAutograd's round it, which on a hit leaves the other one alone."""
    inductor, autograd = counters["inductor"], counters["aot_autograd"]
    hits = inductor["fxgraph_cache_hit"] + autograd["autograd_cache_hit"]
    return hits, inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]


def counts_from(evidence: Evidence, watch: CompileWatch, model: Model) -> Counts:
    """The record of what was tallied."""
    declared = {op: op.partition(".")[0] for op in model.splitting_ops}
    found = set(evidence.splitting_ops)
    return Counts(
        graphs=evidence.graphs,
        pieces=evidence.pieces,
        distinct_pieces=len(evidence.distinct) or evidence.pieces,
        compiles=evidence.compiles if evidence.modules else 0,
        loaded=evidence.loaded,
        kernels=len(evidence.kernel_names),
        splitting_ops=len(evidence.splitting_ops),
        captures=evidence.captures,
        replays=evidence.replays,
        compiled_calls=evidence.compiled_calls,
        recompiles=watch.recompiles,
        graph_breaks=watch.graph_breaks,
        missing_ops=tuple(op for op, packet in declared.items() if not {op, packet} & found),
        captured_ops=tuple(evidence.captured_ops),
        copied_inputs=tuple(evidence.copied_inputs),
        moved_inputs=tuple(evidence.moved_inputs),
        empty_pieces=tuple(evidence.empty_pieces),
        mutated_inputs=tuple(evidence.mutated_inputs),
        captured_sizes=tuple(sorted(evidence.captured_sizes)),
        cache_hits=watch.cache[0],
        cache_misses=watch.cache[1],
    )
