"""What can be wrong with the pipeline of a repository: its files, what they refer to, and all that they generate."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_piecewise.changes import EVERYTHING, touches
from pytest_piecewise.ci.document import Document, dump, parse_document, read_document
from pytest_piecewise.ci.generate import generate
from pytest_piecewise.ci.lint import Problem, items_of, lint_pipeline
from pytest_piecewise.ci.model import Change, Config, PipelineError, Step
from pytest_piecewise.ci.schema import BUILDKITE, GITHUB, schema_checker, schema_problems
from pytest_piecewise.ci.steps import DIRECTORY, VLLM_FILE_KEYS, VLLM_STEP_KEYS, read_config

BOOTSTRAP = "pipeline.yaml"
WORKFLOWS = ".github/workflows"


@dataclass(frozen=True, slots=True)
class Linted:
    """What was found, how much was looked at, and what could not be checked here, with the reason."""

    problems: tuple[str, ...]
    looked_at: tuple[str, ...]
    unchecked: tuple[str, ...]


def lint_repository(root: Path) -> Linted:
    """Checks the configuration, the steps, the bootstrap, ready-made fragments, workflows, and every generated variant."""
    config = read_config(root)
    queues = frozenset(device.agents["queue"] for device in config.devices.values() if "queue" in device.agents)
    bootstrap = read_document(root / DIRECTORY / BOOTSTRAP, f"{DIRECTORY}/{BOOTSTRAP}")
    uploaded = frozenset(item.key for item in items_of(bootstrap))
    problems = [*lint_pipeline(bootstrap, queues=queues), *_declarations(config, root), *_uncovered(config, root)]
    fragments = sorted((root / DIRECTORY / "vllm").glob("*.yaml"))
    for path in fragments:
        problems += lint_fragment(read_document(path, path.relative_to(root).as_posix()))
    variants = variants_of(config)
    generated: dict[str, str] = {}  # the pipeline, and the first change that gives it: many give the same
    for name, change in variants.items():
        generated.setdefault(dump(generate(config, change)), name)
    for text, name in generated.items():
        problems += lint_pipeline(parse_document(text, f"generated for {name}"), queues=queues, uploaded=uploaded)
    refused, unchecked = _against_schemas(root, list(generated))
    looked_at = (
        f"{len(config.steps)} steps", f"{len(fragments)} fragments", f"{len(variants)} generated pipelines"
    )  # fmt: skip
    return Linted((*_once(problems), *refused), looked_at, unchecked)


def lint_files(root: Path, documents: Sequence[Document]) -> Linted:
    """Checks pipelines by themselves. Steps of the repository's bootstrap are in the build already."""
    bootstrap, known = root / DIRECTORY / BOOTSTRAP, frozenset[str]()
    if bootstrap.exists():
        known = frozenset(item.key for item in items_of(read_document(bootstrap)))
    problems: list[str] = []
    for document in documents:
        own = frozenset() if Path(document.file).resolve() == bootstrap.resolve() else known
        problems += map(str, lint_pipeline(document, uploaded=own))
    unchecked = schema_checker()
    if not unchecked:
        problems += schema_problems(BUILDKITE, [Path(document.file) for document in documents])
    return Linted(tuple(problems), (f"{len(documents)} file(s)",), (f"schema: {unchecked}",) if unchecked else ())


def _once(problems: Iterable[Problem]) -> list[str]:
    """A problem of a step is one of every variant that has it: said once, at the first."""
    first: dict[str, str] = {}
    for problem in problems:
        first.setdefault(problem.text, str(problem))
    return list(first.values())


def variants_of(config: Config) -> dict[str, Change]:
    """Changes that between them generate everything that the configuration can."""
    files: dict[str, tuple[str, ...] | None] = {"unknown files": None, "no file": ()}
    for step in config.steps:
        files.setdefault(step.place.file, (step.place.file,))
    labels = sorted({label for tier in config.tiers.values() for label in tier.labels} | set(config.run_all_labels))
    sources = sorted({"webhook"} | {source for tier in config.tiers.values() for source in tier.sources})
    branches = sorted({"topic"} | {branch for tier in config.tiers.values() for branch in tier.branches})
    found = {}
    for (what, names), label, source, branch in itertools.product(files.items(), ["", *labels], sources, branches):
        name = ", ".join(filter(None, (what, label and f"label {label}", source, branch)))
        found[name] = Change(files=names, labels=frozenset({label} if label else ()), source=source, branch=branch)
    return found


