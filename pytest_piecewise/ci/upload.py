"""What Buildkite does with an uploaded pipeline: variables replaced, keys checked, groups taken apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pytest_piecewise.ci.document import parse_document
from pytest_piecewise.ci.lint import JOBS_PER_UPLOAD, cycle, items_of
from pytest_piecewise.ci.model import PipelineError

_VARIABLE = re.compile(r"\$\$|\\\$|\$\{(?P<braced>\w+)(?:(?P<op>:?[-?])(?P<rest>[^}]*))?\}|\$(?P<plain>[A-Za-z_]\w*)")

STEP_KEYS = frozenset((
    "label", "name", "key", "id", "identifier", "command", "commands", "agents", "depends_on",
    "timeout_in_minutes", "artifact_paths", "parallelism", "concurrency", "concurrency_group", "soft_fail",
    "retry", "env", "skip", "allow_dependency_failure", "priority", "block", "blocked_state", "prompt",
    "fields", "wait", "continue_on_failure",
))  # fmt: skip
"""What is modelled here of a step. Anything else is refused: what is ignored could decide an outcome."""


def interpolate(text: str, environ: Mapping[str, str]) -> str:
    """Replaces `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME?message}`; `$$` and `\\$` give a dollar sign."""

    def value(match: re.Match[str]) -> str:
        if match.group(0) in ("$$", "\\$"):
            return "$"
        name, op, rest = match["braced"] or match["plain"], match["op"] or "", match["rest"] or ""
        found = environ.get(name)
        missing = found is None or (op.startswith(":") and found == "")
        if missing and op.endswith("?"):
            raise PipelineError(f"pipeline upload: ${name}: {rest or 'not set'}")
        return rest if missing and op.endswith("-") else found or ""

    return _VARIABLE.sub(value, text)


def steps_of(text: str, name: str, taken: frozenset[str]) -> list[dict[str, Any]]:
    """The steps of an uploaded pipeline as a flat list, each with a key and the environment of the pipeline.

    `taken` are the keys that the build has already; a key that stands twice, an unknown dependency, a circle, and a part
    that is not modelled are errors, as they are (or should be) where the pipeline is uploaded for real.
    """
    document = parse_document(text, name)
    shared = document.value.get("env") or {} if isinstance(document.value, dict) else {}
    found: list[dict[str, Any]] = []
    for index, item in enumerate(items_of(document)):
        step = dict(item.value)
        if unknown := step.keys() - STEP_KEYS:
            raise PipelineError(
                f"{document.place(*item.path)}: run-local does not model {', '.join(sorted(map(str, unknown)))}; "
                "it would be ignored here and not there"
            )
        step["key"] = item.key or f"unnamed-{len(taken)}-{index}"
        step["env"] = {str(key): str(value) for key, value in {**shared, **(step.get("env") or {})}.items()}
        step["needs"] = item.needs if "depends_on" in step else None
        if other := [command for _, command in item.commands if not isinstance(command, str)]:
            raise PipelineError(f"{document.place(*item.path)}: expected commands as texts, found {other[0]!r}")
        step["commands"] = "\n".join(command for _, command in item.commands)
        found.append(step)
    keys = [step["key"] for step in found]
    if repeated := sorted({key for key in keys if keys.count(key) > 1 or key in taken}):
        raise PipelineError(f"{name}: the key {repeated[0]!r} has already been used by another step in this build")
    needs = {step["key"]: set(step["needs"] or ()) for step in found}
    for key, names in needs.items():
        if unknown := names - needs.keys() - taken:
            raise PipelineError(f"{name}: step {key!r} depends on {min(unknown)!r}, which no step has")
    if circle := cycle(needs):
        raise PipelineError(f"{name}: steps {', '.join(circle)} wait for each other")
    jobs = sum(int(step.get("parallelism") or 1) for step in found if step["commands"])
    if jobs > JOBS_PER_UPLOAD:
        raise PipelineError(f"{name}: {jobs} jobs, at most {JOBS_PER_UPLOAD} are taken in one upload")
    return found
