"""The nouns that travel between processes: frozen, plain JSON, no torch and no pytest."""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pytest_piecewise.located import Localization

SCHEMA_VERSION = 1

TIERS = ("fastcheck", "full", "nightly")
VARIANTS = ("eager", "full", "piecewise")
COST_LEVELS = ("counts", "work", "ratios")
DTYPES = ("float32", "bfloat16", "float16")

CHECKS: Mapping[str, str] = {
    "build": "the variant could be built and ran through the protocol without an exception, crash, time-out or memory limit",
    "answer": "every variant gives the answer that the model knows by hand",
    "equivalence": "outputs and state agree with the float64 reference within the budget that eager's own error sets",
    "exact": "bool and integer outputs, and outputs declared exact, are equal in all variants",
    "bits_graphs": "the same compiled code gives the same bits with graphs on and off",
    "bits_full": "full and piecewise give the same bits in float32",
    "bits_repeat": "the same call made twice gives the same bits",
    "padding": "real rows have the same bits whatever is in the padding rows (zero, NaN, stale)",
    "kept_outputs": "outputs that the caller keeps are not overwritten by later calls",
    "addresses": "every tensor that a captured piece reads lies where it lay at capture",
    "second_build": "a second build in the same process leaves the first one's results as they were",
    "mutation": "inputs, weights and undeclared buffers are unchanged by a call",
    "aliasing": "outputs share memory with arguments, weights and each other exactly as in eager",
    "randomness": "a call leaves the random state of the process as an eager call does",
    "schema": "custom ops do what their schema declares (torch.library.opcheck)",
    "vacuity": "outputs depend on the inputs and on the weights by far more than the error that is tolerated",
    "graphs": "Dynamo traced exactly one graph",
    "graph_breaks": "Dynamo traced the model without a graph break",
    "recompiles": "nothing was compiled again after warm-up",
    "splitting_ops": "every declared splitting op is in the graph, and none is in a captured piece",
    "pieces": "the graph was split into non-empty pieces as declared",
    "compiles": "each distinct piece was compiled by Inductor, exactly once",
    "executed": "compiled code ran in every call: no silent fallback to eager",
    "captures": "every piece was captured for every size",
    "replays": "every replay that the protocol asked for was a replay",
    "covered_sizes": "the captured sizes include the largest size",
    "cache": "compiled code out of a cache is that of the same model and configuration, and is found where it should be",
    "baseline": "counts equal the stored baseline",
    "baseline_file": "the stored baseline can be read and belongs to the case",
    "cost": "work, memory and ratios of compile, capture and step times are within their gates",
    "canary": "every planted fault that applies to the case was caught (--piecewise-canary)",
}
"""Every check by name, with what a PASS of it says. `Model.allow` refers to these names."""


CACHE_STEPS = ("cold", "warm", "relocated", "changed", "changed in a shared directory", "unchanged after changed")
"""The builds that the check `cache` consists of, in order."""


LOCALIZE = ("op", "piece", "off")
"""How closely a failed comparison is followed: to the op, to the piece, or not at all."""

TASK, OUTPUT, PHASE, RESULT = "task.json", "output.txt", "phase.txt", "result.json"
"""Files in a child's folder: what it was asked, what it printed, the phase that it is in, what it found."""


CHILD = "PYTEST_PIECEWISE_CHILD"
"""Environment variable that is set in the server and in its children, and nowhere else."""


