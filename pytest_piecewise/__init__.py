"""Builds a model eagerly, with full-graph Inductor and piecewise with graphs, and says whether the three agree."""

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
