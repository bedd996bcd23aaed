"""A `buildkite-agent` for jobs of `run-local`: the commands that steps use, with the real limits. Others fail.

Run as `python -m pytest_piecewise.ci.agent`. What it is told lies in the directory that PIECEWISE_SPOOL names.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_piecewise.ci.document import read_text
from pytest_piecewise.ci.model import PipelineError
from pytest_piecewise.ci.upload import interpolate, steps_of

SPOOL = "PIECEWISE_SPOOL"
ANNOTATION_BYTES, CONTEXT_CHARACTERS, ARTIFACTS_PER_JOB = 1 << 20, 100, 5000
STYLES = ("success", "info", "warning", "error")
NOT_FOUND = 100
"""Exit code of `meta-data get` and `exists` for a key that has no value."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one agent command."""
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.does(parsed, Path(os.environ[SPOOL])))
    except PipelineError as error:
        sys.stderr.write(f"buildkite-agent (run-local): {error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="buildkite-agent", allow_abbrev=False)
    commands = parser.add_subparsers(required=True)
    annotate = commands.add_parser("annotate")
    annotate.set_defaults(does=_annotate)
    annotate.add_argument("body", nargs="?")
    annotate.add_argument("--context", default="default")
    annotate.add_argument("--style", default="")
    annotate.add_argument("--priority", type=int, default=3)
    annotate.add_argument("--append", action="store_true")
    artifact = commands.add_parser("artifact").add_subparsers(required=True)
    upload = artifact.add_parser("upload")
    upload.set_defaults(does=_upload)
    upload.add_argument("paths")
    download = artifact.add_parser("download")
    download.set_defaults(does=_download)
    download.add_argument("query")
    download.add_argument("destination", type=Path)
    download.add_argument("--step", default="*")
    data = commands.add_parser("meta-data").add_subparsers(required=True)
    for name, does in (("set", _set), ("get", _get), ("exists", _exists)):
        command = data.add_parser(name)
        command.set_defaults(does=does)
        command.add_argument("key")
        if name == "set":
            command.add_argument("value")
        if name == "get":
            command.add_argument("--default")
    pipeline = commands.add_parser("pipeline").add_subparsers(required=True).add_parser("upload")
    pipeline.set_defaults(does=_pipeline)
    pipeline.add_argument("file", nargs="?", type=Path)
    pipeline.add_argument("--no-interpolation", action="store_true")
    outcome = commands.add_parser("step").add_subparsers(required=True).add_parser("get")
    outcome.set_defaults(does=_step)
    outcome.add_argument("attribute", choices=("outcome",))
    outcome.add_argument("--step", required=True)
    return parser


def _annotate(given: argparse.Namespace, spool: Path) -> int:
    body = sys.stdin.read() if given.body is None else given.body
    if len(given.context) > CONTEXT_CHARACTERS:
        raise PipelineError(
            f"expected a context of at most {CONTEXT_CHARACTERS} characters, found {len(given.context)}"
        )
    if given.style not in ("", *STYLES):
        raise PipelineError(f"expected a style of {', '.join(STYLES)}, found {given.style!r}")
    if not 1 <= given.priority <= 10:
        raise PipelineError(f"expected a priority from 1 to 10, found {given.priority}")
    path = spool / "annotations.json"
    annotations = json.loads(path.read_text()) if path.exists() else {}
    if given.append and given.context in annotations:
        body = annotations[given.context]["body"] + body
    if (size := len(body.encode())) > ANNOTATION_BYTES:
        raise PipelineError(f"expected an annotation of at most {ANNOTATION_BYTES} bytes, found {size}")
    annotations[given.context] = {"style": given.style, "priority": given.priority, "body": body}
    path.write_text(json.dumps(annotations))
    return 0


def _upload(given: argparse.Namespace, spool: Path) -> int:
    since = int(os.environ.get("PIECEWISE_JOB_BEGAN", "0"))
    found = sorted(
        {
            path
            for pattern in given.paths.split(";")
            for path in Path().glob(_below_checkout(pattern.strip()))
            # An agent's checkout holds nothing of earlier jobs; this one may.
            if path.is_file() and path.stat().st_mtime_ns >= since
        }
    )
    if not found:
        raise PipelineError(f"no files of this job match {given.paths}")
    if len(found) > ARTIFACTS_PER_JOB:
        raise PipelineError(f"{len(found)} artifacts, at most {ARTIFACTS_PER_JOB} are taken of one job")
    for name in found:
        target = spool / "artifacts" / os.environ["BUILDKITE_STEP_KEY"] / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(name, target)
    return 0


def _below_checkout(pattern: str) -> str:
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise PipelineError(f"expected artifacts below the checkout, found {pattern}")
    return pattern


def _download(given: argparse.Namespace, spool: Path) -> int:
    count = 0
    steps = sorted((spool / "artifacts").glob(given.step), key=lambda path: path.stat().st_mtime)
    for step in steps:
        for path in step.glob(_below_checkout(given.query)):
            if path.is_file():
                target = given.destination / path.relative_to(step)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
                count += 1
    if not count:
        raise PipelineError(f"no artifacts found for {given.query}")
    return 0


def _data(spool: Path) -> dict[str, str]:
    path = spool / "meta-data.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _set(given: argparse.Namespace, spool: Path) -> int:
    if not given.value.strip():
        raise PipelineError("expected a value that is not blank")
    (spool / "meta-data.json").write_text(json.dumps(_data(spool) | {given.key: given.value}))
    return 0


def _get(given: argparse.Namespace, spool: Path) -> int:
    value = _data(spool).get(given.key, given.default)
    if value is None:
        return NOT_FOUND
    sys.stdout.write(value)
    return 0


def _exists(given: argparse.Namespace, spool: Path) -> int:
    return 0 if given.key in _data(spool) else NOT_FOUND


def _pipeline(given: argparse.Namespace, spool: Path) -> int:
    text = sys.stdin.read() if given.file is None else read_text(given.file)
    if not given.no_interpolation:
        text = interpolate(text, os.environ)
    path = spool / "keys.json"
    taken = frozenset(json.loads(path.read_text()))
    found = steps_of(text, str(given.file or "stdin"), taken)
    path.write_text(json.dumps(sorted(taken | {step["key"] for step in found})))
    uploads = spool / "uploads"
    uploads.mkdir(exist_ok=True)
    (uploads / f"{len(list(uploads.iterdir())):03}.yaml").write_text(text)
    return 0


def _step(given: argparse.Namespace, spool: Path) -> int:
    outcomes = json.loads((spool / "outcomes.json").read_text())
    if given.step not in outcomes:
        raise PipelineError(f"step {given.step!r} has no outcome yet, or does not exist")
    sys.stdout.write(outcomes[given.step])
    return 0


if __name__ == "__main__":
    sys.exit(main())
