"""Costs in a session: what is measured beside the builds, what a result is held to, and the one writing at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from pytest_piecewise import exits
from pytest_piecewise.baselines import files, judge, update
from pytest_piecewise.costs import UNMEASURED, measure_costs
from pytest_piecewise.errors import BaselineError
from pytest_piecewise.hooks import find_engine
from pytest_piecewise.records import CaseResult, Finding, Ratio, Settings, Status
from pytest_piecewise.workers import OnTick, Worker

FILTERS = {
    "-k": ("keyword", ""),
    "-m": ("markexpr", ""),
    "--lf": ("lf", False),
    "--ff": ("failedfirst", False),
    "--sw": ("stepwise", False),
    "--deselect": ("deselect", None),
    "--ignore": ("ignore", None),
    "--ignore-glob": ("ignore_glob", None),
    "--piecewise-model": ("piecewise_models", []),
    "--piecewise-engine": ("piecewise_engine", None),
    "--piecewise-dtype": ("piecewise_dtype", None),
    "--piecewise-changed-files": ("piecewise_changed_files", None),
    "--piecewise-shard": ("piecewise_shard", None),
}
"""Options that leave tests out, with their place in pytest's options and what they are when not given."""


def filters_of(config: pytest.Config) -> list[str]:
    """What the command line leaves out: filtering options, and single tests instead of files and directories."""
    given = [option for option, (name, unset) in FILTERS.items() if config.getoption(name, unset) not in (unset, None)]
    return given + [argument for argument in config.invocation_params.args if "::" in str(argument)]


class Gate:
    """What a session measures of costs and holds them to. `filters` is what the command line leaves out, which forbids
    trimming."""

    def __init__(self, settings: Settings, root: Path, filters: Sequence[str]) -> None:
        self._settings = settings
        self._kinds = tuple(filter(None, settings.update.split(",")))
        self._reason, self._root, self._filters = settings.update_reason, root, tuple(filters)
        self._stored = Path(settings.baselines)
        self._proposals = root / settings.update_to if settings.update_to else None

    def measured(self, result: CaseResult, worker: Worker, on_tick: OnTick) -> CaseResult:
        """The result with its costs, as far as they are asked for and can be trusted."""
        if self._settings.costs == "counts" or self._not_trusted(result):
            return result

        def doubtful(ratio: Ratio) -> bool:
            return judge.is_doubtful(result, self._stored, ratio)

        return dataclasses.replace(result, costs=measure_costs(result.case, self._settings, worker, on_tick, doubtful))

    def _not_trusted(self, result: CaseResult) -> str:
        """Why costs of this case are not measured; empty if they can be."""
        if self._settings.isolation == "none":
            return "with --piecewise-isolation=none builds share one process"
        if not _built(result):
            return "a variant could not be built"
        if hasattr(find_engine(result.case.engine), "tasks"):
            return f"the engine {result.case.engine} measures its own"
        return ""

    def findings(self, result: CaseResult) -> tuple[Finding, ...]:
        """What baselines and costs say, and what was not measured of them and why."""
        if not result.builds:
            return ()
        found = self._judged(result) if _built(result) else ()
        if self._settings.isolation == "none":
            # Nothing measured in a process that has built something else gates a cost.
            found = tuple(item for item in found if item.check != "cost")
        reasons = self._not_measured(result)
        return (*found, *(Finding(check="cost", status=Status.SKIP, summary=f"not measured: {it}") for it in reasons))

    def _not_measured(self, result: CaseResult) -> list[str]:
        """Why some or all costs have no numbers: one line per reason."""
        if reason := self._not_trusted(result):
            return [reason]
        left = {"counts": "work and ratios", "work": "ratios"}.get(self._settings.costs, "")
        told = [f"{left} are left to higher tiers; --piecewise-costs=ratios measures them now"] if left else []
        told += result.costs.absent.values()
        return told + [note for note in dict.fromkeys(result.costs.notes) if UNMEASURED in note]

    def _judged(self, result: CaseResult) -> tuple[Finding, ...]:
        """The findings of baselines and costs. Where they are to be updated, what will be stored is held against.

        What got better stays STALE: whether it may be trimmed shows only when the session has ended. Proposals change no
        verdict.
        """
        found = judge.judge(result, self._stored)
        kinds = {"new", "fix"}.intersection(self._kinds)
        if self._proposals is not None or not kinds or any(item.check == "baseline_file" for item in found):
            return found
        planned = update.plan(result, self._stored, kinds, self._reason, self._root)
        if planned is None or not planned.changes:
            return found
        after = judge.judge_stored(result, planned.baseline, planned.path)
        told = {item.check: item.summary for item in found}
        return tuple(
            dataclasses.replace(item, summary=f"to be stored: {told.get(item.check, item.summary)}")
            if item.status is Status.PASS and told.get(item.check, "") != item.summary
            else item
            for item in after
        )

    def _may_be_stored(self, result: CaseResult) -> bool:
        """Only what is right is stored; a proposal may be what its own baseline refuses."""
        failed = [item for item in result.findings if item.status is Status.FAIL]
        return not failed or (self._proposals is not None and exits.kind_of(failed) != exits.REAL)

    def write(self, results: Iterable[CaseResult], *, passed: bool) -> list[str]:
        """Stores what was asked for, and says so. `passed`: the session came to its end and no test failed."""
        results, kinds, lines = list(results), self._kinds, []
        if "trim" in kinds and self._proposals is None and (self._filters or not passed):
            kinds = tuple(kind for kind in kinds if kind != "trim")
            why = f"{', '.join(self._filters)} left tests out" if self._filters else "the session did not pass"
            lines.append(f"baselines: nothing trimmed, since {why}")
        good = [result for result in results if self._may_be_stored(result)]
        written: list[str] = []
        count = 0
        for result in good:
            try:
                planned = update.plan(result, self._stored, kinds, self._reason, self._root)
            except BaselineError as error:
                lines.append(f"baselines: {error}")
                continue
            if planned is not None and planned.changes:
                path = planned.path
                if self._proposals is not None:
                    path = self._proposals / path.relative_to(self._stored)
                if files.write(path, planned.baseline):
                    count += 1
                    written += [f"  {path}", *_told(planned.changes)]
        what = f"proposed in {self._proposals}" if self._proposals else "written"
        lines.append(f"baselines: {count} {what}, {len(good) - count} unchanged, of {len(results)} case(s)")
        return lines + written


def _told(changes: Sequence[update.Change]) -> list[str]:
    """A line for every value that there was before; what is new is only counted."""
    lines = [
        f"    {item.metric}: {item.before} -> {'gone' if item.after is None else item.after} ({item.kind})"
        for item in changes
        if item.before is not None
    ]
    new = sum(item.before is None for item in changes)
    return lines + ([f"    {new} new"] if new else [])


def _built(result: CaseResult) -> bool:
    """Whether every variant came to its end; one may also fail by another check than `build`, such as graph breaks."""
    return all(build.outcome == "ok" for build in result.builds)
