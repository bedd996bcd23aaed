"""What is asked of one build, and what it found: cases, settings, calls, comparisons, findings, metrics."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pytest_piecewise.located import Localization


class Status(enum.StrEnum):
    """What one check says. STALE is better than the baseline, NEW has no baseline; both ask for an update."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    FAIL = "FAIL"
    STALE = "STALE"
    NEW = "NEW"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A metric that is not within its gate, or has none. `stored` and `found` are texts, since counts, hashes and ratios
    stand in one column; empty where there is no value."""

    metric: str
    gate: str
    status: Status
    stored: str = ""
    found: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check says of one variant: `summary` is one line with numbers, `action` says what to do next."""

    check: str
    status: Status
    summary: str
    variant: str = ""
    detail: str = ""
    action: str = ""
    changes: tuple[Change, ...] = ()
    """Of a finding about a baseline: its metrics that are not as stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A measured number. `kind` is one of count, work and calls (Python calls: all of them, and those of a part), seconds,
    cpu_seconds, instructions, bytes, ratio, and capacity (the machine's, not gated)."""

    name: str
    kind: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A check that is known to fail, and why, as the marker of a test declares it."""

    check: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The request for one comparison: model x engine x dtype x device. `model` is the reference by which
    it is found, such as `module:attribute`, and `file` its source."""

    model: str
    file: str = ""
    name: str
    engine: str = "native"
    dtype: str = "float32"
    device: str = "cpu"
    tier: str = "fastcheck"
    expected: tuple[Expectation, ...] = ()

    @property
    def id(self) -> str:
        """Name of the case within a platform, also of its baseline file."""
        return f"{self.name}-{self.engine}-{self.dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line and pyproject.toml decide, once per session."""

    tier: str = "fastcheck"
    device: str = "auto"
    isolation: str = "process"
    timeout_seconds: float = 600.0
    memory_limit_bytes: int = 0
    gpu_memory_bytes: int = 0
    """What a build may use of a GPU that it shares with others; 0: it has the GPU for itself."""
    threads: int = 2
    seed: int = 0
    baselines: str = "baselines"
    update: str = ""
    """What an update stores, out of new, fix and trim; with commas."""
    update_reason: str = ""
    costs: str = "counts"
    """What is measured of costs: counts alone, work as well, or ratios as well."""
    update_to: str = ""
    """A directory for proposed baselines, in place of those that are compared with."""
    report: str = ""
    strict: bool = False
    canary: str = ""
    """The faults that are planted in each clean case, one at a time: `all`, a kind or a name; empty for none."""
    fault: str = ""
    """The planted fault that builds have, by name; empty but in a canary run and its tests."""
    localize: str = "op"
    """How closely a failed comparison is followed: one of `LOCALIZE`."""
    repro: str = ""
    """Where scripts that reproduce a failure go; empty: none are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One step of the protocol.

    `size` is the number of real rows; `padded_size` the captured size that a piecewise build runs it at (0: without
    graphs). `padding` is what lies in the rows between them. `weights` is 0 before and 1 after the weight update,
    and 2 after that of index tables and masks. `strided`: the arguments are no contiguous tensors.
    """

    index: int
    phase: str
    size: int
    padded_size: int
    seed: int
    padding: str = "zero"
    weights: int = 0
    judged: bool = True
    strided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One output of one call compared with its reference. `axis` is budget or bits; `ratio` is error / budget.

    A failing one has the `shape` of the output and a `heat` map of where it is wrong, see `heat.heat_map`.
    """

    check: str
    axis: str
    variant: str
    against: str
    call: int
    phase: str
    size: int
    output: str
    ok: bool
    elements: int
    wrong: int = 0
    error: float = 0.0
    budget: float = 0.0
    ratio: float = 0.0
    row_ratio: float = 0.0
    gain: float = 0.0
    index: tuple[int, ...] = ()
    found: str = ""
    expected: str = ""
    eager: str = ""
    reason: str = ""
    shape: tuple[int, ...] = ()
    heat: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Positive evidence of what one build really did. Counts are exact; lists name the culprits."""

    graphs: int = 0
    pieces: int = 0
    distinct_pieces: int = 0
    compiles: int = 0
    loaded: int = 0
    kernels: int = 0
    """Calls in the generated code of kernels: loop nests on a CPU, Triton's on a GPU, and those of libraries."""
    splitting_ops: int = 0
    captures: int = 0
    replays: int = 0
    compiled_calls: int = 0
    recompiles: tuple[str, ...] = ()
    graph_breaks: tuple[str, ...] = ()
    missing_ops: tuple[str, ...] = ()
    captured_ops: tuple[str, ...] = ()
    copied_inputs: tuple[str, ...] = ()
    moved_inputs: tuple[str, ...] = ()
    empty_pieces: tuple[str, ...] = ()
    mutated_inputs: tuple[str, ...] = ()
    captured_sizes: tuple[int, ...] = ()
    cache_hits: int = 0
    cache_misses: int = 0
    """Of torch's compilation caches on disk, by the build's own compilation. A cold build has no hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the split graph, in its order: a compiled piece with so many `ops`, or splitting ops that stay eager.

    A piece that is `same_as` an earlier one shares its compiled code, and costs no compile seconds of its own. One that
    calls the same ops as an earlier one and yet is not the same `differs` from it, in what this says.
    """

    name: str
    compiled: bool
    ops: int
    same_as: str = ""
    compile_seconds: float = 0.0
    differs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A measured part of a build: wall and CPU seconds (self and children) of the build's own process."""

    name: str
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRecord:
    """What one child process reports of one variant. `outcome` is ok, error, crash, timeout or memory.

    `fault` names what was planted, and `effects` how often it changed something: 0 means that it was not planted at all.
    """

    variant: str
    outcome: str
    findings: tuple[Finding, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    metrics: tuple[Metric, ...] = ()
    phases: tuple[Phase, ...] = ()
    counts: Counts = Counts()
    parts: tuple[Part, ...] = ()
    calls: int = 0
    kernels: tuple[str, ...] = ()
    """Names of the generated kernels, without the numbers that Inductor appends; repeated as often as they occur."""
    graph_kind: str = ""
    notes: tuple[str, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)
    """Metrics that could not be measured, by name, with the reason."""
    environment: dict[str, str] = field(default_factory=dict)
    last_output: str = ""
    fault: str = ""
    effects: int = 0
    localizations: tuple[Localization, ...] = ()