def _declarations(config: Config, root: Path) -> Iterator[Problem]:
    for step in config.steps:
        if not step.source_file_dependencies:
            yield Problem(
                step.place,
                f"step {step.key!r} has no source_file_dependencies: it would never run by itself; "
                f"name files and directories, or [{EVERYTHING!r}] for all",
            )
        for name in step.source_file_dependencies:
            if not _exists(root, name):
                yield Problem(step.place, f"step {step.key!r} depends on {name!r}, which does not exist")
        for word in _paths_in(step, root):
            if not _exists(root, word):
                yield Problem(step.place, f"step {step.key!r} runs something on {word!r}, which does not exist")


def _exists(root: Path, pattern: str) -> bool:
    pattern = pattern.removeprefix("!").rstrip("/")
    return any(root.glob(pattern)) if any(character in pattern for character in "*?[") else (root / pattern).exists()


def _paths_in(step: Step, root: Path) -> Iterator[str]:
    """Words of commands that begin with a directory of the repository."""
    top = {path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    for command in step.commands:
        for word in re.findall(r"(?<![\w./=$-])[\w.-]+/[\w./-]*", command):
            if word.split("/")[0] in top and not any(word.startswith(made) for made in (step.results or "\0",)):
                yield word.rstrip("/.")


def _uncovered(config: Config, root: Path) -> Iterator[Problem]:
    """Source files whose change would start no step that tests anything."""
    testing = [step for step in config.steps if EVERYTHING not in step.source_file_dependencies]
    for name in tracked_files(root):
        if touches(name, config.sources) and not any(touches(name, step.source_file_dependencies) for step in testing):
            place = testing[0].place if testing else config.steps[0].place
            yield Problem(place, f"{name} is covered by the source_file_dependencies of no step; add it to one")


def tracked_files(root: Path) -> Sequence[str]:
    """Files of the repository: what git knows, or everything where there is no git."""
    if shutil.which("git") and (root / ".git").exists():
        done = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return [name for name in done.stdout.split("\0") if name]
    return [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file()]


def lint_fragment(document: Document) -> list[Problem]:
    """A file of vLLM's test areas: keys that its generator drops, and what would hide a failure there."""
    if not isinstance(document.value, dict):
        raise PipelineError(f"{document.place()}: expected a mapping with group and steps, found {document.value!r}")
    found = [
        Problem(document.place(key), f"vLLM's generator drops the key {key!r}; it knows {', '.join(VLLM_FILE_KEYS)}")
        for key in document.value
        if key not in VLLM_FILE_KEYS
    ]
    for item in items_of(document):
        for key in item.value:
            if key not in VLLM_STEP_KEYS:
                found.append(Problem(document.place(*item.path, key), f"vLLM's generator drops the key {key!r}"))
        if not isinstance(item.value.get("soft_fail", False), bool):
            found.append(Problem(document.place(*item.path, "soft_fail"), "vLLM's steps take true or false here only"))
    # `soft_fail: true` is all that vLLM's steps can say, and retries are its generator's.
    hidden = ("soft_fail", "retry", "a step without a key")
    return found + [item for item in lint_pipeline(document) if not any(word in item.text for word in hidden)]


def _against_schemas(root: Path, generated: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """What the schemas refuse, and what could not be held against them."""
    if why := schema_checker():
        return [], (f"schemas of Buildkite and GitHub: {why}",)
    workflows = sorted((root / WORKFLOWS).glob("*.yml")) + sorted((root / WORKFLOWS).glob("*.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        files = [root / DIRECTORY / BOOTSTRAP]
        for text in generated:
            path = Path(folder) / f"generated-{len(files)}.yaml"
            path.write_text(text)
            files.append(path)
        return [*schema_problems(BUILDKITE, files), *schema_problems(GITHUB, workflows)], ()
