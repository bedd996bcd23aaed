"""Files of a report -> where a CI system shows them. What cannot be published is said in a line, and is no failure."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_piecewise.records import Report, Status
from pytest_piecewise.reports import markdown

CHOICES = ("auto", "buildkite", "github", "none")
AGENT_SECONDS = 120
CONTEXT_LENGTH = 100
GITHUB_BYTES = 1024 * 1024
"""What the summaries of one step may have together."""


def chosen(asked: str, environ: Mapping[str, str]) -> str:
    """The CI system that is meant: `auto` is the one that this runs in, or `none`."""
    if asked != "auto":
        return asked
    if environ.get("BUILDKITE") == "true":
        return "buildkite"
    return "github" if environ.get("GITHUB_ACTIONS") == "true" else "none"


def publish(
    system: str, report: Report, directory: Path, names: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """Publishes the files `names` of `directory`. Returns what was done, and what could not be done and why."""
    if system == "buildkite":
        return list(_buildkite(report, directory, names, environ))
    return [_github(report, environ)] if system == "github" else []


def _buildkite(report: Report, directory: Path, names: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    agent = shutil.which("buildkite-agent", path=environ.get("PATH"))
    if agent is None:
        yield f"nothing published: no buildkite-agent here; the files are in {directory}"
        return
    found = {result.status for result in report.results}
    style = "error" if Status.FAIL in found else "warning" if found & {Status.NEW, Status.STALE} else "success"
    step = (environ.get(name, "") for name in ("BUILDKITE_STEP_KEY", "BUILDKITE_PARALLEL_JOB"))
    context = "/".join(filter(None, ("piecewise", *step)))[:CONTEXT_LENGTH]
    annotate = [agent, "annotate", "--style", style, "--context", context]
    page = "artifact://report.html" if "report.html" in names else ""
    yield _agent(annotate, environ, directory, "annotation", markdown.render(report, page=page))
    yield _agent([agent, "artifact", "upload", ";".join(names)], environ, directory, f"{len(names)} artifacts")


def _agent(command: Sequence[str], environ: Mapping[str, str], directory: Path, what: str, text: str = "") -> str:
    try:
        done = subprocess.run(
            command,
            input=text.encode(),
            env=dict(environ),
            cwd=directory,
            capture_output=True,
            timeout=AGENT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{what} not published: {error}"
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"{what} not published: buildkite-agent ended with {done.returncode}{': ' + said[-1] if said else ''}"
    return f"{what} published"


def _github(report: Report, environ: Mapping[str, str]) -> str:
    place = environ.get("GITHUB_STEP_SUMMARY", "")
    if not place:
        return "summary not published: GITHUB_STEP_SUMMARY names no file"
    try:
        path = Path(place)
        room = GITHUB_BYTES - (path.stat().st_size if path.exists() else 0)
        if room < 2000:
            return "summary not published: the summaries of this step are full"
        with path.open("a", encoding="utf-8") as file:
            file.write(markdown.render(report, min(markdown.LIMIT, room)))
    except OSError as error:
        return f"summary not published: {error}"
    return "summary published"
