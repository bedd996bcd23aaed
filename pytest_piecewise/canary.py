"""The canary run of one case: clean first, then every fault that applies to it, one at a time, and which check catches it.

Only what a fault touches is built again; the rest is that of the clean case, and builds start from its compiled code.
A planted nothing goes the same way first: what it finds would be a false alarm of the canary itself.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from pytest_piecewise.faults import Fault, chosen_faults
from pytest_piecewise.faults.catalogue import COMPILED
from pytest_piecewise.models import find_model
from pytest_piecewise.records import BuildRecord, Case, CaseResult, Counts, Finding, Settings, Status, Trial, to_plain
from pytest_piecewise.runner import cache_tasks, do_tasks, result_of, tasks_of
from pytest_piecewise.workers import OnTick, Worker

OUTCOMES = ("caught", "missed", "not planted", "not applicable")
CONTROL = "(none)"
"""The trial in which nothing is planted."""
WORK_MARGIN = 0.01
"""The share by which Python calls during a compilation may differ between two builds, as for stored baselines."""
POOL_SLACK = 1.1
"""A graph pool this many times the clean one is caught by the baseline check, as are counts that differ at all."""

MAX_SIDE_BY_SIDE = 8
"""Trials at a time, however many processors there are: each takes as much memory as a build."""

Attempt = Callable[[Worker], Trial]


def run_canary(
    case: Case, settings: Settings, worker: Worker, on_tick: OnTick, judge: Callable[[CaseResult], Sequence[Finding]]
) -> CaseResult:
    """The clean case's result with `canary` trials and one more finding, which fails if an applicable fault was missed.

    `judge` adds what a session says of a clean result: its baseline, its costs.
    """
    folder = Path(tempfile.mkdtemp(prefix="piecewise-canary-"))
    try:
        faults = chosen_faults(settings.canary)
        tasks = tasks_of(case)
        if any("cache" in fault.variants for fault in faults):
            tasks += cache_tasks(case)
        records, findings = do_tasks(case, settings, worker, on_tick, folder / "clean", tasks, caches=folder / "caches")
        clean = result_of(case, settings, records, findings)
        clean = dataclasses.replace(clean, findings=(*clean.findings, *judge(clean)))
        bad = [item.check for item in clean.findings if item.status is Status.FAIL]
        if bad:
            reason = f"nothing was planted, since the clean case fails: {', '.join(dict.fromkeys(bad))}"
            skipped = Finding(check="canary", status=Status.SKIP, summary=reason)
            return dataclasses.replace(clean, findings=(*clean.findings, skipped))
        canary = _Canary(case, settings, on_tick, folder, clean)
        trials = tuple(side_by_side(canary.attempts(faults), worker, _own_processors()))
        return dataclasses.replace(clean, canary=trials, findings=(*clean.findings, canary_finding(trials)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def canary_finding(trials: Sequence[Trial]) -> Finding:
    """Whether every fault that took effect was caught, with the numbers."""
    number = {outcome: sum(trial.outcome == outcome for trial in trials) for outcome in OUTCOMES}
    missed = [trial.fault for trial in trials if trial.outcome == "missed"]
    alarms = [trial for trial in trials if trial.fault == CONTROL and trial.checks]
    summary = f"{number['caught']} of {number['caught'] + number['missed']} planted faults caught"
    summary += f"; {number['not planted']} had no effect here, {number['not applicable']} do not apply"
    summary += f"; missed: {', '.join(missed)}" if missed else ""
    if alarms:
        summary = f"with nothing planted, on the same path, failed: {', '.join(alarms[0].checks)}; {alarms[0].reason}"
    return Finding(
        check="canary",
        status=Status.FAIL if missed or alarms else Status.PASS,
        summary=summary,
        detail="\n".join(f"{t.fault}: expected {' or '.join(t.expected)}" for t in trials if t.outcome == "missed"),
        action="nothing was found where something is wrong: see what the fault does with `pytest-piecewise faults`"
        if missed
        else "",
    )


def side_by_side(attempts: Sequence[Attempt], worker: Worker, number: int) -> Iterator[Trial]:
    """The trials that attempts give, in their order: `number` at a time, each with a worker of its own."""
    with ExitStack() as stack:
        crew = [worker]
        for _ in range(min(number, MAX_SIDE_BY_SIDE, len(attempts)) - 1):
            if (other := worker.alike()) is not None:
                crew.append(stack.enter_context(closing(other)))
        if len(crew) == 1:
            yield from (attempt(worker) for attempt in attempts)
            return
        free: SimpleQueue[Worker] = SimpleQueue()
        for member in crew:
            free.put(member)

        def done(attempt: Attempt) -> Trial:
            member = free.get()
            try:
                return attempt(member)
            finally:
                free.put(member)

        pool = ThreadPoolExecutor(len(crew))
        try:
            yield from pool.map(done, attempts)
        except BaseException:  # Ctrl-C among them: what the others do is not waited for
            pool.shutdown(wait=False, cancel_futures=True)
            for member in crew:
                member.close()
            raise
        pool.shutdown()


def _own_processors() -> int:
    """How many processors there are for this process: under xdist its share of them."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


