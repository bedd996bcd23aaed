"""The module traced once more, by Dynamo alone: what an engine's graph should be."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pytest_piecewise.engines import Request
from pytest_piecewise.engines.builds import dummy_call
from pytest_piecewise.engines.layout import copy_graph
from pytest_piecewise.engines.prepare import make_inputs, sized_inputs
from pytest_piecewise.engines.tracing import mark_sizes
from pytest_piecewise.split import structural_lines


def retraced(request: Request, module: torch.nn.Module) -> fx.GraphModule | None:
    """The graph of a call at the largest captured size; None if Dynamo makes several of it. To be called `within` a call."""
    found: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, example_inputs: Any) -> Any:
        found.append(copy_graph(graph))
        return graph.forward

    call = dummy_call(request.model.capture_sizes[-1])
    inputs = make_inputs(request.model, call.size, call.seed, request.dtype, request.device)
    mark_sizes(request.model, inputs, sized_inputs(request.model, inputs, call.size))
    torch.compile(module, fullgraph=True, backend=keep)(*inputs)
    return found[0] if len(found) == 1 else None


def first_other_node(graph: fx.GraphModule, expected: fx.GraphModule) -> tuple[fx.Node, str] | None:
    """The first node of `graph` that is not as in `expected`, and what it is there."""
    pairs = zip(structural_lines(graph), structural_lines(expected), graph.graph.nodes, strict=False)
    return next(((node, wanted) for line, wanted, node in pairs if line != wanted and node.op != "placeholder"), None)
