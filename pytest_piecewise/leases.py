"""Who may use a GPU now: machine-wide leases by file lock, on all or some eighths of it, released by death of the holder.

A lease is held twice: by the process that asked for it, and by the child that uses the GPU, which may outlive it for a
moment. A GPU is free when neither lives.
"""

from __future__ import annotations

import fcntl
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_piecewise import nvml
from pytest_piecewise.errors import UnfitError

FOLDER = "PYTEST_PIECEWISE_LEASES"
"""Environment variable: the directory of the locks. Sessions exclude each other if they have the same one."""
SLOTS = 8
"""Parts of a GPU that can be leased by themselves, each an equal share of its memory."""
POLL_SECONDS, DRAIN_SECONDS = 0.1, 5.0
"""How often is tried; and after which time one who needs a whole GPU lets nobody else on to one that is shared."""
FREED_SECONDS, FREED_BYTES = 30.0, 64 * 2**20
"""How long the memory of an ended build is waited for, and what may be left of it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A GPU, or a part of it. `name` is what CUDA_VISIBLE_DEVICES has to be; the child that uses it locks the files `held`
    for as long as it lives."""

    name: str
    held: tuple[Path, ...]


def visible_gpus(count: int) -> tuple[str, ...]:
    """The GPUs that the caller may use, as it names them (indices, UUIDs, MIG names), or `count` indices."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return tuple(str(index) for index in range(count))
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def machine_wide(names: Sequence[str], known: Sequence[nvml.Gpu]) -> tuple[str, ...]:
    """`names` so that every session names a GPU alike: indices and shortened UUIDs become UUIDs; MIG names are kept.

    An index is kept where GPUs differ and CUDA may count them in another order than the driver.
    """
    in_order = len({gpu.product for gpu in known}) <= 1 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    found = []
    for name in names:
        full = [gpu.uuid for gpu in known if name.startswith("GPU-") and gpu.uuid.startswith(name)]
        if name.isdigit() and in_order and int(name) < len(known):
            full = [known[int(name)].uuid]
        found.append(full[0] if len(full) == 1 and full[0] else name)
    return tuple(found)


def share_of(kind: str, budget: int) -> int:
    """Bytes of a GPU that a task gets: its budget; as little as there is if it builds nothing; all (0) if it is timed."""
    return {"probe": 1, "cost": 0}.get(kind, budget)


def slots_for(budget: int, total: int) -> int:
    """How many parts of a GPU with `total` bytes a build needs that is given `budget` bytes; all where either is 0."""
    return min(SLOTS, max(1, math.ceil(budget * SLOTS / total))) if budget and total else SLOTS


def lease_folder() -> Path:
    """Where the locks lie: for all users and sessions of this machine, whatever TMPDIR they have."""
    shared = Path("/tmp") if os.access("/tmp", os.W_OK) else Path(tempfile.gettempdir())
    folder = Path(os.environ.get(FOLDER) or shared / "pytest-piecewise-gpus")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # another user's, who has done so
            folder.chmod(0o777)
    except OSError as error:
        raise UnfitError(f"expected a directory for GPU leases, found {error}; name one in {FOLDER}") from error
    return folder


@contextmanager
def gpu_for(device: str, count: int, budget: int, on_wait: Callable[[], None]) -> Iterator[Lease | None]:
    """A lease for a task on `device` (cpu, cuda or cuda:INDEX) of a machine on which torch sees `count` GPUs; None for a
    task that uses none. `budget` are the bytes that it gets, 0 for all. Afterwards its memory is waited for."""
    if not device.startswith("cuda"):
        yield None
        return
    gpus = machine_wide(visible_gpus(count), nvml.gpus())[:count]
    index = device.partition(":")[2]
    if int(index or 0) >= len(gpus):
        raise UnfitError(f"expected a GPU for device {device}, found {len(gpus)}; use --piecewise-device=cpu")
    wanted = (gpus[int(index)],) if index else gpus
    slots = slots_for(budget, nvml.memory_total(wanted[0]))
    with leased_gpu(wanted, slots, on_wait) as lease, freed_afterwards(lease.name) if slots == SLOTS else nullcontext():
        yield lease


@contextmanager
def leased_gpu(
    candidates: Sequence[str],
    slots: int = SLOTS,
    on_wait: Callable[[], None] = lambda: None,
    folder: Path | None = None,
) -> Iterator[Lease]:
    """A lease on `slots` parts of the first of `candidates` that has so many free; waits until there is one, and calls
    `on_wait` several times a second meanwhile."""
    if not candidates:
        raise UnfitError("expected a GPU to lease, found none; use --piecewise-device=cpu")
    folder, begin, held = folder or lease_folder(), time.monotonic(), list[int]()
    try:
        while True:
            for name in candidates:
                drain = slots == SLOTS and time.monotonic() - begin > DRAIN_SECONDS
                if files := _try_lease(folder, name, slots, held, drain):
                    yield Lease(name, files)
                    return
            on_wait()
            time.sleep(POLL_SECONDS)
    finally:
        _close(held)


def _try_lease(folder: Path, name: str, slots: int, held: list[int], drain: bool) -> tuple[Path, ...]:
    """Locks so many slots of one GPU, and puts their descriptors into `held`; none if there are not enough.

    Whoever looks for slots locks the gate first, so that two who want many do not wait for each other. With `drain`, a GPU
    that others share is waited for behind the closed gate: without it, they could go on for ever.
    """
    file = name.replace("/", "_")
    gate = try_lock(folder / f"{file}.gate")
    if gate is None:
        return ()
    try:
        got: dict[Path, int] = {}
        while True:
            for index in range(SLOTS):
                path = folder / f"{file}.{index}"
                if len(got) < slots and path not in got and (descriptor := _lock_slot(path)) is not None:
                    got[path] = descriptor
            if len(got) == slots:
                held += got.values()
                return tuple(_child_file(path) for path in got)
            if not (drain and got):
                break
            time.sleep(POLL_SECONDS)
    except BaseException:
        _close(got.values())
        raise
    else:
        _close(got.values())
        return ()
    finally:
        os.close(gate)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _child_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.child")


def _lock_slot(path: Path) -> int | None:
    """Locks a slot whose last child is dead too."""
    own = try_lock(path)
    if own is None:
        return None
    child = try_lock(_child_file(path))
    if child is None:
        os.close(own)
        return None
    os.close(child)
    return own


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock on a file until it is closed or this process dies; None if somebody else does."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UnfitError(f"expected to lock {path}, found {error}; name another directory in {FOLDER}") from error
    with suppress(PermissionError):
        os.fchmod(descriptor, 0o666)  # for other users, whatever the umask
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def hold(files: Sequence[str]) -> None:
    """In the child: holds its lease until it dies. The descriptors stay open on purpose."""
    for name in files:
        fcntl.flock(os.open(name, os.O_RDWR | os.O_CREAT, 0o666), fcntl.LOCK_EX)


@contextmanager
def freed_afterwards(name: str, used: Callable[[str], int | None] = nvml.memory_used) -> Iterator[None]:
    """Waits at its end until no more memory of a GPU is in use than at its beginning: what a dead process held is given
    back by the driver some time later. Where the driver says nothing of its memory, there is nothing to wait for."""
    before = used(name)
    try:
        yield
    finally:
        deadline = time.monotonic() + FREED_SECONDS
        while before is not None and (now := used(name)) is not None and now > before + FREED_BYTES:
            if time.monotonic() > deadline:
                warnings.warn(
                    f"GPU {name} has {(now - before) / 2**20:.0f} MiB more in use than before a build that ended "
                    f"{FREED_SECONDS:g} s ago; another process may use it",
                    stacklevel=2,
                )
                break
            time.sleep(POLL_SECONDS)
