"""How often localisation names the planted place: faults of `tests/places` on models of fastcheck or suites/vllm.

    python scripts/localize_hits.py [--engine native] [--models NAME ...] [--jobs 1] [--most N] [--out FILE] [--docs FILE]

Every fault is planted alone and the case is run as a session runs it. A fault that no check sees is not counted. A piece
is hit if it is the planted one; an op if it is the planted one, or is fused with it in one kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pytest_piecewise import hooks
from pytest_piecewise.models import find_model
from pytest_piecewise.records import Case, CaseResult, Settings, Status
from pytest_piecewise.runner import run_case
from pytest_piecewise.workers import Children

MODELS = {
    "native": {
        "tiny-llama": "suites.fastcheck.test_llama:TINY_LLAMA",
        "encoder": "suites.fastcheck.test_encoder:ENCODER",
        "qk-norm": "suites.fastcheck.test_qk_norm:QK_NORM",
    },
    "vllm": {"vllm-known-answer": "suites.vllm.test_known_answer:VLLM_KNOWN_ANSWER"},
}
OPS = ("silu", "gelu", "rsqrt", "layer_norm", "linear", "mul", "add", "cat", "pow", "sub")
CHANGES = ("shifted", "scaled", "rounded")


@dataclass(frozen=True)
class Place:
    """A fault, and where it is. `op` is empty where the fault is in no op; `piece` is -1 for a splitting op."""

    model: str
    fault: str
    causes: tuple[str, ...]
    piece: int
    op: str = ""


@dataclass(frozen=True)
class Hit:
    """What came of one fault."""

    place: Place
    caught: bool
    cause: str = ""
    piece_hit: bool = False
    op_hit: bool = False
    reproduced: bool = False
    seconds: float = 0.0
    summary: str = ""


def pieces_of(reference: str) -> list[Any]:
    """The graphs of the pieces of a model."""
    import torch

    from pytest_piecewise.engines.layout import remember_names
    from pytest_piecewise.engines.prepare import make_inputs, make_module
    from pytest_piecewise.records import Call
    from pytest_piecewise.split import split_graph

    model = find_model(reference)
    module = make_module(model, torch.float32, torch.device("cpu"), 0)
    size = model.capture_sizes[-1]
    inputs = make_inputs(model, size, 1, torch.float32, torch.device("cpu"))
    for value in inputs:
        torch._dynamo.mark_dynamic(value, 0)
    found: list[Any] = []

    def keep(graph: Any, example_inputs: Any) -> Any:
        split = split_graph(remember_names(graph), model.splitting_ops)
        found.extend(getattr(split.module, segment.name) for segment in split.segments if segment.is_piece)
        return graph.forward

    call = Call(index=0, phase="", size=size, padded_size=size, seed=1)
    context = model.context(call) if model.context else torch.no_grad()
    with torch.no_grad(), context:
        torch.compile(module, backend=keep, fullgraph=True)(*inputs)
    return found


def places(name: str, reference: str) -> list[Place]:
    """The faults of one model: ops of every distinct piece, then memory, wiring and splitting ops."""
    from pytest_piecewise.engines.layout import TRACED_AS
    from pytest_piecewise.localize.ops import op_name
    from pytest_piecewise.split import structural_key

    made, seen = [], set()
    pieces = pieces_of(reference)
    for number, graph in enumerate(pieces):
        key = structural_key(graph)
        if key in seen:
            continue
        seen.add(key)
        nodes = [node for node in graph.graph.nodes if node.op.startswith("call_") and op_name(node) in OPS]
        for index, node in enumerate(nodes[:: max(1, len(nodes) // 4)]):
            fault = f"{CHANGES[index % len(CHANGES)]}@{node.meta[TRACED_AS]}"
            made.append(Place(name, fault, ("code",), number, op_name(node)))
    middle = len(pieces) // 2
    made += [Place(name, f"stale@{number}", ("stale",), number) for number in (1, middle)]
    made += [
        Place(name, f"swapped@{middle}", ("wiring",), middle),
        Place(name, f"skipped@{middle}", ("wiring", "stale"), middle),
    ]
    return [*made, Place(name, "op@1", ("splitting_op",), -1)]


def run(place: Place, case: Case, children: Children, settings: Settings) -> Hit:
    """Runs one case, and compares what was said with what was planted."""
    begin = time.monotonic()
    result: CaseResult = run_case(case, settings, children, lambda *_: None)
    seconds = time.monotonic() - begin
    failed = any(item.status is Status.FAIL for item in result.findings)
    located = next((item for item in result.localizations if item.variant == "piecewise"), None)
    if located is None:
        return Hit(
            place,
            failed,
            seconds=seconds,
            summary="; ".join(f.summary[:80] for f in result.findings if f.status is Status.FAIL),
        )
    named = located.op.partition(" ")[0]
    return Hit(
        place,
        failed,
        located.cause,
        located.cause in place.causes and located.piece == place.piece,
        bool(place.op) and (named == place.op or place.op in located.members),
        bool(located.repro and located.repro.reproduced),
        seconds,
        f"{located.summary} {located.op}",
    )


def table(hits: list[Hit]) -> list[str]:
    """Markdown: rates per model and kind of fault."""
    rows = [
        "| model | fault | faults caught | piece | op | script reproduces |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    groups: dict[tuple[str, str], list[Hit]] = {}
    for hit in hits:
        kind = hit.place.fault.partition("@")[0]
        groups.setdefault((hit.place.model, kind), []).append(hit)
        groups.setdefault(("all", "all"), []).append(hit)
    for (model, kind), items in sorted(groups.items(), key=lambda pair: (pair[0][0] == "all", pair[0])):
        caught = [hit for hit in items if hit.caught]
        with_op = [hit for hit in caught if hit.place.op]
        op = f"{sum(hit.op_hit for hit in with_op)}/{len(with_op)}" if with_op else ""
        pieces, scripts = sum(hit.piece_hit for hit in caught), sum(hit.reproduced for hit in caught)
        rows.append(
            f"| {model} | {kind} | {len(caught)}/{len(items)} | {pieces}/{len(caught)} | {op} | {scripts}/{len(caught)} |"
        )
    return rows


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=MODELS, default="native")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:INDEX")
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--gpu-memory", type=int, default=0, help="MiB that a build may use, so that several share a GPU"
    )
    parser.add_argument("--most", type=int, default=1000, help="of each model")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", type=Path, help="a file whose table between the hits markers is replaced")
    return parser.parse_args()


def main() -> None:
    """Runs all, prints the table, and writes what is asked for."""
    options = arguments()
    os.environ[hooks.PLUGINS_VARIABLE] = "tests.places.engines"
    chosen = {
        name: reference for name, reference in MODELS[options.engine].items() if name in (options.models or [name])
    }
    work = [(place, chosen[name]) for name in chosen for place in places(name, chosen[name])[: options.most]]
    preload = tuple(getattr(hooks.find_engine(options.engine), "preload", ()))
    hits: list[Hit] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        workers = [Children(preload) for _ in range(options.jobs)]
        free = list(workers)

        def one(item: tuple[Place, str]) -> Hit:
            children = free.pop()
            try:
                place, reference = item
                engine = f"{options.engine}@{place.fault}"
                case = Case(model=reference, name=place.model, engine=engine, device=options.device)
                repro = Path(folder) / place.fault.replace("@", "-")
                settings = Settings(repro=str(repro), gpu_memory_bytes=options.gpu_memory * 2**20)
                return run(place, case, children, settings)
            finally:
                free.append(children)

        for hit in pool.map(one, work):
            hits.append(hit)
            said = f"{hit.cause or 'nothing'} piece {'hit' if hit.piece_hit else 'MISSED'}"
            said += f", op {'hit' if hit.op_hit else 'MISSED'}" if hit.place.op else ""
            print(f"{hit.place.model} {hit.place.fault}: {said}, {'reproduced' if hit.reproduced else 'NOT reproduced'}, "
                  f"{hit.seconds:.0f} s; {hit.summary}", flush=True)  # fmt: skip
            if options.out:
                options.out.write_text(json.dumps([asdict(item) for item in hits], indent=1) + "\n")
        for children in workers:
            children.close()
    rows = table(hits)
    print("\n".join(rows))
    if options.docs:
        before, _, rest = options.docs.read_text().partition("<!-- hits -->\n")
        options.docs.write_text(
            before + "<!-- hits -->\n" + "\n".join(rows) + "\n<!-- /hits -->" + rest.partition("<!-- /hits -->")[2]
        )


if __name__ == "__main__":
    main()
