"""Who builds a variant. An engine is chosen by name through the `piecewise_engine` hook; `native` needs only torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pytest_piecewise.models import Model
from pytest_piecewise.records import Call, Case, Counts

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pytest_piecewise.measure import Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an engine is asked to build, in the process that will own it."""

    model: Model
    variant: str
    dtype: torch.dtype
    device: torch.device
    seed: int
    meter: Meter
    observed: bool = False
    """Whether the build will be looked into: then it keeps its graphs, and has what `layout.Segmented` says."""


class Build(Protocol):
    """One variant of one model, alive in one process. Born in `Engine.build`, dead in `close`.

    It may also have `parts` (`records.Part` of the split graph), `kernels` (names of the generated kernels, as often as they
    are called), and `stepping(size)`, a context manager that gives the bare step at a captured size for a clock to time.
    """

    variant: str
    graph_kind: str
    """`cuda graphs`, `recorded graphs`, or empty for a variant without graphs."""
    module: nn.Module

    def prepare(self) -> None:
        """Compiles and, for a variant with graphs, captures every capture size, largest first. State stays as it was."""

    def run(self, call: Call, *, graphs: bool = True) -> dict[str, torch.Tensor]:
        """The outputs of one call by name, real rows only, in memory that no later call writes.

        `graphs=False` runs the same compiled code at the same padded size without replaying.
        """

    @property
    def counts(self) -> Counts:
        """Evidence so far."""

    @property
    def pool_bytes(self) -> int:
        """Bytes held by the graph pool."""

    def close(self) -> None:
        """Releases graphs and memory."""


class Engine(Protocol):
    """Builds variants. Engine modules import torch, vLLM and the like inside `build`, in the child.

    An engine may also have `variants`, the names of those that it builds; `reference(request)`, the module whose outputs in
    float64 the variants' are judged by, where that is not the eager one; and `tasks()`, a module with a `run_variant` and a
    `run_comparison` of its own in place of those of `engines.tasks`; and `segmented`, true if its builds are
    `layout.Segmented` where that is asked for: only then is it said where a failure begins.
    """

    name: str
    preload: tuple[str, ...]
    """Modules that a warm server of the engine's own imports before it forks, beside the model's."""

    def unsupported(self, case: Case) -> str | None:
        """Why this engine cannot build the case here, or None: then it is skipped. Asked in the parent, without torch."""

    def environ(self, case: Case) -> Mapping[str, str]:
        """Environment variables that the child must have before it imports anything."""

    def build(self, request: Request) -> Build:
        """The variant, not yet prepared."""


def describe(value: Any) -> str:
    """One line of an exception or value, for a finding's summary."""
    return " ".join(str(value).split())[:400]
