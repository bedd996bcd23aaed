"""Guards on shapes that a trace has left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pytest_piecewise.engines.pieces import Evidence


def note_shape_guards(evidence: Evidence) -> None:
    """Notes, while a graph is handed over, which guards on shapes its trace has left behind."""
    context = torch._guards.TracingContext.try_get()
    shapes = context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None
    if shapes is None:
        return
    evidence.shape_guards += [str(guard.expr) for guard in shapes.guards if not _says_only_size_one_apart(guard.expr)]


def _says_only_size_one_apart(expression: Any) -> bool:
    """Whether a guard on shapes is that two sizes are one, or holds for every size from 2 on; or one of several that are
    enough is (what may be broadcast: the sizes are one, or the second is 1)."""
    if type(expression).__name__ == "Or":
        return any(_says_only_size_one_apart(part) for part in expression.args)
    if type(expression).__name__ == "Equality" and all(argument.is_Symbol for argument in expression.args):
        return True
    if len(expression.free_symbols) != 1:
        return False
    (size,) = expression.free_symbols
    tried = (*range(2, 130), 1 << 10, 1 << 20, (1 << 20) + 1)
    return all(bool(expression.subs(size, number)) for number in tried)
