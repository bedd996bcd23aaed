"""The nouns of a pipeline: steps, tiers and devices as the files declare them, and the change that they are chosen for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_piecewise.errors import PiecewiseError


class PipelineError(PiecewiseError):
    """A pipeline, or a file that it is made from, cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file something is said; shown as `file:line`."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A kind of machine, and the agent tags that select it, `queue` above all."""

    name: str
    agents: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """When steps run by themselves: always if no condition is given, else if one of them holds.

    Where none holds, they wait behind one block step with the text `block`, or are left out if that is empty.
    """

    name: str
    labels: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    block: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of `steps/*.yaml`. Job number `i` of a step with `results` owes the file `<results>/<i>/report.json`."""

    key: str
    label: str
    group: str
    place: Place
    commands: tuple[str, ...]
    source_file_dependencies: tuple[str, ...]
    timeout_in_minutes: int
    device: str
    tier: str
    depends_on: tuple[str, ...] = ()
    optional: bool = False
    parallelism: int = 0
    concurrency: int = 0
    concurrency_group: str = ""
    soft_fail: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    artifact_paths: tuple[str, ...] = ()
    results: str = ""
    reports: bool = False

    @property
    def expected(self) -> tuple[str, ...]:
        """The result files that the step owes, one per job."""
        return tuple(f"{self.results}/{job}/report.json" for job in range(max(1, self.parallelism)) if self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`ci_config.yaml` with all steps: everything that a pipeline is generated from, except the change."""

    name: str
    devices: Mapping[str, Device]
    tiers: Mapping[str, Tier]
    run_all_patterns: tuple[str, ...]
    run_all_exclude_patterns: tuple[str, ...]
    run_all_labels: tuple[str, ...]
    sources: tuple[str, ...]
    env: Mapping[str, str]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a pipeline is generated for. `files` is None where the difference could not be computed; `run_all` is why
    every step runs whatever has changed (empty: it does not); `without` names devices that this place does not have; `only`
    are the steps that run, with what they need, whatever else is said (empty: those that are due)."""

    files: tuple[str, ...] | None = None
    labels: frozenset[str] = frozenset()
    source: str = "webhook"
    branch: str = ""
    run_all: str = ""
    without: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()
