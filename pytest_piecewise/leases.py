"""One build per GPU at a time, machine-wide: leases by file lock, released by the death of the holder."""

from __future__ import annotations

import getpass
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_piecewise.errors import UnfitError


def visible_gpus(count: int) -> tuple[str, ...]:
    """The GPUs that the caller may use, as it names them (indices, UUIDs, MIG names), or `count` indices."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return tuple(str(index) for index in range(count))
    return tuple(name.strip() for name in listed.split(",") if name.strip())


@contextmanager
def leased_gpu(candidates: tuple[str, ...], folder: Path | None = None) -> Iterator[str]:
    """The first of `candidates` that nobody holds; waits until there is one."""
    if not candidates:
        raise UnfitError("expected a GPU to lease, found none; use --piecewise-device=cpu")
    folder = folder or Path(tempfile.gettempdir()) / f"pytest-piecewise-gpus-{getpass.getuser()}"
    folder.mkdir(parents=True, exist_ok=True)
    locks = {name: FileLock(folder / f"{name.replace('/', '_')}.lock") for name in candidates}
    while True:
        for name, lock in locks.items():
            try:
                with lock.acquire(timeout=0):
                    yield name
                    return
            except Timeout:
                continue
        time.sleep(0.1)
