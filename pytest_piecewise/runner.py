"""Runs cases: every variant, the reference and the comparison, each as a task of its own."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_piecewise import hooks
from pytest_piecewise.findings import without_noise_of_eager
from pytest_piecewise.located import FOLLOWED, Localization
from pytest_piecewise.records import (
    CACHE_STEPS,
    TIERS,
    VARIANTS,
    BuildRecord,
    Case,
    CaseResult,
    Comparison,
    Finding,
    Settings,
    Status,
    to_plain,
)
from pytest_piecewise.workers import OnTick, Worker


def run_case(case: Case, settings: Settings, worker: Worker, on_tick: OnTick) -> CaseResult:
    """Builds every variant and the reference, each by itself, and compares them."""
    folder = Path(tempfile.mkdtemp(prefix="piecewise-case-"))
    try:
        return _run_case(case, settings, worker, on_tick, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def skip_case(case: Case, settings: Settings, reason: str) -> CaseResult:
    """The result of a case whose engine cannot build it here."""
    return result_of(case, settings, [], [Finding(check="build", status=Status.SKIP, summary=reason)])


def _run_case(case: Case, settings: Settings, worker: Worker, on_tick: OnTick, folder: Path) -> CaseResult:
    tasks = tasks_of(case)
    if settings.tier != TIERS[0]:  # the check `cache` is too dear for every change
        tasks += cache_tasks(case)
    records, found = do_tasks(case, settings, worker, on_tick, folder, tasks)
    findings = without_noise_of_eager(found)
    failed = localizable(findings, [item for record in records for item in record.comparisons])
    result = result_of(case, settings, records, findings)
    if settings.localize == "off":
        return result
    located = _localize(case, settings, worker, on_tick, folder, failed)
    return dataclasses.replace(result, localizations=with_company(located, result.builds))


def tasks_of(case: Case) -> list[tuple[str, str]]:
    """What a case consists of, as `(kind of task, variant)`."""
    variants = getattr(hooks.find_engine(case.engine), "variants", VARIANTS)
    return [("build", variant) for variant in variants] + [("reference", ""), ("comparison", "")]


def cache_tasks(case: Case) -> list[tuple[str, str]]:
    """The builds of the check `cache`; none for an engine that does not say that it uses Inductor's."""
    kept = getattr(hooks.find_engine(case.engine), "inductor_cache", False)
    return [("cache", step) for step in CACHE_STEPS] if kept else []


def do_tasks(
    case: Case,
    settings: Settings,
    worker: Worker,
    on_tick: OnTick,
    folder: Path,
    tasks: Sequence[tuple[str, str]],
    caches: Path | None = None,
) -> tuple[list[BuildRecord], list[Finding]]:
    """Does tasks of a case in order, in `folder`, and collects what they say.

    Each has an Inductor cache of its own: what one left must not change what another costs. With `caches` it is kept there,
    under the name of the build, and one that is there already is used.
    """
    records: list[BuildRecord] = []
    findings: list[Finding] = []
    for kind, variant in tasks:
        name = f"cache {variant}" if kind == "cache" else variant or kind
        without = [
            record.variant for record in records if record.outcome != "ok" and record.variant in ("eager", "reference")
        ]
        if without:
            reason = f"not done, since {' and '.join(without)} did not end well"
            findings.append(Finding(check="build", status=Status.SKIP, variant=name, summary=reason))
            continue
        task = {"kind": kind, "variant": variant, "case": to_plain(case), "settings": to_plain(settings)}
        task |= {"cache": str(caches / name)} if caches else {}
        record = worker.do(task, folder / name, settings, on_tick)
        records.append(record)
        if record.outcome == "ok" and kind == "build":
            done = f"built and taken through {record.calls} calls"
            findings.append(Finding(check="build", status=Status.PASS, variant=name, summary=done))
        findings += record.findings
    return records, findings


