"""One lock of the whole machine: what is compared for its results takes it shared, what is timed takes it alone.

Two files, each locked by the kernel: the door, through which everybody goes in, and the room. A reader holds the door only
for a moment; a writer holds it until it is done, so that no new reader comes in while it waits for those inside to leave:
it always gets its turn. Nobody waits for the door while holding the room, so nobody waits for ever. Locks of a process that
ends, however it ends, are gone.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

VARIABLE = "PYTEST_PIECEWISE_LOCKS"
"""Environment variable that names another directory for the two files."""
POLL_SECONDS = 0.05


class Busy(Exception):
    """The lock was not free within the time that one was willing to wait."""


def lock_directory() -> Path:
    """Where everybody on this machine looks: not below TMPDIR, which each job may have to itself."""
    return Path(os.environ.get(VARIABLE) or "/tmp")


@contextmanager
def shared(directory: Path | None = None, timeout: float = float("inf")) -> Iterator[None]:
    """Within it nobody has the machine for himself. Waits at most `timeout` seconds, then raises `Busy`."""
    deadline = time.monotonic() + timeout
    with _locked(directory, "door", fcntl.LOCK_SH, deadline) as door:
        room = _open(directory, "room")
        try:
            _acquire(room, fcntl.LOCK_SH, deadline)
        except BaseException:
            os.close(room)
            raise
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            os.close(room)


@contextmanager
def shared_if_free(timeout: float) -> Iterator[None]:
    """`shared`, and after `timeout` seconds without it all the same: what it keeps away from are other people's timings."""
    with ExitStack() as stack:
        with suppress(Busy):
            stack.enter_context(shared(timeout=timeout))
        yield


@contextmanager
def alone(directory: Path | None = None, timeout: float = float("inf")) -> Iterator[None]:
    """Within it nobody else is inside, shared or alone. Waits at most `timeout` seconds, then raises `Busy`."""
    deadline = time.monotonic() + timeout
    with (
        _locked(directory, "door", fcntl.LOCK_EX, deadline),
        _locked(directory, "room", fcntl.LOCK_EX, deadline),
    ):
        yield


@contextmanager
def _locked(directory: Path | None, name: str, how: int, deadline: float) -> Iterator[int]:
    descriptor = _open(directory, name)
    try:
        _acquire(descriptor, how, deadline)
        yield descriptor
    finally:
        os.close(descriptor)  # which unlocks it


def _open(directory: Path | None, name: str) -> int:
    """Opened as it is, if need be another user's: reading is enough to lock, creating is refused in a sticky directory."""
    path = (directory or lock_directory()) / f"pytest-piecewise-{name}.lock"
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = os.umask(0)
        try:
            return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        finally:
            os.umask(before)


def _acquire(descriptor: int, how: int, deadline: float) -> None:
    """Asks again and again instead of blocking: a waiting process can be interrupted, and gives up when told to."""
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise Busy from None
            time.sleep(POLL_SECONDS)
