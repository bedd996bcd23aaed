"""The Python that Inductor generates: kept as text while something is compiled, and read for its kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from torch._inductor import config
from torch._inductor.graph import GraphLowering

_KERNEL = re.compile(r"\b((?:cpp_fused|triton_[a-z]+_fused)\w*|extern_kernels\.\w+)\s*[.(]")
_NODES = re.compile(r"Topologically Sorted Source Nodes: \[([^\]]*)\]")


@contextmanager
def generated_sources() -> Iterator[list[str]]:
    """Within it, the generated module of every compilation is appended to the list; caches are off, or there were none."""
    found: list[str] = []
    # A hook of Inductor's for its own tests, None otherwise.
    with mock.patch.object(GraphLowering, "save_output_code", found.append), config.patch(force_disable_caches=True):
        yield found


def kernel_of(source: str, node: str, op: str) -> tuple[str, tuple[str, ...]]:
    """The kernel that computes the node of that name, and the ops fused in it; empty if the source does not tell.

    A comment before a call names its nodes. A C++ kernel has none of its own and is named after its ops: of those with
    the op in their name it is the one nearest to the comment that has the node, or the last if none has it.
    """
    calls: list[tuple[int, str]] = []
    comments: list[tuple[int, list[str]]] = []
    body = source[source.find("def call(") :]
    for number, line in enumerate(body.splitlines()):
        if (nodes := _NODES.search(line)) is not None:
            comments.append((number, nodes[1].split(", ")))
        elif (kernel := _KERNEL.search(line)) is not None and not line.lstrip().startswith("#"):
            calls.append((number, kernel[1]))
    place = next((number for number, nodes in comments if node in nodes), len(body))
    after = next((name for number, name in calls if number > place), "")
    named = [(abs(number - place), name) for number, name in calls if op in _ops(name)]
    name = after if after.startswith("triton") or not named else min(named)[1]
    return (name, _ops(name)) if name else ("", ())


def _ops(kernel: str) -> tuple[str, ...]:
    if kernel.startswith("extern_kernels."):
        return (kernel.removeprefix("extern_kernels."),)
    _, _, names = kernel.partition("_fused_")
    return tuple(name for name in re.split(r"_(?!to_copy|softmax|log|unsafe)", re.sub(r"_\d+$", "", names)) if name)
