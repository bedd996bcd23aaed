"""Builds a model eagerly, with full-graph Inductor and piecewise with graphs, and says whether the three agree."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_piecewise.errors import BaselineError, BuildError, ModelError, PiecewiseError
    from pytest_piecewise.models import Model, llm_model
    from pytest_piecewise.records import Call, Case, CaseResult, Finding, Status

__all__ = [
    "BaselineError",
    "BuildError",
    "Call",
    "Case",
    "CaseResult",
    "Finding",
    "Model",
    "ModelError",
    "PiecewiseError",
    "Status",
    "llm_model",
]
__version__ = "0.1.0"

_MODULES = {
    "pytest_piecewise.errors": ("BaselineError", "BuildError", "ModelError", "PiecewiseError"),
    "pytest_piecewise.models": ("Model", "llm_model"),
    "pytest_piecewise.records": ("Call", "Case", "CaseResult", "Finding", "Status"),
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are used: the pytest plugin must cost an ordinary run nothing."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
