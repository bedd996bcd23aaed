"""The kernels of a module that Inductor has generated, by name."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

_DEFINED = re.compile(r"^(\w+) = async_compile\.(\w+)\((?:[^\n]*?'''(.*?)''')?", re.MULTILINE | re.DOTALL)
_DEFINED_IN_CPP = re.compile(r'^extern "C"\s+void\s+(\w+)\((.*?)^}', re.MULTILINE | re.DOTALL)
_CALLED_IN_CPP = re.compile(r"^\s+(?:call_)?((?:cpp|triton)_\w+)\(", re.MULTILINE)
_LIBRARY = re.compile(r"\bextern_kernels\.(\w+)\(")
_LIBRARY_IN_CPP = re.compile(r"\baoti_torch_(?:cpu|cuda)_(\w+?)(?:_out)?\(")


def kernels_of(module: ModuleType) -> list[str]:
    """A name for every call of a kernel in the generated code, without the number that tells kernels of one name apart.

    A C++ function has the loops of several ops, fused or not. Each nest of loops in it is a kernel, as on a GPU.
    Read from the text, which alone says the same of a module that was compiled and of one that came from a cache.
    """
    path = Path(getattr(module, "__file__", None) or "")
    text = path.read_text() if path.is_file() else ""
    if "CppWrapperCodeCache" in text:
        nests = {name: _loop_nests(body) for name, body in _DEFINED_IN_CPP.findall(text)}
        called, libraries = _CALLED_IN_CPP.findall(text), _LIBRARY_IN_CPP.findall(text)
    else:
        defined = _DEFINED.findall(text)
        nests = {name: _loop_nests(body) if kind.startswith("cpp") else 1 for name, kind, body in defined}
        names = "|".join(map(re.escape, nests))
        called = re.findall(rf"(?<!def )\b({names})(?:\.run)?\(", text) if nests else []
        libraries = _LIBRARY.findall(text)
    found = [re.sub(r"_\d+$", "", name) for name in called for _ in range(nests.get(name, 1))]
    return found + [f"extern_{name}" for name in libraries]


def _loop_nests(code: str) -> int:
    """The outermost loops of a C++ function; 1 if it has none."""
    nests, depth, outside = 0, 0, -1
    for mark in re.findall(r"\bfor\s*\(|[{}]", code):
        depth += {"{": 1, "}": -1}.get(mark, 0)
        if mark == "}" and depth <= outside:
            outside = -1
        elif mark not in "{}" and outside < 0:
            nests, outside = nests + 1, depth
    return max(1, nests)
