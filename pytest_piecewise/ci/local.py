"""Runs a pipeline on this machine as Buildkite would: one job after the other, with a stub agent on the PATH."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest_piecewise
from pytest_piecewise.ci.agent import SPOOL
from pytest_piecewise.ci.document import read_text
from pytest_piecewise.ci.model import PipelineError
from pytest_piecewise.ci.upload import interpolate, steps_of

POLL_SECONDS = 0.05
TIMED_OUT = 255
"""Exit code of a job that was ended at its time limit."""
ENDED = ("passed", "soft_failed", "failed", "skipped", "blocked", "not run", "left out")
OUTCOMES = {"passed": "passed", "soft_failed": "soft_failed", "failed": "hard_failed", "not run": "errored"}
"""What the agent says of a step, by its state here."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one step ended: its state, why, and the exit codes of its jobs, the last attempt of each."""

    key: str
    label: str
    state: str
    reason: str = ""
    exit_codes: tuple[int, ...] = ()
    attempts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Build:
    """How a build ended. `passed` holds with blocked steps too: a block that nobody has opened is no failure."""

    passed: bool
    steps: tuple[Outcome, ...]
    spool: Path

    @property
    def annotations(self) -> Mapping[str, Mapping[str, Any]]:
        """What was annotated, by context."""
        path = self.spool / "annotations.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the caller decides: variables of the build, blocks to open (`all`: every one), uploaded steps to run (empty:
    all), and whether a real agent on the PATH is to parse what is uploaded."""

    environ: Mapping[str, str]
    unblock: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()
    real_agent: str = ""


class LocalBuild:
    """One build: its steps in order, and what has become of each."""

    def __init__(self, root: Path, spool: Path, choices: Choices, say: Callable[[str], None]) -> None:
        self._root, self._spool, self._choices, self._say = root, spool, choices, say
        self._steps: list[dict[str, Any]] = []
        self._ended: dict[str, Outcome] = {}
        self._environ = _job_environment(root, spool, choices.environ)
        _install_agent(spool)

    def run(self, pipeline: Path) -> Build:
        """Runs the pipeline, and whatever its steps upload, to the end."""
        text = interpolate(read_text(pipeline), self._environ)
        self._steps = steps_of(text, pipeline.name, frozenset())
        first = {step["key"] for step in self._steps}
        self._save()
        while ready := self._next():
            step, waits_for = ready
            outcome = self._settle(step, waits_for, known=first)
            self._ended[step["key"]] = outcome
            self._say(_line(outcome))
            self._save()
        if unknown := self._choices.only - self._ended.keys():
            raise PipelineError(f"--only: no step has the key {', '.join(sorted(unknown))}; there are "
                                f"{', '.join(self._ended)}")  # fmt: skip
        outcomes = tuple(self._ended[step["key"]] for step in self._steps)
        return Build(not any(item.state in ("failed", "not run") for item in outcomes), outcomes, self._spool)

    def _save(self) -> None:
        """What the agent reads: the keys that are taken, and outcomes."""
        (self._spool / "keys.json").write_text(json.dumps(sorted(step["key"] for step in self._steps)))
        known = {key: OUTCOMES[item.state] for key, item in self._ended.items() if item.state in OUTCOMES}
        (self._spool / "outcomes.json").write_text(json.dumps(known))

    def _next(self) -> tuple[dict[str, Any], list[Outcome]] | None:
        """The first step that has not ended and waits for nothing, with how those before it ended."""
        for index, step in enumerate(self._steps):
            if step["key"] not in self._ended:
                needs = self._needs(index)
                if all(key in self._ended for key in needs):
                    return step, [self._ended[key] for key in needs]
        return None

    def _needs(self, index: int) -> Sequence[str]:
        step = self._steps[index]
        if step["needs"] is not None:
            return list(step["needs"])
        before = self._steps[:index]
        if "wait" in step or "block" in step:
            return [item["key"] for item in before]
        barriers = [item["key"] for item in before if "wait" in item or "block" in item]
        return barriers[-1:]

    def _settle(self, step: dict[str, Any], waits_for: list[Outcome], known: set[str]) -> Outcome:
        """Runs a step if it is to be run, and says how it ended."""
        key, label = step["key"], str(step.get("label") or step.get("block") or step["key"])
        only = self._choices.only
        if only and key not in only and key not in known:
            return Outcome(key, label, "left out", "not in --only")
        if held := [item.key for item in waits_for if item.state == "blocked"]:
            return Outcome(key, label, "blocked", f"behind {', '.join(held)}")
        bad = [item.key for item in waits_for if item.state in ("failed", "not run")]
        if bad and not step.get("allow_dependency_failure") and not step.get("continue_on_failure"):
            return Outcome(key, label, "not run", f"{', '.join(bad)} did not pass")
        if "block" in step:
            if self._choices.unblock & {key, "all"}:
                return Outcome(key, label, "passed", "unblocked")
            return Outcome(key, label, "blocked", f"--unblock {key} opens it")
        if "wait" in step:
            return Outcome(key, label, "passed")
        if step.get("skip"):
            return Outcome(key, label, "skipped", str(step["skip"]))
        return self._run_step(step, label)

    def _run_step(self, step: dict[str, Any], label: str) -> Outcome:
        jobs = int(step.get("parallelism") or 0)
        codes, attempts = [], []
        for job in range(max(1, jobs)):
            more = {"BUILDKITE_PARALLEL_JOB": str(job), "BUILDKITE_PARALLEL_JOB_COUNT": str(jobs)} if jobs else {}
            attempt = 0
            while True:
                code = self._run_job(step, label, job, attempt, more)
                attempt += 1
                if code == 0 or not _retried(step, code, attempt):
                    break
                self._say(f"{step['key']}: exit code {code}, tried again")
            codes.append(code)
            attempts.append(attempt)
        return Outcome(step["key"], label, _state(step, codes), "", tuple(codes), tuple(attempts))

    def _run_job(self, step: dict[str, Any], label: str, job: int, attempt: int, more: Mapping[str, str]) -> int:
        key = step["key"]
        environ = self._environ | step["env"] | {
            "BUILDKITE_STEP_KEY": key, "BUILDKITE_LABEL": label, "BUILDKITE_JOB_ID": str(uuid.uuid4()),
            "BUILDKITE_RETRY_COUNT": str(attempt), **more,
        }  # fmt: skip
        logs = self._spool / "logs"
        logs.mkdir(exist_ok=True)
        log = logs / f"{key}-{job}-{attempt}.log"
        log.touch()
        environ["PIECEWISE_JOB_BEGAN"] = str(log.stat().st_mtime_ns)
        uploaded = set((self._spool / "uploads").glob("*.yaml"))
        self._say(f"--- {label}" + (f", job {job}" if more else ""))
        limit = float(step.get("timeout_in_minutes") or 0) * 60
        code = _run(step["commands"], environ, self._root, log, limit, self._say)
        self._insert(sorted(set((self._spool / "uploads").glob("*.yaml")) - uploaded), after=key)
        paths = step.get("artifact_paths") or []
        for pattern in [paths] if isinstance(paths, str) else paths:
            command = [str(self._spool / "bin/buildkite-agent"), "artifact", "upload", pattern]
            done = subprocess.run(command, env=environ, cwd=self._root, capture_output=True, text=True, check=False)
            if done.returncode:
                self._say(f"{key}: {done.stderr.strip()}")
        return code

    def _insert(self, uploads: Sequence[Path], after: str) -> None:
        """Uploaded steps come right after the one that uploads them."""
        at = next(index for index, step in enumerate(self._steps) if step["key"] == after) + 1
        for path in uploads:
            if self._choices.real_agent:
                _parse_for_real(self._choices.real_agent, path)
            taken = frozenset(step["key"] for step in self._steps)
            steps = steps_of(path.read_text(), path.name, taken)
            self._steps[at:at] = steps
            at += len(steps)


def _line(outcome: Outcome) -> str:
    codes = ", ".join(map(str, outcome.exit_codes))
    return (
        f"{outcome.key}: {outcome.state}"
        + f" (exit {codes})" * bool(codes)
        + f", {outcome.reason}" * bool(outcome.reason)
    )


def _state(step: Mapping[str, Any], codes: Sequence[int]) -> str:
    bad = [code for code in codes if code]
    soft = step.get("soft_fail")
    if not bad:
        return "passed"
    if soft is True or (isinstance(soft, list) and all(_named(soft, code) for code in bad)):
        return "soft_failed"
    return "failed"


def _named(rules: Sequence[Mapping[str, Any]], code: int) -> bool:
    return any(rule.get("exit_status") in ("*", code) for rule in rules)


def _retried(step: Mapping[str, Any], code: int, attempts: int) -> bool:
    """Whether the first rule that fits lets a job be tried again. Nothing here has a signal reason."""
    rules = (step.get("retry") or {}).get("automatic") or []
    rules = [{}] if rules is True else [rules] if isinstance(rules, dict) else rules
    for rule in rules:
        status = rule.get("exit_status", "*")
        fits = "*" in status or code in status if isinstance(status, list) else status in ("*", code)
        if fits and rule.get("signal_reason", "*") in ("*", "none"):
            return attempts <= int(rule.get("limit", 2))
    return False


def _run(
    commands: str, environ: Mapping[str, str], root: Path, log: Path, limit: float, say: Callable[[str], None]
) -> int:
    """The exit code of `bash -e -c commands`, whose output goes to `log` and, line by line, to `say`."""
    deadline = time.monotonic() + limit if limit else float("inf")
    with log.open("wb") as output, log.open(errors="replace") as shown:
        process = subprocess.Popen(
            ["/bin/bash", "-e", "-c", commands],
            cwd=root,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code, timed_out = None, False
        try:
            while code is None:
                time.sleep(POLL_SECONDS)
                code = process.poll()
                for line in shown:
                    say(f"    {line.rstrip()}")
                timed_out = code is None and time.monotonic() > deadline
                if timed_out:
                    say(f"ended after {limit:g} s, its time limit")
                    break
        finally:
            _kill(process)
    if timed_out or code is None:
        return TIMED_OUT
    return code if code >= 0 else 128 - code


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends what a job has left behind, as the end of its container would."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _install_agent(spool: Path) -> None:
    """A `buildkite-agent` that is this package's, whatever Python a job uses."""
    package = Path(pytest_piecewise.__file__).parent.parent
    (spool / "bin").mkdir(parents=True, exist_ok=True)
    script = spool / "bin/buildkite-agent"
    paths = shlex.quote(os.pathsep.join([str(package), *filter(None, sys.path)]))
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH={paths} exec {shlex.quote(sys.executable)} -m pytest_piecewise.ci.agent "$@"\n'
    )
    script.chmod(0o755)


def _job_environment(root: Path, spool: Path, given: Mapping[str, str]) -> dict[str, str]:
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("BUILDKITE", "GITHUB_"))}
    return outer | {
        "BUILDKITE": "true", "CI": "true", SPOOL: str(spool), "PATH": f"{spool / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "BUILDKITE_AGENT_ACCESS_TOKEN": "none", "BUILDKITE_BUILD_ID": str(uuid.uuid4()), "BUILDKITE_BUILD_NUMBER": "1",
        "BUILDKITE_PIPELINE_SLUG": "run-local", "BUILDKITE_BUILD_CHECKOUT_PATH": str(root.resolve()),
        "BUILDKITE_PULL_REQUEST": "false", "BUILDKITE_SOURCE": "ui", **given,
    }  # fmt: skip


def find_agent() -> str:
    """A real agent on the PATH; empty if there is none."""
    return shutil.which("buildkite-agent") or ""


def _parse_for_real(agent: str, path: Path) -> None:
    """The uploaded pipeline through the parser of a real agent, which sends nothing."""
    command = [agent, "pipeline", "upload", "--dry-run", "--reject-parse-warnings", "--no-interpolation", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise PipelineError(f"{agent} refuses {path}: {done.stderr.strip()}")
