"""Compiled code out of a cache: cold, warm, from a copied directory, and with another configuration in a shared one.

Each step is the work of one child, which compares its bits with those that earlier steps left in the case's folder.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._dynamo.utils import counters
from torch._inductor.custom_graph_pass import CustomGraphPass

from pytest_piecewise.bitwise import bit_comparison
from pytest_piecewise.engines import Build, Request
from pytest_piecewise.engines.tracing import inductor_patches
from pytest_piecewise.findings import allowed, describe_comparison
from pytest_piecewise.protocol import calls
from pytest_piecewise.records import CACHE_STEPS, BuildRecord, Finding, Status

FACTOR = 1.25
"""What the changed configuration multiplies results by: exact in every dtype, and far beyond any rounding."""


@dataclass(frozen=True, slots=True)
class Step:
    """One build: in which directory, a copy of which, with the changed configuration or not, and what it must equal."""

    directory: str
    copy_of: str = ""
    changed: bool = False
    equals: str = ""
    """The step whose bits it must have; empty for one that sets them."""
    hits: bool = False
    """Whether everything must come out of the cache, or nothing."""


STEPS: Mapping[str, Step] = dict(
    zip(
        CACHE_STEPS,
        (
            Step("shared"),
            Step("shared", equals="cold", hits=True),
            Step("moved", copy_of="shared", equals="cold", hits=True),
            Step("other", changed=True),
            Step("shared", changed=True, equals="changed"),
            Step("other", equals="cold"),
        ),
        strict=True,
    )
)
"""In the order in which they are done, each in a process of its own."""


class Scaled(CustomGraphPass):
    """Multiplies every floating-point result of a compiled graph: the one field of the configuration that changes."""

    def __init__(self, other: Any = None) -> None:
        self._other = other

    def __call__(self, graph: fx.Graph) -> None:
        """Changes the graph in place."""
        if self._other is not None:
            self._other(graph)
        (output,) = graph.find_nodes(op="output")
        results = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
        with graph.inserting_before(output):
            output.args = (tuple(self._scaled(graph, node) for node in results),)

    def _scaled(self, graph: fx.Graph, node: Any) -> Any:
        value = node.meta.get("val") if isinstance(node, fx.Node) and node.op == "call_function" else None
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return node
        scaled = graph.call_function(torch.ops.aten.mul.Tensor, (node, FACTOR))
        scaled.meta.update(val=value)
        return scaled

    def uuid(self) -> Any:
        """What stands for the pass in a cache key."""
        return ("scaled", FACTOR, self._other.uuid() if self._other is not None else None)


def run_step(step: str, request: Request, make: Callable[[Request], Build], folder: Path) -> BuildRecord:
    """Builds the piecewise variant in the step's directory, and compares two calls of it."""
    wanted = STEPS[step]
    directory = folder / wanted.directory
    if wanted.copy_of:
        shutil.copytree(folder / wanted.copy_of, directory)
    directory.mkdir(exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory)
    model = request.model
    if wanted.changed:
        patches = inductor_patches(model)
        scaled = Scaled(patches.get("post_grad_custom_post_pass"))
        model = dataclasses.replace(model, inductor_config=dict(patches) | {"post_grad_custom_post_pass": scaled})
    build = make(dataclasses.replace(request, model=model))
    try:
        build.prepare()
        found = counters["inductor"]
        hits, misses, bypassed = (found[f"fxgraph_cache_{what}"] for what in ("hit", "miss", "bypass"))
        outputs: dict[str, torch.Tensor] = {}
        for call in (calls(model, request.seed)[0], calls(model, request.seed)[1]):
            outputs |= {f"{call.phase}: {name}": tensor.cpu() for name, tensor in build.run(call).items()}
    finally:
        build.close()
    torch.save(outputs, folder / f"{step}.outputs")
    if bypassed:
        reason = f"Inductor bypasses its cache for {bypassed} graph(s)"
        finding = Finding(check="cache", status=Status.SKIP, variant="piecewise", summary=reason)
    else:
        finding = _judged(step, outputs, folder, request, hits, misses)
    return BuildRecord(variant=f"cache {step}", outcome="ok", findings=allowed(model, [finding]))


def _judged(
    step: str, outputs: dict[str, torch.Tensor], folder: Path, request: Request, hits: int, misses: int
) -> Finding:
    wanted, problems = STEPS[step], []
    if wanted.hits and (misses or not hits):
        problems.append("something was compiled again that lay in the cache")
    if not wanted.hits and not wanted.changed and wanted.equals == "" and hits:
        problems.append("something came out of a cache that was empty")
    if wanted.equals:
        other = torch.load(folder / f"{wanted.equals}.outputs")
        call = calls(request.model, request.seed)[0]
        item = bit_comparison("cache", "piecewise", wanted.equals, call, outputs, other)
        if not item.ok:
            problems.append(describe_comparison(item))
    summary = f"{step}: {hits} hit(s), {misses} miss(es)"
    summary += f", bits as {wanted.equals}" if wanted.equals and not problems else ""
    return Finding(
        check="cache",
        status=Status.FAIL if problems else Status.PASS,
        variant="piecewise",
        summary=f"{summary}; {'; '.join(problems)}" if problems else summary,
        action="the key of a compiled artefact says too little (another configuration's was served) or too much (a path, a "
        "process): look at what went into it"
        if problems
        else "",
    )
