"""COST: right, and dearer than it was."""

from __future__ import annotations

import time
from typing import Any

from pytest_piecewise.faults.catalogue import COMPILED, TWINS, fault
from pytest_piecewise.faults.plant import Plant


@fault("COST", "vllm#37919", "baseline", needs=(TWINS,))
def extra_distinct_piece(plant: Plant) -> None:
    """A constant that names the layer gets into a piece, which is compiled apart from its twins."""
    seen: list[str] = []

    @plant.wrap("engines.pieces.structural_key")
    def structural_key(original: Any, piece: Any) -> str:
        key: str = original(piece)
        repeated = key in seen
        plant.note(repeated)
        seen.append(key)
        return f"{key} of layer {len(seen)}" if repeated else key


@fault("COST", "vllm#26511", "cost", variants=("cost",))
def compile_slower(plant: Plant) -> None:
    """Compiling takes 30 % longer, by Python that has no effect on the code in the end."""

    @plant.wrap("engines.pieces.compile_counted")
    def compile_counted(original: Any, evidence: Any, compile_: Any) -> Any:
        begin = time.process_time()
        compiled = original(evidence, compile_)
        spent = time.process_time() - begin
        while time.process_time() < begin + 1.3 * spent:
            plant.note()
        return compiled


@fault("COST", "vllm#19579", "baseline", devices=("cuda",))
def pool_doubled(plant: Plant) -> None:
    """Every capture keeps a second block as large as its outputs in the graph pool."""

    @plant.wrap("capture.GraphPool.record")
    def record(original: Any, pool: Any, function: Any, arguments: Any, frozen: Any) -> Any:
        hoard: list[Any] = []

        def hoarding(*given: Any) -> Any:
            outputs = function(*given)
            flat = outputs if isinstance(outputs, (tuple, list)) else [outputs]
            hoard.extend(value.clone() for value in flat if hasattr(value, "clone"))
            return outputs

        replay, outputs, kept = original(pool, hoarding, arguments, frozen)
        plant.note()
        return (lambda: (hoard, replay())[1]), outputs, kept


@fault("COST", "pytorch#131192", "baseline", variants=COMPILED, cached=False)
def fusion_lost(plant: Plant) -> None:
    """Neighbouring operations are no longer fused: more kernels, the same results within rounding."""

    plant.set("torch._inductor.config.realize_opcount_threshold", 0)  # lowering joins pointwise operations by itself

    @plant.wrap("torch._inductor.scheduler.Scheduler.can_fuse")
    def can_fuse(original: Any, *asked: Any, **how: Any) -> bool:
        plant.note(original(*asked, **how))
        return False
