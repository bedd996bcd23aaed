"""vLLM's entry to our CPU platform, under which its piecewise compilation stays on. Inert unless this tool asks for it.

vLLM loads this module in every process that imports vLLM where this package is installed; so it imports nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pytest_piecewise.records import CHILD


def register() -> str | None:
    """The platform's name for vLLM (entry point `vllm.platform_plugins`); None, which changes nothing, elsewhere than in
    our children, and where vLLM is not built for a CPU."""
    if CHILD not in os.environ:
        return None
    from vllm.platforms import cpu_platform_plugin  # noqa: PLC0415 - vLLM's own answer whether a CPU is what it runs on

    return "pytest_piecewise.engines.vllm_platform.RecordingCpuPlatform" if cpu_platform_plugin() else None


@contextmanager
def platform_asked_for() -> Iterator[None]:
    """A first import of vLLM within it gets our platform, in whichever process; children have the variable anyway.

    vLLM chooses its platform once per process, when it is first imported.
    """
    before = os.environ.get(CHILD)
    os.environ[CHILD] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[CHILD]