def localize_result(result: CaseResult, settings: Settings, worker: Worker) -> tuple[Localization, ...]:
    """Where the failures of a case that ran before begin."""
    failures = localizable(result.findings, [item for build in result.builds for item in build.comparisons])
    folder = Path(tempfile.mkdtemp(prefix="piecewise-localize-"))
    try:
        located = _localize(result.case, settings, worker, lambda variant, phase, seconds: None, folder, failures)
        return with_company(located, result.builds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _localize(
    case: Case, settings: Settings, worker: Worker, on_tick: OnTick, folder: Path, failed: Failed
) -> tuple[Localization, ...]:
    """For every variant whose comparisons failed, where that begins; each in a child of its own."""
    found: list[Localization] = []
    segmented = getattr(hooks.find_engine(case.engine), "segmented", False)
    for variant, failures in failed.items():
        if not segmented:
            found.append(unlocated(variant, failures, f"engine {case.engine!r} does not show its segments"))
            continue
        plain = {check: [to_plain(item) for item in items] for check, items in failures.items()}
        task = {"kind": "localize", "variant": variant, "case": to_plain(case), "settings": to_plain(settings)}
        record = worker.do(task | {"failures": plain}, folder / f"localize-{variant}", settings, on_tick)
        why = "; ".join(item.summary for item in record.findings)
        found += record.localizations or [unlocated(variant, failures, f"the search for the place did not end: {why}")]
    return tuple(found)


def with_company(located: Sequence[Localization], builds: Sequence[BuildRecord]) -> tuple[Localization, ...]:
    """The localizations, each with what became of the other builds of the case."""
    wrong = {item.variant for item in located}
    made = [build.variant for build in builds if build.outcome == "ok" and build.variant in VARIANTS]

    def said(item: Localization) -> Iterator[str]:
        for other in made:
            if other == item.variant:
                continue
            if other in wrong:
                yield f"{other} fails, too"
            elif item.check in _HELD_TO[other]:
                yield f"{other} is right"

    return tuple(dataclasses.replace(item, notes=(*item.notes, *said(item))) for item in located)


_OUTPUT_CHECKS = ("equivalence", "exact", "answer")
_HELD_TO = {"eager": ("answer",), "full": _OUTPUT_CHECKS, "piecewise": _OUTPUT_CHECKS}
"""By which of the checks that can be followed a variant's outputs are held to something outside of it."""

Failed = Mapping[str, Mapping[str, Sequence[Comparison]]]
"""Failed comparisons by variant and check."""


def localizable(findings: Iterable[Finding], comparisons: Sequence[Comparison]) -> Failed:
    """Failed checks that have a place, with their failed comparisons. What the model allows has not failed."""
    found: dict[str, dict[str, list[Comparison]]] = {}
    for item in findings:
        if item.status is Status.FAIL and item.check in FOLLOWED:
            mine = [c for c in comparisons if not c.ok and (c.check, c.variant) == (item.check, item.variant)]
            found.setdefault(item.variant, {})[item.check] = mine
    return found


def unlocated(variant: str, failures: Mapping[str, Sequence[Comparison]], why: str) -> Localization:
    """What is said of a failure that cannot be followed."""
    return Localization(
        variant=variant,
        check=next(iter(failures)),
        phase="",
        size=0,
        cause="unavailable",
        summary=why,
    )


def result_of(
    case: Case, settings: Settings, records: Sequence[BuildRecord], findings: Sequence[Finding]
) -> CaseResult:
    """The record of a case out of what its tasks reported."""
    known = {key: value for record in records for key, value in record.environment.items()}
    return CaseResult(
        case=case,
        seed=settings.seed,
        platform=known.pop("platform", ""),
        revision=known.pop("revision", ""),
        graph_kind=next((record.graph_kind for record in records if record.graph_kind), ""),
        findings=tuple(findings),
        builds=tuple(
            dataclasses.replace(record, findings=(), environment={})
            for record in records
            if record.variant not in CACHE_STEPS and not record.variant.startswith("cache ")
        ),
        comparisons=tuple(item for record in records if record.variant == "comparison" for item in record.comparisons),
        environment=known,
    )


def probe(case: Case, settings: Settings, worker: Worker) -> BuildRecord:
    """Whether the case can be run as declared, from a child that builds nothing."""
    folder = Path(tempfile.mkdtemp(prefix="piecewise-probe-"))
    task = {"kind": "probe", "variant": "", "case": to_plain(case), "settings": to_plain(settings)}
    try:
        return worker.do(task, folder / "probe", settings, lambda variant, phase, seconds: None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
