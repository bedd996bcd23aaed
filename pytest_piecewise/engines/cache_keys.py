"""Which part of a compilation cache's key made a warm build miss: keys of the cold build against those of the warm one."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

FILE = "piecewise-cache-keys.json"
_MAKERS = (
    ("torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key"),
    ("torch._inductor.codecache", "compiled_fx_graph_hash"),
)
"""Functions that return `(key, lines)`, a line per part of the key, `[hash] name: value`. Private, unchanged from torch 2.11
to 2.15; one that is not there is not watched, and a miss then has no reason."""

Entry = tuple[str, str, list[str]]


class KeyLog:
    """Within it, every cache key that torch makes is kept in `entries`: whose it is, the key, its parts."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> KeyLog:
        for place, name in _MAKERS:
            module = importlib.import_module(place)
            make = getattr(module, name, None)
            if make is not None:
                self._before.append((module, name, make))
                setattr(module, name, self._watched(name, make))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, name, make in self._before:
            setattr(module, name, make)

    def _watched(self, name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **more: Any) -> Any:
            key, lines = make(*arguments, **more)
            self.entries.append((name, key, list(lines)))
            return key, lines

        return made


def changed_parts(entries: list[Entry], caches: Path, *, warm: bool) -> tuple[str, ...]:
    """Leaves a cold build's keys with its caches; for a warm build, says where its own first differ, a line per key.

    Keys are told apart by their order: one build of a model asks for them as the other did.
    """
    file = caches / FILE
    if not warm:
        file.write_text(json.dumps(entries))
        return ()
    before: list[Entry] = [(name, key, lines) for name, key, lines in json.loads(file.read_text())]
    made = {key for _, key, _ in before}
    found = []
    for name, key, lines in entries:
        if key in made:
            continue
        position = sum(other[0] == name for other in entries[: entries.index((name, key, lines))])
        alike = [other for other in before if other[0] == name]
        found.append(f"cache miss {name}: {_first_change(lines, alike[position][2] if position < len(alike) else [])}")
    return tuple(found)


def _first_change(lines: list[str], before: list[str]) -> str:
    for line, other in zip(lines, before, strict=False):
        if line != other:
            return f"{_part(line)} was {_part(other).partition(': ')[2] or 'another'}"
    return "a key that the cold build did not ask for" if not before else "its parts are as many no longer"


def _part(line: str) -> str:
    """The name and value of a part, without its hash, cut short."""
    text = " ".join(re.sub(r"^\[\w+\] ", "", line).split())
    return text if len(text) <= 160 else text[:157] + "..."
