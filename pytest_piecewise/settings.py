"""Settings from `[tool.pytest_piecewise]` of pyproject.toml and from the command line. No torch, no pytest."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_piecewise.baselines.update import KINDS
from pytest_piecewise.errors import ModelError
from pytest_piecewise.faults import chosen_faults
from pytest_piecewise.hooks import PLUGINS_VARIABLE
from pytest_piecewise.records import COST_LEVELS, DTYPES, LOCALIZE, TIERS, Settings

TABLE = "tool.pytest_piecewise"
KEYS: Mapping[str, tuple[type, ...]] = {
    "engine": (str,),
    "dtype": (str, list),
    "device": (str,),
    "isolation": (str,),
    "timeout": (int, float),
    "memory-limit": (int,),
    "gpu-memory": (int,),
    "threads": (int,),
    "seed": (int,),
    "costs": (str,),
    "baselines": (str,),
    "history": (str,),
    "ci": (str,),
    "alert-command": (list,),
    "report": (str,),
    "localize": (str,),
    "plugins": (list,),
    "models": (list,),
    "watches": (list,),
    "durations": (str,),
}
"""What the table may hold: `timeout` in seconds, `memory-limit` and `gpu-memory` in MiB, `plugins` and `models` as lists
of names, `watches` as a list of paths that every model depends on."""


COSTS_OF_TIER: Mapping[str, str] = {"fastcheck": "counts", "full": "work", "nightly": "ratios"}
"""What is measured of costs unless it is said: timing takes a quiet machine, and many builds."""


def read_table(rootdir: Path) -> dict[str, Any]:
    """The table of the project at `rootdir`, checked; empty if there is none."""
    path = rootdir / "pyproject.toml"
    if not path.exists():
        return {}
    table = tomllib.loads(path.read_text()).get("tool", {}).get("pytest_piecewise", {})
    if not isinstance(table, dict):
        raise ModelError(f"{path}: expected [{TABLE}] to be a table, found {table!r}")
    for key, value in table.items():
        if key not in KEYS:
            meant = "".join(f"; did you mean {near!r}?" for near in difflib.get_close_matches(key, KEYS, 1))
            raise ModelError(f"{path}: [{TABLE}] has {key!r}; expected one of {', '.join(KEYS)}{meant}")
        if type(value) not in KEYS[key] or (
            isinstance(value, list) and not all(isinstance(item, str) for item in value)
        ):
            kinds = " or ".join(kind.__name__ for kind in KEYS[key])
            raise ModelError(f"{path}: [{TABLE}] {key}: expected {kinds}, found {value!r}")
    return dict(table)


def make_settings(rootdir: Path, table: Mapping[str, Any], options: Mapping[str, Any]) -> Settings:
    """Settings of a session; an option that was given wins over the table. Paths are relative to `rootdir`."""

    def pick(name: str, default: Any) -> Any:
        given = options.get(name.replace("-", "_"))
        return given if given is not None else table.get(name, default)

    settings = Settings(
        tier=options.get("tier") or "fastcheck",
        device=pick("device", "auto"),
        isolation=pick("isolation", "process"),
        timeout_seconds=float(pick("timeout", 600.0)),
        memory_limit_bytes=int(pick("memory-limit", 0)) * 2**20,
        gpu_memory_bytes=int(pick("gpu-memory", 0)) * 2**20,
        threads=int(pick("threads", 2)),
        seed=int(pick("seed", 0)),
        baselines=str(rootdir / pick("baselines", "baselines")),
        costs=pick("costs", COSTS_OF_TIER.get(str(options.get("tier") or "fastcheck"), "counts")),
        update=",".join(_update_kinds(options)),
        update_reason=str(options.get("reason") or "").strip(),
        update_to=str(options.get("update_to") or ""),
        report=str(pick("report", "")),
        localize=str(pick("localize", LOCALIZE[0])),
        strict=bool(os.environ.get("CI")),
        canary=options.get("canary") or "",
    )
    _check(settings)
    listed = [*filter(None, os.environ.get(PLUGINS_VARIABLE, "").split(",")), *table.get("plugins", [])]
    os.environ[PLUGINS_VARIABLE] = ",".join(dict.fromkeys(listed))
    return settings


def _check(settings: Settings) -> None:
    for name, value, known in (
        ("tier", settings.tier, TIERS),
        ("isolation", settings.isolation, ("process", "none")),
        ("costs", settings.costs, COST_LEVELS),
        ("localize", settings.localize, LOCALIZE),
    ):
        if value not in known:
            raise ModelError(f"expected {name} to be one of {', '.join(known)}, found {value!r}")
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", settings.device):
        raise ModelError(f"expected device auto, cpu, cuda or cuda:INDEX, found {settings.device!r}")
    if not settings.timeout_seconds > 0 or settings.threads < 1:
        raise ModelError("expected a positive timeout and at least one thread")
    for found in (settings.memory_limit_bytes, settings.gpu_memory_bytes):
        if found < 0:
            raise ModelError(f"expected a memory limit in MiB, or 0, found {found // 2**20}")
    if settings.canary:
        chosen_faults(settings.canary)
        if settings.update:
            raise ModelError("--piecewise-canary builds wrong models: expected no --piecewise-update beside it")
    _check_update(settings)


def _update_kinds(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What is to be stored, in the order of `KINDS`. Proposals alone are of every kind."""
    asked = set(filter(None, str(options.get("update") or "").split(",")))
    if unknown := asked - set(KINDS):
        raise ModelError(
            f"expected --piecewise-update with {', '.join(KINDS)}, or several with commas, found {min(unknown)!r}; "
            "new stores what has no value, fix what got worse, trim what got better"
        )
    if options.get("update_to") and not asked:
        return KINDS
    return tuple(kind for kind in KINDS if kind in asked)


def _check_update(settings: Settings) -> None:
    if settings.update and settings.strict and not settings.update_to:
        raise ModelError(
            "--piecewise-update is refused where CI is set: baselines are reviewed, not written by CI; "
            "--piecewise-update-to DIR writes proposals, which `pytest-piecewise baselines pull DIR` takes"
        )
    if "fix" in settings.update and not settings.update_reason and not settings.update_to:
        raise ModelError(
            '--piecewise-update=fix stores what got worse and needs a reason: --piecewise-reason="why that is right"'
        )
    if settings.update_reason and "fix" not in settings.update:
        raise ModelError("--piecewise-reason is stored with what --piecewise-update=fix changes; add fix to it")


def chosen_dtypes(asked: Any, fallback: tuple[str, ...]) -> tuple[str, ...]:
    """The dtypes of a marker or option, a name or several; an unknown one is an error."""
    dtypes = fallback if asked is None else (asked,) if isinstance(asked, str) else tuple(asked)
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ModelError(f"expected dtype {', '.join(DTYPES)}, found {dtype!r}")
    return dtypes
