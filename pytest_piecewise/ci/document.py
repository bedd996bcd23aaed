"""YAML files whose every value knows its line, and in which no key may stand twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_piecewise.ci.model import PipelineError, Place

try:
    import yaml
except ImportError as missing:
    raise PipelineError(
        "expected PyYAML, which pipelines are read with, found none; pip install 'pytest-piecewise[ci]'"
    ) from missing


@dataclass(frozen=True, slots=True)
class Document:
    """The value of a YAML file, and the line of each part of it by its path, as in `("steps", 0, "label")`."""

    file: str
    value: Any
    lines: Mapping[tuple[str | int, ...], int]

    def place(self, *path: str | int) -> Place:
        """Where the value at `path` stands, or the nearest that encloses it."""
        while path not in self.lines and path:
            path = path[:-1]
        return Place(self.file, self.lines.get(path, 1))


def read_document(path: Path, name: str = "") -> Document:
    """Reads `path`, shown as `name`; a file that is no YAML, or repeats a key, is an error that names the line."""
    return parse_document(read_text(path), name or str(path))


def read_text(path: Path) -> str:
    """The text of a pipeline file; one that cannot be read is an error."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"expected a YAML file {path}, found: {error}") from error


def parse_document(text: str, name: str) -> Document:
    """The same for text that is already there."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error)
        raise PipelineError(f"{name}:{line}: expected YAML, found: {problem}") from error
    return Document(name, value, dict(_lines(node, (), name)) if node is not None else {})


def _lines(node: yaml.Node, path: tuple[str | int, ...], name: str) -> Iterator[tuple[tuple[str | int, ...], int]]:
    yield path, node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines(item, (*path, index), name)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen and key.value != "<<":
                raise PipelineError(
                    f"{name}:{line}: the key {key.value!r} stands twice, first in line {seen[key.value]}; YAML would "
                    "drop one of them without a word: remove it"
                )
            seen[key.value] = line
            yield from _lines(value, (*path, key.value), name)
            yield (*path, key.value), line


def dump(value: Any) -> str:
    """YAML text of plain values, in their order, every string that could be misread in quotes."""
    return str(yaml.safe_dump(value, sort_keys=False, width=10_000, allow_unicode=True))
