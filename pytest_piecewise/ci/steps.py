"""Reads `ci_config.yaml` and the step files. An unknown key, or a value of another kind, is an error with file and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_piecewise.ci.document import Document, read_document
from pytest_piecewise.ci.model import Config, Device, PipelineError, Place, Step, Tier

DIRECTORY = ".buildkite"
CONFIG = "ci_config.yaml"

VLLM_STEP_KEYS = frozenset((
    "label", "group", "working_dir", "key", "depends_on", "commands", "device", "agent_tags", "num_devices",
    "num_nodes", "source_file_dependencies", "soft_fail", "parallelism", "concurrency", "concurrency_group",
    "timeout_in_minutes", "mount_buildkite_agent", "env", "retry", "optional", "no_plugin", "no_gpu", "dind",
    "mirror",
))  # fmt: skip
"""What vLLM's own generator knows of a step; it drops every other key without a word."""
VLLM_FILE_KEYS = frozenset(("group", "depends_on", "steps"))

_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read_config(root: Path) -> Config:
    """The configuration and the steps of the repository at `root`."""
    directory = root / DIRECTORY
    document = read_document(directory / CONFIG, f"{DIRECTORY}/{CONFIG}")
    values = _mapping(document, (), _CONFIG_KEYS, required=("name", "job_dirs", "devices", "tiers"))
    devices = {
        str(name): Device(name=str(name), agents=_strings_of(document, ("devices", name), None))
        for name in _named(document, "devices")
    }
    tiers = {str(name): _tier(document, str(name)) for name in _named(document, "tiers")}
    steps = [step for path in _step_files(root, document, values) for step in _read_steps(root, path)]
    _refuse_repeated(steps)
    config = Config(
        name=values["name"],
        devices=devices,
        tiers=tiers,
        run_all_patterns=values.get("run_all_patterns", ()),
        run_all_exclude_patterns=values.get("run_all_exclude_patterns", ()),
        run_all_labels=values.get("run_all_labels", ()),
        sources=values.get("sources", ()),
        env=_strings_of(document, ("env",), {}),
        steps=tuple(steps),
    )
    for step in steps:
        for kind, name, known in (("device", step.device, devices), ("tier", step.tier, tiers)):
            if name not in known:
                raise PipelineError(
                    f"{step.place}: step {step.key!r} has the {kind} {name!r}; {DIRECTORY}/{CONFIG} knows "
                    f"{', '.join(known)}"
                )
    return config


def _step_files(root: Path, document: Document, values: Mapping[str, Any]) -> Iterator[Path]:
    for index, name in enumerate(values["job_dirs"]):
        found = sorted((root / name).glob("*.yaml"))
        if not found:
            raise PipelineError(f"{document.place('job_dirs', index)}: expected step files in {name}, found none")
        yield from found


def _refuse_repeated(steps: list[Step]) -> None:
    places: dict[str, Place] = {}
    for step in steps:
        if step.key in places:
            raise PipelineError(f"{step.place}: the key {step.key!r} is taken by the step at {places[step.key]}")
        places[step.key] = step.place


def _tier(document: Document, name: str) -> Tier:
    values = _mapping(document, ("tiers", name), _TIER_KEYS, required=())
    return Tier(name=name, **values)


def _read_steps(root: Path, path: Path) -> Iterator[Step]:
    name = path.relative_to(root).as_posix()
    document = read_document(path, name)
    values = _mapping(document, (), _FILE_KEYS, required=("group", "steps"))
    shared = values.get("depends_on", ())
    for index in range(len(document.value["steps"])):
        at = ("steps", index)
        step = _mapping(document, at, _STEP_KEYS, required=("label", "key", "commands", "timeout_in_minutes"))
        if not _KEY.fullmatch(step["key"]):
            raise PipelineError(
                f"{document.place(*at, 'key')}: expected a key of letters, digits, '-' and '_', found {step['key']!r}"
            )
        yield _step(document, at, step, group=values["group"], shared=shared)


def _step(
    document: Document, at: tuple[str | int, ...], values: dict[str, Any], *, group: str, shared: tuple[str, ...]
) -> Step:
    place = document.place(*at)
    if bool(values.get("concurrency")) != bool(values.get("concurrency_group")):
        raise PipelineError(f"{place}: `concurrency` and `concurrency_group` need each other; give both or neither")
    depends = tuple(dict.fromkeys((*shared, *values.pop("depends_on", ()))))
    return Step(
        **{"device": "cpu", "tier": "fastcheck", "source_file_dependencies": ()} | values,
        env=_strings_of(document, (*at, "env"), {}),
        depends_on=depends,
        group=group,
        place=place,
    )


