"""What is wrong with a pipeline that would not be seen when it runs: gates that cannot close, steps that never start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_piecewise.ci.document import Document
from pytest_piecewise.ci.model import PipelineError, Place
from pytest_piecewise.exits import CODES, COST, NEW

JOBS_PER_UPLOAD = 500
TIMING_ONLY = (CODES[COST], CODES[NEW])
"""Exit codes that may be soft: only cost regressions, only new baselines."""

_HIDING: tuple[tuple[str, str], ...] = (
    (r"\|\|\s*(true\b|:|exit 0\b)", "`|| true` makes the command pass whatever happens"),
    (r";\s*(true|:|exit 0)\s*$", "what follows `;` decides the outcome, not the test"),
    (r"\bset \+e\b", "`set +e` lets the step go on after a failure"),
    (r"\bfind\b.*-exec(dir)?\b.*(;|\+)", "`find -exec ... \\;` returns 0 when the command fails"),
    (r"\bxargs\b.*\bpytest\b", "xargs turns every exit code into 123; the codes 10 to 12 are lost"),
    (r"&\s*$", "a command in the background is waited for by nobody"),
)
_PIPE = re.compile(r"(?<![|>])\|(?![|&])")
_DOLLAR = re.compile(r"(?<!\$)(?:\$\$)*\$(?=[A-Za-z_{(])")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where, and what to do about it."""

    place: Place
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass(frozen=True, slots=True)
class Item:
    """One step of an uploaded pipeline and where it stands; steps of groups are items like others."""

    value: Mapping[str, Any]
    path: tuple[str | int, ...]

    @property
    def key(self) -> str:
        """Its name within the build; empty if it has none."""
        return str(self.value.get("key", ""))

    @property
    def needs(self) -> tuple[str, ...]:
        """Keys of the steps that come first."""
        found = self.value.get("depends_on") or []
        listed = [found] if isinstance(found, (str, dict)) else found
        return tuple(str(item.get("step") if isinstance(item, dict) else item) for item in listed)

    @property
    def commands(self) -> list[tuple[tuple[str | int, ...], Any]]:
        """Every command with its path. YAML may have made something else of one than a text."""
        for name in ("command", "commands"):
            found = self.value.get(name)
            if isinstance(found, str):
                return [((*self.path, name), found)]
            if isinstance(found, list):
                return [((*self.path, name, index), command) for index, command in enumerate(found)]
        return []


def items_of(document: Document) -> list[Item]:
    """The steps of a pipeline, those in groups included."""
    value = document.value
    steps = value.get("steps") if isinstance(value, dict) else value
    if not isinstance(steps, list):
        raise PipelineError(f"{document.place()}: expected a list of `steps`, found {type(value).__name__}")
    found = []
    for index, step in enumerate(steps):
        if isinstance(step, str):
            found.append(Item({step: None}, ("steps", index)))
        elif "group" in step:
            found += [Item(item, ("steps", index, "steps", at)) for at, item in enumerate(step.get("steps") or [])]
        else:
            found.append(Item(step, ("steps", index)))
    return found


def lint_pipeline(
    document: Document, *, queues: frozenset[str] | None = None, uploaded: frozenset[str] = frozenset()
) -> list[Problem]:
    """All problems of one pipeline. `queues` are those that have agents, `uploaded` keys that are already in the build."""
    items = items_of(document)
    found = [*_keys(document, items, uploaded), *_dependencies(document, items, uploaded), *_jobs(document, items)]
    for item in items:
        if item.commands:
            for check in (_timeout, _soft_fail, _retry, _commands, _environment):
                found += check(document, item)
            found += _queue(document, item, queues)
    return found


def _keys(document: Document, items: list[Item], uploaded: frozenset[str]) -> Iterator[Problem]:
    seen = {key: Place("this build", 0) for key in uploaded}
    for item in items:
        place = document.place(*item.path, "key")
        if not item.key:
            if "wait" not in item.value:
                yield Problem(
                    place, "a step without a key: nothing can depend on it, and its outcome has no name; add one"
                )
            continue
        if not re.fullmatch(r"[A-Za-z0-9_-]+", item.key):
            yield Problem(place, f"expected a key of letters, digits, '-' and '_', found {item.key!r}")
        if item.key in seen:
            before = seen[item.key]
            yield Problem(
                place, f"the key {item.key!r} is taken by {before if before.line else 'a step of this build'}"
            )
        seen[item.key] = place


