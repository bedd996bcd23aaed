"""The kernels of a module that Inductor has generated, by name."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType


def kernels_of(module: ModuleType) -> list[str]:
    """A name for every call of a kernel in the generated code, without the number that tells kernels of one name apart.

    Read from the text, which alone says the same of a module that was compiled and of one that came from a cache.
    """
    path = Path(getattr(module, "__file__", None) or "")
    text = path.read_text() if path.is_file() else ""
    found: list[str] = []
    for name in re.findall(r"^(\w+) = async_compile\.\w+\(", text, re.MULTILINE):
        calls = len(re.findall(rf"(?<!def )\b{re.escape(name)}(?:\.run)?\(", text))
        found += [re.sub(r"_\d+$", "", name)] * calls
    return found + [f"extern_{name}" for name in re.findall(r"\bextern_kernels\.(\w+)\(", text)]
