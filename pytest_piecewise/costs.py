"""Measures what a case costs: builds made only for that, counted, or timed in pairs with the machine to themselves."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_piecewise import machine_lock, ratios
from pytest_piecewise.records import BuildRecord, Case, Costs, Metric, Ratio, Sample, Settings, to_plain
from pytest_piecewise.workers import OnTick, Worker

WAIT_SECONDS = 900.0
"""How long a timing waits for the machine. What it waits for are other builds, of minutes each."""
COMPILED = ("full", "piecewise")
UNMEASURED = "could not be measured"
"""In the note on a build that failed only when it was to be measured."""


def measure_costs(
    case: Case, settings: Settings, worker: Worker, on_tick: OnTick, is_doubtful: Callable[[Ratio], bool]
) -> Costs:
    """Everything that `settings.costs` asks for. Ratios that are doubtful are measured once more, with twice the pairs,
    and what that says counts."""
    bench = Bench(case, settings, worker, on_tick)
    try:
        metrics = bench.work()
        if settings.costs != "ratios":
            return Costs(level=settings.costs, metrics=metrics, notes=tuple(bench.notes))
        pairs = ratios.PAIRS[settings.tier]
        samples = bench.sample(pairs)
        found = _ratios(samples)
        doubtful = {ratio.name for ratio in found if is_doubtful(ratio)}
        if doubtful:
            again = bench.sample(2 * pairs)
            second = {ratio.name: ratio for ratio in _ratios(again) if ratio.name in doubtful}
            found = [second.get(ratio.name, ratio) for ratio in found]
            samples += again
        return Costs(
            level=settings.costs,
            metrics=metrics,
            samples=tuple(samples),
            ratios=tuple(found),
            notes=tuple(bench.notes),
        )
    except machine_lock.Busy:
        reason = f"the machine was not free for {WAIT_SECONDS:g} s; ratios are gated only where nothing else is built"
        return Costs(level="work", metrics=metrics, absent={"ratios": reason}, notes=tuple(bench.notes))
    finally:
        bench.close()


def _ratios(samples: Sequence[Sample]) -> list[Ratio]:
    names = {metric.name for sample in samples for metric in sample.metrics}
    sizes = sorted(int(size) for name in names for size in re.findall(r"^step_(\d+)$", name))
    return list(ratios.ratios(samples, ratios.specs(sizes or [0])))


class Bench:
    """Where one case's builds are measured, with the directory that holds their caches."""

    def __init__(self, case: Case, settings: Settings, worker: Worker, on_tick: OnTick) -> None:
        self._case, self._settings, self._worker, self._on_tick = case, settings, worker, on_tick
        self._folder = Path(tempfile.mkdtemp(prefix="piecewise-costs-"))
        self._made = 0
        self.notes: list[str] = []

    def work(self) -> tuple[Metric, ...]:
        """Work of a cold and of a warm build of each variant, with what the warm one found in its caches."""
        found: list[Metric] = []
        for variant in COMPILED:
            caches = self._caches()
            for cache in ("cold", "warm"):
                record = self._build(variant, cache, caches, counted=True)
                prefix = f"{variant}." + ("warm_" if cache == "warm" else "")
                kinds = ("work", "calls") if cache == "cold" else ("work", "calls", "count")
                found += [
                    Metric(name=prefix + metric.name, kind=metric.kind, value=metric.value)
                    for metric in record.metrics
                    if metric.kind in kinds and (metric.kind != "count" or metric.name.startswith("cache_"))
                ]
            shutil.rmtree(caches)
        return tuple(found)

    def sample(self, pairs: int) -> list[Sample]:
        """One round more than `pairs`, since the first is not used; between two of them others may come in."""
        return [sample for number in range(pairs + 1) for sample in self.round(number, ratios.order_of(number))]

    def round(self, number: int, order: Sequence[ratios.Side]) -> list[Sample]:
        """One build of each side in this order, with the machine to themselves. A warm one comes after its cold one."""
        self._on_tick("", f"waiting for the machine, round {number}", 0.0)
        found = []
        with machine_lock.alone(timeout=WAIT_SECONDS):
            caches = self._caches()
            for variant, cache in order:
                record = self._build(variant, cache, caches / variant, counted=False)
                found.append(Sample(round=number, variant=variant, cache=cache, metrics=record.metrics))
            shutil.rmtree(caches)
        return found

    def _caches(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="caches-", dir=self._folder))

    def _build(self, variant: str, cache: str, caches: Path, *, counted: bool) -> BuildRecord:
        self._made += 1
        task = {
            "kind": "cost",
            "variant": variant,
            "case": to_plain(self._case),
            "settings": to_plain(self._settings),
            "state": cache,
            "caches": str(caches),
            "counted": counted,
        }
        folder = self._folder / f"build-{self._made}"
        record = self._worker.do(task, folder, self._settings, self._on_tick)
        shutil.rmtree(folder, ignore_errors=True)
        self.notes += [f"{cache} {variant}: {note}" for note in record.notes]
        if record.outcome != "ok":
            self.notes.append(f"{cache} {variant} {UNMEASURED}: {record.findings[0].summary}")
        return record

    def close(self) -> None:
        """Removes what was made."""
        shutil.rmtree(self._folder, ignore_errors=True)