def _dependencies(document: Document, items: list[Item], uploaded: frozenset[str]) -> Iterator[Problem]:
    needs = {item.key: set(item.needs) for item in items if item.key}
    for item in items:
        for name in item.needs:
            if name not in needs and name not in uploaded:
                place = document.place(*item.path, "depends_on")
                yield Problem(
                    place, f"step {item.key!r} depends on {name!r}, which no step has; it would wait for ever"
                )
    for key in cycle(needs):
        item = next(item for item in items if item.key == key)
        yield Problem(
            document.place(*item.path, "depends_on"), f"step {key!r} depends on itself, through others or not"
        )


def cycle(needs: Mapping[str, set[str]]) -> list[str]:
    """The nodes that cannot be ordered: those of circles, and those that wait for them."""
    left = {key: {name for name in names if name in needs} for key, names in needs.items()}
    while done := [key for key, names in left.items() if not names & left.keys()]:
        for key in done:
            del left[key]
    return sorted(left)


def _jobs(document: Document, items: list[Item]) -> Iterator[Problem]:
    jobs = sum(int(item.value.get("parallelism") or 1) for item in items if item.commands)
    if jobs > JOBS_PER_UPLOAD:
        yield Problem(document.place("steps"), f"{jobs} jobs; Buildkite takes {JOBS_PER_UPLOAD} in one upload")


def _timeout(document: Document, item: Item) -> Iterator[Problem]:
    if not item.value.get("timeout_in_minutes"):
        yield Problem(
            document.place(*item.path), f"step {item.key!r} has no timeout_in_minutes: a hang holds the agent"
        )


def _soft_fail(document: Document, item: Item) -> Iterator[Problem]:
    soft, place = item.value.get("soft_fail"), document.place(*item.path, "soft_fail")
    if soft in (None, False):
        return
    if not isinstance(soft, list):
        yield Problem(place, "`soft_fail: true` hides every failure; name exit codes: soft_fail: [{exit_status: 10}]")
        return
    for code in (rule.get("exit_status") for rule in soft):
        if code not in TIMING_ONLY:
            yield Problem(
                place, f"exit status {code!r} must not be soft: only {TIMING_ONLY} say that nothing else failed"
            )


def _retry(document: Document, item: Item) -> Iterator[Problem]:
    place, rules = document.place(*item.path, "retry"), (item.value.get("retry") or {}).get("automatic")
    rules = [rules] if isinstance(rules, dict) else rules
    if rules is True or any(
        isinstance(rule, dict) and "signal_reason" not in rule and _retries_failures(rule) for rule in rules or []
    ):
        yield Problem(place, "a retry of failed tests hides flaky numerics; retry exit statuses -1 and 12 only")
    listed = rules if isinstance(rules, list) else []
    lost = any(isinstance(rule, dict) and rule.get("exit_status") == -1 for rule in listed)
    if listed and not lost:
        yield Problem(place, "no retry of exit status -1: a lost agent fails the build")


def _retries_failures(rule: Mapping[str, Any]) -> bool:
    status = rule.get("exit_status", "*")
    return any(code == "*" or 0 < int(code) < 10 for code in (status if isinstance(status, list) else [status]))


def _commands(document: Document, item: Item) -> Iterator[Problem]:
    for path, text in item.commands:
        place = document.place(*path)
        if not isinstance(text, str):
            yield Problem(place, f"expected a command as a text, found {text!r}; put it in quotes")
            continue
        for line in text.splitlines():
            for pattern, why in _HIDING:
                if re.search(pattern, line):
                    yield Problem(place, f"{line.strip()!r}: {why}")
            if _PIPE.search(re.sub(r"'[^']*'|\"[^\"]*\"", "", line)) and "pipefail" not in text:
                yield Problem(place, f"{line.strip()!r}: a pipe without `set -o pipefail` hides the first exit code")
            yield from _dollars(place, line)


def _environment(document: Document, item: Item) -> Iterator[Problem]:
    for name, value in (item.value.get("env") or {}).items():
        yield from _dollars(document.place(*item.path, "env", name), str(value))


def _dollars(place: Place, text: str) -> Iterator[Problem]:
    if _DOLLAR.search(text):
        yield Problem(
            place, f"{text.strip()!r}: `$` is replaced at upload, by nothing if it is not set there; write `$$`"
        )


def _queue(document: Document, item: Item, queues: frozenset[str] | None) -> Iterator[Problem]:
    agents = item.value.get("agents") or {}
    queue = agents.get("queue") if isinstance(agents, dict) else None
    if queues is not None and queue is not None and queue not in queues:
        place = document.place(*item.path, "agents")
        yield Problem(place, f"no device has the queue {queue!r}; known are {', '.join(sorted(queues))}")
