"""The report of a pipeline: fetched from where the CI keeps artifacts, and shown where people look."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_piecewise.ci.model import PipelineError
from pytest_piecewise.ci.results import Verdict, judge, read_owed
from pytest_piecewise.reports import document, files

AGENT_SECONDS = 120


def report(environ: Mapping[str, str], expected: Sequence[str], folder: Path | None, out: Path) -> int:
    """Judges the expected results in `folder`, or in the artifacts of this build, and shows the verdict: 1 if it is bad.

    All results as one report, for every kind of reader, are written into `out`.
    """
    with tempfile.TemporaryDirectory() as fetched:  # never the checkout: what lies there may be of an earlier build
        if folder is None:
            _fetch(environ, expected, Path(fetched))
        owed = read_owed(folder or Path(fetched), expected)
    verdict, reports = judge(owed), [item.report for item in owed if item.report]
    if reports:
        merged = document.merge(reports)
        document.write(merged, out)
        for reason in files.write_files(merged, out)[1]:
            sys.stderr.write(f"{reason}\n")
    sys.stdout.write(verdict.text)
    _show(environ, verdict)
    return 1 if verdict.style == "error" else 0


def _has_agent(environ: Mapping[str, str]) -> bool:
    return environ.get("BUILDKITE") == "true" and bool(shutil.which("buildkite-agent"))


def _fetch(environ: Mapping[str, str], expected: Sequence[str], folder: Path) -> None:
    if not _has_agent(environ):
        raise PipelineError(
            "expected buildkite-agent, to fetch results with, found none here; give the folder that they lie in: --from DIR"
        )
    for name in expected:
        command = ["buildkite-agent", "artifact", "download", name, f"{folder}/"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=AGENT_SECONDS)
        if done.returncode:  # which the verdict will say of that result
            sys.stderr.write(f"{name}: {done.stderr.strip()}\n")


def _show(environ: Mapping[str, str], verdict: Verdict) -> None:
    """As an annotation or step summary. What cannot be shown is said, and changes no verdict."""
    try:
        if _has_agent(environ):
            context = f"piecewise/{environ.get('BUILDKITE_STEP_KEY', 'report')}"[:100]
            command = ["buildkite-agent", "annotate", "--style", verdict.style, "--context", context]
            subprocess.run(command, input=verdict.text, text=True, check=True, timeout=AGENT_SECONDS)
        elif summary := environ.get("GITHUB_STEP_SUMMARY"):
            with Path(summary).open("a") as file:
                file.write(verdict.text)
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"not published: {error}\n")


def expected_from(environ: Mapping[str, str], given: Sequence[str], variable: str) -> list[str]:
    """The names of the results: as given, else from the environment, which a generated pipeline sets."""
    if given:
        return list(given)
    if variable not in environ:
        raise PipelineError(f"expected the names of results, as arguments or in {variable}, found neither")
    return environ[variable].split()