@dataclass(frozen=True, slots=True)
class _Canary:
    case: Case
    settings: Settings
    on_tick: OnTick
    folder: Path
    clean: CaseResult

    def attempts(self, faults: Sequence[Fault]) -> list[Attempt]:
        """One without a fault, then one for each: what is to be done with a worker."""
        model = find_model(self.case.model, self.case.file)
        known = {variant or kind for kind, variant in tasks_of(self.case)}
        known |= {kind for kind, _ in cache_tasks(self.case)} | ({"cost"} if "piecewise" in known else set())
        counts = next((build.counts for build in self.clean.builds if build.variant == "piecewise"), Counts())

        def reason(fault: Fault) -> str:
            unbuilt = (
                "" if set(fault.variants) & known else f"{self.case.engine} builds no {' or '.join(fault.variants)}"
            )
            return fault.inapplicable(self.case, model, counts) or unbuilt

        return [self._control, *(partial(self._attempt, fault, reason(fault)) for fault in faults)]

    def _control(self, worker: Worker) -> Trial:
        trial = self._try(worker, CONTROL, "", COMPILED, cached=True)
        return dataclasses.replace(trial, outcome="false alarm" if trial.checks else "nothing found")

    def _attempt(self, fault: Fault, reason: str, worker: Worker) -> Trial:
        if reason:
            trial = Trial(fault=fault.name, outcome="not applicable", reason=reason, kind=fault.kind)
        else:
            trial = self._try(worker, fault.name, fault.name, fault.variants, cached=fault.cached)
        return dataclasses.replace(trial, kind=fault.kind, expected=fault.caught_by)

    def _try(self, worker: Worker, name: str, planted: str, touched: Sequence[str], *, cached: bool) -> Trial:
        begin, folder = time.monotonic(), self.folder / (planted or "control")
        folder.mkdir()
        try:
            if touched == ("cost",):
                records, findings = self._measure(worker, folder, planted)
            else:
                records, findings = self._build(worker, folder, planted, touched, cached=cached)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        findings += self._against_clean(records)
        failed = [item for item in findings if item.status is Status.FAIL]
        effects = sum(record.effects for record in records)
        ended = any(record.outcome in ("crash", "timeout", "memory") for record in records)  # without a word of effects
        counts = bool(effects or ended or not planted)
        outcome = "not planted" if not counts else "caught" if failed else "missed"
        return Trial(
            fault=name,
            kind="",
            outcome=outcome,
            checks=tuple(dict.fromkeys(_with_phase(item, records) for item in failed)) if counts else (),
            effects=effects,
            ratio=_worst(records),
            reason=f"{failed[0].check}: {failed[0].summary}" if failed else "",
            seconds=time.monotonic() - begin,
        )

    def _build(
        self, worker: Worker, folder: Path, planted: str, touched: Sequence[str], *, cached: bool
    ) -> tuple[list[BuildRecord], list[Finding]]:
        """Builds what the fault touches, beside the clean outputs of the rest."""
        for path in (self.folder / "clean").iterdir():
            if path.suffix in (".pt", ".stale") and path.stem not in touched:
                (folder / path.name).symlink_to(path)
        caches = folder / "caches"
        if cached and (self.folder / "caches").is_dir():
            shutil.copytree(self.folder / "caches", caches)

        def on_tick(variant: str, phase: str, seconds: float) -> None:
            self.on_tick(f"{planted or 'nothing'} planted in {variant}", phase, seconds)

        settings = dataclasses.replace(self.settings, fault=planted)
        *tasks, comparison = [
            (kind, variant) for kind, variant in tasks_of(self.case) if (variant or kind) in (*touched, "comparison")
        ]
        if "cache" in touched:
            tasks += self._cache_tasks(folder)
        records, findings = do_tasks(self.case, settings, worker, on_tick, folder, tasks, caches=caches)
        if touched != ("cache",) and all(record.outcome == "ok" for record in records):
            more, said = do_tasks(self.case, settings, worker, on_tick, folder, [comparison])
            records, findings = [*records, *more], [*findings, *said]
        return records, findings

    def _measure(self, worker: Worker, folder: Path, planted: str) -> tuple[list[BuildRecord], list[Finding]]:
        """The work of two compilations, one clean and one not: Python calls, which hardly vary between builds."""
        records = []
        for number, fault in enumerate(("", planted)):
            task = {
                "kind": "cost",
                "variant": "piecewise",
                "case": to_plain(self.case),
                "state": "cold",
                "counted": True,
            }
            task |= {"settings": to_plain(dataclasses.replace(self.settings, fault=fault))}
            task |= {"caches": str(folder / f"caches-{number}")}
            records.append(worker.do(task, folder / f"cost-{number}", self.settings, self.on_tick))
        found = [item for record in records for item in record.findings]
        clean, now = (next((m.value for m in record.metrics if m.name == "work"), 0.0) for record in records)
        summary = f"work: {now:.0f} Python calls to compile, {clean:.0f} clean"
        if clean and abs(now / clean - 1) > WORK_MARGIN:
            found.append(Finding(check="cost", status=Status.FAIL, variant="piecewise", summary=summary))
        return records, found

    def _cache_tasks(self, folder: Path) -> list[tuple[str, str]]:
        """The builds of the check `cache` that a fault may change; what the others leave is taken from the clean case."""
        steps = folder / "cache-steps"
        steps.mkdir()
        (steps / "changed.outputs").symlink_to(self.folder / "clean" / "cache-steps" / "changed.outputs")
        return [task for task in cache_tasks(self.case) if task[1] not in ("changed", "unchanged after changed")]

    def _against_clean(self, records: Sequence[BuildRecord]) -> list[Finding]:
        """Counts and the graph pool against those of the clean builds, which serve as the baseline."""
        clean, now = _counts(self.clean.builds), _counts(records)
        lines = [f"{name}: {clean.get(name)} clean, now {now[name]}" for name in now if now[name] != clean.get(name)]
        before, after = _pool(self.clean.builds), _pool(records)
        if after > POOL_SLACK * before:
            lines.append(f"graph pool: {before / 2**20:.2f} MiB clean, now {after / 2**20:.2f} MiB")
        if not lines:
            return []
        return [Finding(check="baseline", status=Status.FAIL, variant="", summary="; ".join(lines))]


def _counts(builds: Sequence[BuildRecord]) -> dict[str, int]:
    return {
        f"{build.variant}.{metric.name}": int(metric.value)
        for build in builds
        for metric in build.metrics
        if metric.kind == "count" and not metric.name.startswith("cache_")  # trials start from the clean one's cache
    }


def _pool(builds: Sequence[BuildRecord]) -> float:
    return max((metric.value for build in builds for metric in build.metrics if metric.name == "graph_pool"), default=0)


def _worst(records: Sequence[BuildRecord]) -> float:
    """The largest error over its budget, of elements, rows and whole outputs."""
    made = [item for record in records for item in record.comparisons if item.check == "equivalence"]
    return max((max(item.ratio, item.row_ratio) for item in made), default=0.0)


def _with_phase(item: Finding, records: Sequence[BuildRecord]) -> str:
    """The check, and the phase of the protocol in which it failed first, if it has one."""
    phases = [
        comparison.phase
        for record in records
        for comparison in record.comparisons
        if not comparison.ok and (comparison.check, comparison.variant) == (item.check, item.variant)
    ]
    return f"{item.check} ({phases[0]})" if phases else item.check
