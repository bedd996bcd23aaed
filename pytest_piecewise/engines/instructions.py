"""CPU instructions by the machine's own counter, where it has one that may be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

ABSENT = "the machine has no counter of instructions that may be read (no PMU, as in most virtual machines)"
_EVENTS = Path("/sys/bus/event_source/devices")


class InstructionCount:
    """Within it, this thread's user instructions are counted into `count`; None where they cannot be.

    The counter is private, unchanged from torch 2.11 to 2.15. Without a PMU it complains on stderr and ends with 2^64-1.
    """

    def __init__(self, counter: Any = None, events: Path = _EVENTS) -> None:
        has_pmu = any(path.name.startswith("cpu") for path in events.glob("cpu*"))
        self._counter = (counter or getattr(torch._C, "_instruction_counter", None)) if has_pmu else None
        self.count: int | None = None

    def __enter__(self) -> InstructionCount:
        self._handle = self._counter.start() if self._counter is not None else -1
        return self

    def __exit__(self, *error: object) -> None:
        if self._counter is not None and self._handle >= 0:
            count = int(self._counter.end(self._handle))
            self.count = count if 0 < count < 2**63 else None