# Kinds of values: each gives the value, or None for one of another kind.


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _texts(value: Any) -> tuple[str, ...] | None:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        return None
    return tuple(values)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _codes(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not value:
        return None
    codes = [item.get("exit_status") if isinstance(item, dict) and len(item) == 1 else None for item in value]
    return tuple(code for code in codes if code) if all(_number(code) for code in codes) else None


Kind = tuple[Callable[[Any], Any], str]
TEXT: Kind = (_text, "a text")
TEXTS: Kind = (_texts, "a list of texts")
NUMBER: Kind = (_number, "a positive whole number")
FLAG: Kind = (_flag, "true or false")
CODES: Kind = (_codes, "a list as [{exit_status: 10}]; `true` would hide every failure")
OWN: Kind = (lambda value: value, "")  # checked by who reads it

_CONFIG_KEYS: Mapping[str, Kind] = {
    "name": TEXT, "job_dirs": TEXTS, "devices": OWN, "tiers": OWN, "env": OWN, "sources": TEXTS,
    "run_all_patterns": TEXTS, "run_all_exclude_patterns": TEXTS, "run_all_labels": TEXTS,
}  # fmt: skip
_TIER_KEYS: Mapping[str, Kind] = {"labels": TEXTS, "branches": TEXTS, "sources": TEXTS, "block": TEXT}
_FILE_KEYS: Mapping[str, Kind] = {"group": TEXT, "depends_on": TEXTS, "steps": OWN}
_STEP_KEYS: Mapping[str, Kind] = {
    # vLLM's
    "label": TEXT, "key": TEXT, "commands": TEXTS, "depends_on": TEXTS, "device": TEXT, "optional": FLAG,
    "source_file_dependencies": TEXTS, "parallelism": NUMBER, "concurrency": NUMBER, "concurrency_group": TEXT,
    "timeout_in_minutes": NUMBER, "env": OWN, "soft_fail": CODES,
    # ours
    "tier": TEXT, "artifact_paths": TEXTS, "results": TEXT, "reports": FLAG,
}  # fmt: skip


def _mapping(
    document: Document, at: tuple[str | int, ...], known: Mapping[str, Kind], required: tuple[str, ...]
) -> dict[str, Any]:
    """The checked values of the mapping at a path; those that somebody else checks are left out."""
    found = _at(document, at)
    found = {} if found is None else found
    if not isinstance(found, dict):
        raise PipelineError(f"{document.place(*at)}: expected a mapping with {', '.join(known)}, found {found!r}")
    values = {}
    for key, value in found.items():
        if key not in known:
            raise PipelineError(f"{document.place(*at, key)}: unknown key {key!r}; expected one of {', '.join(known)}")
        reads, expected = known[key]
        values[key] = reads(value)
        if values[key] is None and known[key] is not OWN:
            raise PipelineError(f"{document.place(*at, key)}: {key}: expected {expected}, found {value!r}")
    if missing := [key for key in required if key not in found]:
        raise PipelineError(f"{document.place(*at)}: expected {' and '.join(missing)}, found none")
    return {key: value for key, value in values.items() if known[key] is not OWN}


def _at(document: Document, path: tuple[str | int, ...]) -> Any:
    value = document.value
    for part in path:
        value = value[part]
    return value


def _named(document: Document, key: str) -> list[str]:
    found = document.value[key]
    if not isinstance(found, dict) or not found:
        raise PipelineError(f"{document.place(key)}: expected a mapping of names in {key!r}, found {found!r}")
    return list(found)


def _strings_of(document: Document, path: tuple[str | int, ...], default: dict[str, str] | None) -> dict[str, str]:
    """A mapping of names to texts; numbers are texts too, as in an environment."""
    parent = _at(document, path[:-1])
    if default is not None and path[-1] not in parent:
        return default
    found = parent[path[-1]]
    if not isinstance(found, dict) or not all(type(value) in (str, int, float) for value in found.values()):
        raise PipelineError(f"{document.place(*path)}: expected a mapping of names to texts, found {found!r}")
    return {str(name): str(value) for name, value in found.items()}
