"""How a child is getting on, and how it ended: phase, memory, last output -> a `BuildRecord`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

from pytest_piecewise.records import OUTPUT, PHASE, RESULT, BuildRecord, Finding, Status, from_plain


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """How a child ended: `kind` is exit, timeout or memory; its exit status; the memory in bytes that it used last."""

    kind: str
    reason: str
    phase: str
    status: int = 0
    memory: int = 0


def record_of(task: dict[str, Any], folder: Path, end: End) -> BuildRecord:
    """The record that a child has left in its folder, or one that says why there is none."""
    output = _tail(folder / OUTPUT)
    result = folder / RESULT
    if end.kind == "exit" and end.status == 0 and result.exists():
        record = from_plain(BuildRecord, json.loads(result.read_text()))
        return record if record.outcome == "ok" else dataclasses.replace(record, last_output=output)
    outcome, reason = end.kind, end.reason
    if end.kind == "exit":
        outcome, reason = "crash", _describe_exit(end.status)
        if end.status == -signal.SIGKILL:
            outcome = "memory"
            reason += f", probably by the kernel for want of memory; it last used {end.memory / 2**20:.0f} MiB"
    variant = task.get("variant") or task["kind"]
    summary = f"{reason} in phase {end.phase!r}" if end.phase else reason
    found = Finding(
        check="build",
        status=Status.FAIL,
        variant=variant,
        summary=summary,
        detail=output,
        action=_END_ACTIONS[outcome],
    )
    return BuildRecord(variant=variant, outcome=outcome, findings=(found,), last_output=output)


_END_ACTIONS = {
    "crash": "the last output is in the detail; --piecewise-isolation=none with --pdb runs it in this process",
    "timeout": "the stack at the deadline is in the detail; --piecewise-timeout raises it",
    "memory": "use a smaller model or fewer capture sizes; memory-limit in [tool.pytest_piecewise] raises the limit",
}


def _describe_exit(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"ended with exit code {status} and no result"


def _tail(path: Path, limit: int = 4000) -> str:
    if not path.exists():
        return ""
    text = path.read_bytes().decode(errors="replace")
    return text if len(text) <= limit else "...\n" + text[-limit:]


def phase_of(folder: Path) -> str:
    """The phase that a child has said it is in; empty if none."""
    with contextlib.suppress(OSError):
        return (folder / PHASE).read_text(errors="replace")
    return ""


def free_memory() -> int:
    """Bytes of memory that a new process could have; 0 where there is no /proc."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return 0


def session_memory(session: int) -> int | None:
    """Resident bytes of all processes of a session (a child and its compilers); None where there is no /proc."""
    total, page = 0, os.sysconf("SC_PAGE_SIZE")
    if not Path("/proc/self/stat").exists():
        return None
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                total += int(fields[21]) * page
    return total
