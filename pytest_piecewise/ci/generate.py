"""A change -> a pipeline as Buildkite takes it. A pure function: nothing is read, asked or guessed here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_piecewise.changes import EVERYTHING, touches
from pytest_piecewise.ci.model import Change, Config, PipelineError, Step

EXPECTED = "PIECEWISE_EXPECTED"
"""Environment variable of a reporting step: the result files that it must find, separated by spaces."""
RETRY = (
    {"exit_status": -1, "limit": 1},  # the agent was lost
    {"signal_reason": "agent_stop", "limit": 1},
    {"signal_reason": "agent_refused", "limit": 1},
    {"exit_status": 12, "limit": 1},  # the environment was unfit; a second agent may be better
)
"""Never a failed test: a retry would hide flaky numerics."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which steps run by themselves, and behind which block step each of the others waits."""

    running: tuple[Step, ...]
    blocked: Mapping[str, tuple[Step, ...]]


def plan(config: Config, change: Change) -> Plan:
    """The steps that run for a change, those behind blocks, and none of a tier that is left out."""
    wanted = {step.key for step in config.steps if not step.reports and _waits_behind(config, change, step) == ""}
    steps = {step.key: step for step in config.steps}
    if change.only:
        if unknown := change.only - steps.keys():
            raise PipelineError(f"expected keys of steps, found {min(unknown)!r}; known are {', '.join(steps)}")
        wanted = {key for key in change.only if not steps[key].reports}
    pending = list(wanted)
    while pending:  # what a running step depends on runs as well
        for key in _needed(steps, pending.pop()):
            if key not in wanted:
                wanted.add(key)
                pending.append(key)
    blocked: dict[str, tuple[Step, ...]] = {}
    for step in config.steps:
        block = _waits_behind(config, change, step)
        if block and step.key not in wanted and not step.reports and not change.only:
            blocked[block] = (*blocked.get(block, ()), step)
    reports = tuple(step for step in config.steps if step.reports)
    return Plan((*(step for step in config.steps if step.key in wanted), *reports), blocked)


def _needed(steps: Mapping[str, Step], key: str) -> Iterator[str]:
    for needed in steps[key].depends_on:
        if needed not in steps:
            raise PipelineError(
                f"{steps[key].place}: step {key!r} depends on {needed!r}, which no step file has; "
                f"known are {', '.join(steps)}"
            )
        yield needed


def _waits_behind(config: Config, change: Change, step: Step) -> str | None:
    """The key of the block that a step waits behind; empty if it runs by itself, None if it is left out."""
    tier, due = config.tiers[step.tier], _tier_is_due(config, change, step.tier)
    if not due:
        return f"block-{tier.name}" if tier.block else None
    scheduled = change.source == "schedule"
    if step.optional and not scheduled:
        return f"block-{step.key}"
    if scheduled or runs_everything(config, change) or touches_step(change, step):
        return ""
    return f"block-{step.key}"


def _tier_is_due(config: Config, change: Change, name: str) -> bool:
    tier = config.tiers[name]
    unconditional = not (tier.labels or tier.branches or tier.sources)
    labelled = change.labels & {*tier.labels, *config.run_all_labels} if tier.labels else frozenset[str]()
    return bool(unconditional or labelled or change.branch in tier.branches or change.source in tier.sources)


def runs_everything(config: Config, change: Change) -> str:
    """Why no step is left out for what has changed; empty if there is no reason."""
    if change.run_all:
        return change.run_all
    if change.files is None:
        return "the changed files are not known"
    if labels := change.labels & set(config.run_all_labels):
        return f"label {', '.join(sorted(labels))}"
    for name in change.files:
        if _any_match(config.run_all_patterns, name) and not _any_match(config.run_all_exclude_patterns, name):
            return f"{name} has changed"
    return ""


def _any_match(patterns: Iterable[str], name: str) -> bool:
    return any(re.match(pattern, name) for pattern in patterns)


def touches_step(change: Change, step: Step) -> bool:
    """Whether a changed file is one that the step declares, or the file that declares the step."""
    if EVERYTHING in step.source_file_dependencies:
        return True  # also where nothing has changed
    return any(touches(name, (*step.source_file_dependencies, step.place.file)) for name in change.files or ())


def generate(config: Config, change: Change) -> dict[str, Any]:
    """The pipeline for a change: steps by group, blocks before what waits behind them, the report last."""
    found = plan(config, change)
    running = [step for step in found.running if not step.reports]
    reports = [step for step in found.running if step.reports]
    groups: dict[str, list[dict[str, Any]]] = {}
    behind = {step.key: block for block, steps in found.blocked.items() for step in steps}
    made: set[str] = set()
    emitted = {step.key for step in running} | behind.keys()
    for step in config.steps:
        if step.key not in emitted:
            continue
        listed = groups.setdefault(step.group, [])
        block = behind.get(step.key)
        if block and block not in made:
            made.add(block)
            listed.append(_block(config, block, found.blocked[block]))
        listed.append(_command(config, change, step, after=(block,) if block else ()))
    for report in reports:
        listed = groups.setdefault(report.group, [])
        if running:
            listed.append(_report(config, change, report, running, ""))
        for tier in config.tiers:
            if waiting := [step for step in found.blocked.get(f"block-{tier}", ()) if step.results]:
                listed.append(_report(config, change, report, waiting, tier))
    pipeline: dict[str, Any] = {"env": dict(config.env)} if config.env else {}
    pipeline["steps"] = [{"group": group, "steps": steps} for group, steps in groups.items() if steps]
    return pipeline


def _block(config: Config, key: str, steps: tuple[Step, ...]) -> dict[str, Any]:
    tier = config.tiers.get(key.removeprefix("block-"))
    text = tier.block if tier and tier.block else f"Run {steps[0].label}"
    return {"block": text, "key": key, "depends_on": [], "blocked_state": "passed"}


def _command(config: Config, change: Change, step: Step, after: tuple[str, ...]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "label": step.label,
        "key": step.key,
        "commands": list(step.commands),
        "agents": dict(config.devices[step.device].agents),
        "depends_on": [*after, *step.depends_on],
        "timeout_in_minutes": step.timeout_in_minutes,
    }
    if step.device in change.without:
        made["skip"] = f"no agent for device {step.device} here"
    if step.parallelism:
        made["parallelism"] = step.parallelism
    if step.concurrency:
        made |= {"concurrency": step.concurrency, "concurrency_group": step.concurrency_group}
    if step.soft_fail:
        made["soft_fail"] = [{"exit_status": code} for code in step.soft_fail]
    if step.env:
        made["env"] = dict(step.env)
    if paths := [*([f"{step.results}/**/*"] if step.results else []), *step.artifact_paths]:
        made["artifact_paths"] = paths
    return made | {"retry": {"automatic": [dict(rule) for rule in RETRY]}}


def _report(config: Config, change: Change, report: Step, steps: list[Step], tier: str) -> dict[str, Any]:
    """The report on `steps`: after all of them, whatever their outcome, and told which result files they owe."""
    made = _command(config, change, report, after=tuple(step.key for step in steps))
    if tier:
        made |= {"key": f"{report.key}-{tier}", "label": f"{report.label} ({tier})"}
    expected = [name for step in steps if step.device not in change.without for name in step.expected]
    return made | {"allow_dependency_failure": True, "env": dict(report.env) | {EXPECTED: " ".join(expected)}}
