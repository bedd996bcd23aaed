"""Records as plain JSON, and back."""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """A record as dicts, lists, str, int, float and bool only; what json and xdist's channel can carry."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, str):
        return str.__str__(value)  # a StrEnum member would break xdist's serialiser
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has neither: NaN becomes null, and an infinity the largest number, which is still the worst of all.
        return None if math.isnan(value) else math.copysign(sys.float_info.max, value)
    return value


def from_plain(kind: type[T], data: Any) -> T:
    """The inverse of `to_plain` for a record type. Unknown keys are ignored: a newer writer may have added some."""
    return typing.cast(T, _restore(kind, data))


def _restore(kind: Any, data: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):  # of a record and None
        return None if data is None else _restore(args[0], data)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        known = {f.name: _restore(hints[f.name], data[f.name]) for f in dataclasses.fields(kind) if f.name in data}
        return typing.cast(Any, kind)(**known)
    if origin is tuple:
        return tuple(_restore(args[0], item) for item in data)
    if origin is dict:
        return {key: _restore(args[1], item) for key, item in data.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(data)
    if kind is float:
        return float("nan") if data is None else float(data)
    return data


def json_schema(kind: Any) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a record, from its type hints and docstrings."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        required = [
            f.name
            for f in dataclasses.fields(kind)
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        return {
            "title": typing.cast(type, kind).__name__,
            "description": " ".join((kind.__doc__ or "").split()),
            "type": "object",
            "properties": {f.name: json_schema(hints[f.name]) for f in dataclasses.fields(kind)},
            "required": required,
        }
    if origin in (tuple, list):
        return {"type": "array", "items": json_schema(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": json_schema(args[1])}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [json_schema(arg) for arg in args]}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [str(member) for member in kind]}
    return {
        "type": {str: "string", bool: "boolean", int: "integer", float: ["number", "null"], type(None): "null"}[kind]
    }
