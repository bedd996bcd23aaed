"""What came of cases and of the whole run: trials, costs, results, the report."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_piecewise.located import Localization
from pytest_piecewise.records.builds import BuildRecord, Case, Comparison, Finding, Metric, Status
from pytest_piecewise.records.names import SCHEMA_VERSION


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
    parts: dict[str, float] = field(default_factory=dict)
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
    absent: dict[str, str] = field(default_factory=dict)
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
    environment: dict[str, str] = field(default_factory=dict)
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
