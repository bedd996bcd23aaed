"""How a module is given to Dynamo: one graph for every size, under the model's own configuration; refusals are findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import nn
from torch._dynamo import exc as dynamo_errors
from torch.fx.experimental import _config as symbolic_config

from pytest_piecewise.engines import describe
from pytest_piecewise.engines.pieces import Evidence
from pytest_piecewise.engines.prepare import call_context
from pytest_piecewise.errors import BuildError
from pytest_piecewise.models import Model
from pytest_piecewise.records import Call
from pytest_piecewise.structure import NOTHING_TRACED


def compile_dynamic(module: nn.Module, backend: Any, model: Model, evidence: Evidence) -> Any:
    """`torch.compile` of one graph for every size.

    Some traces leave a guard `size != 1` behind although size 1 was declared to be like others (a `reshape` that is a
    view for some strides). It is dropped, as vLLM drops all guards on shapes, and the results at size 1 are compared
    like all others. Any other guard on shapes is kept: a call that violates it is then seen to compile again.
    """

    def keep(guards: Sequence[Any]) -> list[bool]:
        may_drop = model.dynamic_shapes == "backed_size_oblivious" and not evidence.shape_guards
        return [not (may_drop and guard.guard_type == "SHAPE_ENV") for guard in guards]

    return torch.compile(module, fullgraph=True, backend=backend, options={"guard_filter_fn": keep})


def mark_sizes(model: Model, inputs: Sequence[Any], sized: dict[int, int]) -> None:
    """Tells Dynamo which dimensions are symbolic."""
    from torch._dynamo.decorators import mark_unbacked  # noqa: PLC0415 - in torch._dynamo itself only since 2.12

    mark = mark_unbacked if model.dynamic_shapes == "unbacked" else torch._dynamo.mark_dynamic
    for index, dimension in sized.items():
        mark(inputs[index], dimension)


@contextmanager
def compiling(model: Model) -> Iterator[None]:
    """The configuration under which the model is traced and compiled."""
    oblivious = model.dynamic_shapes == "backed_size_oblivious"
    with (
        refusals(),
        inductor_config.patch(inductor_patches(model)),
        symbolic_config.patch(backed_size_oblivious=oblivious),  # type: ignore[attr-defined]  # put there at run time
    ):
        yield


@contextmanager
def compiling_within(model: Model, call: Call) -> Iterator[None]:
    """The metadata of a call, and the configuration in which the model is compiled."""
    with compiling(model), call_context(model, call):
        yield


def inductor_patches(model: Model) -> dict[str, Any]:
    """The model's own Inductor configuration."""
    return dict(model.inductor_config() if callable(model.inductor_config) else model.inductor_config)


@contextmanager
def refusals() -> Iterator[None]:
    """Within it, what Dynamo refuses to trace becomes a finding."""
    try:
        yield
    except dynamo_errors.FailOnRecompileLimitHit as error:
        raise BuildError("recompiles", f"Dynamo hit its recompile limit: {describe(error)}") from error
    except (dynamo_errors.Unsupported, dynamo_errors.UserError) as error:
        raise BuildError(
            "graph_breaks",
            f"Dynamo cannot trace the model as one graph: {describe(error)}",
            detail=str(error),
            action="remove the graph break, or register what breaks it as a custom op",
        ) from error
    except RuntimeError as error:
        if "no compiled frames" not in str(error):  # older torch runs eagerly without a word: the counts then say so
            raise
        raise BuildError("graphs", f"Dynamo traced nothing: {describe(error)}", action=NOTHING_TRACED) from error