class Status(enum.StrEnum):
    """What one check says. STALE is better than the baseline, NEW has no baseline; both ask for an update."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    FAIL = "FAIL"
    STALE = "STALE"
    NEW = "NEW"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check says of one variant: `summary` is one line with numbers, `action` says what to do next."""

    check: str
    status: Status
    summary: str
    variant: str = ""
    detail: str = ""
    action: str = ""


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
    absent: dict[str, str] = dataclasses.field(default_factory=dict)
    """Metrics that could not be measured, by name, with the reason."""
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    last_output: str = ""
    fault: str = ""
    effects: int = 0
    localizations: tuple[Localization, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One fault of a canary run. `outcome` is caught, missed, `not planted` (it had no effect) or `not applicable`; of the
    one in which nothing is planted, `nothing found` or `false alarm`.

    `checks` are those that failed, each with the phase where it did first; `expected` those that were to; `reason` says why
    a fault does not apply, or what the first finding said; `ratio` is the largest error over its budget.
    """

    fault: str
    kind: str
    outcome: str
    checks: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    effects: int = 0
    ratio: float = 0.0
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One build that was made only to be measured. `round` is its pair's, the first of which, 0, is not used."""

    round: int
    variant: str
    cache: str
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One metric of two builds of this run against each other: the geometric mean of `pairs` ratios.

    `low` and `high` are the one-sided 95 % bounds, `spread` the standard deviation of the logarithms. `over` and `under` are
    the medians of the two sides, CPU seconds as multiples of the yardstick that was measured in the same process.
    """

    name: str
    value: float
    low: float
    high: float
    spread: float
    pairs: int
    over: float = 0.0
    under: float = 0.0
    parts: dict[str, float] = dataclasses.field(default_factory=dict)
    """Medians of the phases that the metric consists of, by `side phase`, in the same unit as the sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What was measured beside the case's own builds. `level` is counts (nothing), work or ratios.

    `metrics` are named `variant.metric`. `absent` has what was to be measured and was not, with the reason.
    """

    level: str = "counts"
    metrics: tuple[Metric, ...] = ()
    samples: tuple[Sample, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    absent: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """Everything known about one case: the only thing that reports are made from."""

    case: Case
    seed: int
    platform: str
    revision: str
    graph_kind: str
    findings: tuple[Finding, ...]
    builds: tuple[BuildRecord, ...]
    comparisons: tuple[Comparison, ...] = ()
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    costs: Costs = Costs()
    seconds: float = 0.0
    canary: tuple[Trial, ...] = ()
    localizations: tuple[Localization, ...] = ()

    @property
    def status(self) -> Status:
        """FAIL, else NEW, else STALE, else PASS; SKIP if nothing but skips was found."""
        found = {f.status for f in self.findings}
        for status in (Status.FAIL, Status.NEW, Status.STALE, Status.PASS):
            if status in found:
                return status
        return Status.SKIP


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened in a trend before the point at `index`: a step (`change` 0.1 is 10 % more), or another
    environment, where `change` is 0. `worse` is whether the step is a regression."""

    index: int
    text: str
    change: float = 0.0
    worse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The latest values of one measurement in the history, oldest first; the last is this run's. Times are ISO 8601."""

    case: str
    device: str = ""
    variant: str
    metric: str
    kind: str
    began: str
    ended: str
    values: tuple[float, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Which run of which code this was. `id` is unique to it; times are ISO 8601 in UTC; empty is what nobody knows."""

    id: str = ""
    started: str = ""
    commit: str = ""
    committed: str = ""
    branch: str = ""
    dirty: bool = False
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which of the collected tests that build models a session ran: those that a change can touch, of those one shard.

    `changed_files` is -1 where no list of them was given; `split` is the same in all shards of one run.
    """

    changed_files: int = -1
    collected: int = 0
    touched: int = 0
    chosen: int = 0
    shard: str = ""
    split: str = ""
    empty_allowed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One session: the content of report.json. `exit_code` is that of the session, ordinary tests included."""

    schema: int = SCHEMA_VERSION
    exit_code: int = 0
    run: Run = Run()
    selection: Selection = Selection()
    tier: str
    complete: bool
    left_out: tuple[str, ...] = ()
    """Options and single tests of the command line, by which tests were left out."""
    environment: dict[str, str]
    results: tuple[CaseResult, ...]
    trends: tuple[Trend, ...] = ()


T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """A record as dicts, lists, str, int, float and bool only; what json and xdist's channel can carry."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, str):
        return str.__str__(value)  # a StrEnum member would break xdist's serialiser
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has neither: NaN becomes null, and an infinity the largest number, which is still the worst of all.
        return None if math.isnan(value) else math.copysign(sys.float_info.max, value)
    return value


def from_plain(kind: type[T], data: Any) -> T:
    """The inverse of `to_plain` for a record type. Unknown keys are ignored: a newer writer may have added some."""
    return typing.cast(T, _restore(kind, data))


def _restore(kind: Any, data: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):  # of a record and None
        return None if data is None else _restore(args[0], data)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        known = {f.name: _restore(hints[f.name], data[f.name]) for f in dataclasses.fields(kind) if f.name in data}
        return typing.cast(Any, kind)(**known)
    if origin is tuple:
        return tuple(_restore(args[0], item) for item in data)
    if origin is dict:
        return {key: _restore(args[1], item) for key, item in data.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(data)
    if kind is float:
        return float("nan") if data is None else float(data)
    return data


def json_schema(kind: Any = Report) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a record, from its type hints and docstrings."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        required = [
            f.name
            for f in dataclasses.fields(kind)
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        return {
            "title": typing.cast(type, kind).__name__,
            "description": " ".join((kind.__doc__ or "").split()),
            "type": "object",
            "properties": {f.name: json_schema(hints[f.name]) for f in dataclasses.fields(kind)},
            "required": required,
        }
    if origin in (tuple, list):
        return {"type": "array", "items": json_schema(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": json_schema(args[1])}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [json_schema(arg) for arg in args]}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [str(member) for member in kind]}
    return {
        "type": {str: "string", bool: "boolean", int: "integer", float: ["number", "null"], type(None): "null"}[kind]
    }
