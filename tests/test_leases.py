"""GPU leases exclude each other across processes, die with their holder, and wait for its child."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_piecewise import PiecewiseError, leases
from pytest_piecewise.leases import (
    SLOTS,
    freed_afterwards,
    gpu_for,
    lease_folder,
    leased_gpu,
    machine_wide,
    share_of,
    slots_for,
    visible_gpus,
)
from pytest_piecewise.nvml import Gpu
from tests.running import environment

HOLDER = """
import sys
from pathlib import Path
from pytest_piecewise.leases import leased_gpu
with leased_gpu(sys.argv[2].split(","), int(sys.argv[3]), folder=Path(sys.argv[1])) as lease:
    print(lease.name, flush=True)
    sys.stdin.readline()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Start]:
    """Starts processes that hold a lease until a line is written to them."""
    started: list[subprocess.Popen[str]] = []

    def start(candidates: str, slots: int = SLOTS, *, wait: bool = True) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(tmp_path), candidates, str(slots)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
        started.append(process)
        if wait:
            assert process.stdout is not None
            process.gpu = process.stdout.readline().strip()  # type: ignore[attr-defined]
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def gpu_of(process: subprocess.Popen[str]) -> str:
    name: str = process.gpu  # type: ignore[attr-defined]
    return name


def attempt(candidates: tuple[str, ...], folder: Path, seconds: float, slots: int = SLOTS) -> str | None:
    """The GPU that a lease gives within some seconds, or None if it still waits."""
    got: list[str] = []
    end = time.monotonic() + seconds

    class EnoughWaitingError(Exception):
        pass

    def give_up() -> None:
        if time.monotonic() > end:
            raise EnoughWaitingError

    with suppress(EnoughWaitingError), leased_gpu(candidates, slots, give_up, folder) as lease:
        got.append(lease.name)
    return got[0] if got else None


def test_lease_gives_the_first_that_is_free(tmp_path: Path) -> None:
    with leased_gpu(("0", "1"), folder=tmp_path) as first, leased_gpu(("0", "1"), folder=tmp_path) as second:
        assert (first.name, second.name) == ("0", "1")
    with leased_gpu(("0", "1"), folder=tmp_path) as again:
        assert again.name == "0"


def test_two_processes_exclude_each_other(tmp_path: Path, holder: Start) -> None:
    first = holder("0")
    assert gpu_of(first) == "0"
    assert attempt(("0",), tmp_path, 0.3) is None
    assert gpu_of(holder("0,1")) == "1"


def test_lease_that_was_given_back_is_taken_by_who_waits(tmp_path: Path, holder: Start) -> None:
    first = holder("0")
    waiting = holder("0", wait=False)
    time.sleep(0.3)
    assert first.stdin is not None
    first.stdin.write("\n")
    first.stdin.flush()
    assert waiting.stdout is not None
    assert waiting.stdout.readline().strip() == "0"
    assert attempt(("0",), tmp_path, 0.2) is None


def test_lease_of_a_killed_process_is_free_again(tmp_path: Path, holder: Start) -> None:
    process = holder("0")
    assert attempt(("0",), tmp_path, 0.2) is None
    process.kill()
    process.wait()
    assert attempt(("0",), tmp_path, 5) == "0"


def test_lease_is_given_back_when_its_holder_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="build failed"), leased_gpu(("0",), folder=tmp_path):
        raise RuntimeError("build failed")
    assert attempt(("0",), tmp_path, 0) == "0"


def test_gpu_of_a_killed_process_is_free_when_its_child_is_dead_too(tmp_path: Path, holder: Start) -> None:
    code = "import sys; from pytest_piecewise.leases import hold; hold(sys.argv[1:]); print(1, flush=True); input()"
    with leased_gpu(("0",), folder=tmp_path) as lease:
        child = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, lease.held)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(),
        )  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
    # Given back, or its holder killed: the child goes on.
    assert attempt(("0",), tmp_path, 0.3) is None
    child.kill()
    child.communicate()
    assert attempt(("0",), tmp_path, 5) == "0"


def test_builds_with_a_budget_share_a_gpu_and_a_timed_one_does_not(tmp_path: Path, holder: Start) -> None:
    half, quarter = slots_for(40, 80), slots_for(20, 80)
    with leased_gpu(("0",), half, folder=tmp_path), leased_gpu(("0",), quarter, folder=tmp_path):
        assert attempt(("0",), tmp_path, 0.2, half) is None
        assert attempt(("0",), tmp_path, 0.2, SLOTS) is None
        assert attempt(("0", "1"), tmp_path, 0.2, SLOTS) == "1"
        assert attempt(("0",), tmp_path, 0.2, quarter) == "0"
    with leased_gpu(("0",), SLOTS, folder=tmp_path):
        assert attempt(("0",), tmp_path, 0.2, 1) is None


@pytest.mark.parametrize(("drain", "expected"), [(0.2, "0"), (60.0, None)])
def test_who_needs_a_whole_gpu_gets_one_from_those_who_share_without_end(
    drain: float, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "DRAIN_SECONDS", drain)
    monkeypatch.setattr(leases, "POLL_SECONDS", 0.005)
    ended = threading.Event()

    def go_on_sharing() -> None:
        while not ended.is_set():
            with leased_gpu(("0",), 2, folder=tmp_path):
                time.sleep(0.05)

    sharing = [threading.Thread(target=go_on_sharing, daemon=True) for _ in range(4)]
    for thread in sharing:
        thread.start()
        time.sleep(0.02)
    try:
        assert attempt(("0",), tmp_path, 30 if expected else 1.5) == expected
    finally:
        ended.set()
    for thread in sharing:
        thread.join(10)


def test_names_with_slashes_can_be_leased(tmp_path: Path) -> None:
    name = "MIG-GPU-0123/7/0"
    with leased_gpu((name,), folder=tmp_path) as lease:
        assert lease.name == name
        assert attempt((name,), tmp_path, 0.2) is None


def test_no_gpu_at_all_is_an_error_and_no_endless_wait(tmp_path: Path) -> None:
    with pytest.raises(PiecewiseError, match="expected a GPU to lease, found none"), leased_gpu((), folder=tmp_path):
        pass


def test_locks_lie_where_all_users_and_sessions_find_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(leases.FOLDER, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert lease_folder() == Path("/tmp/pytest-piecewise-gpus")
    monkeypatch.setenv(leases.FOLDER, str(tmp_path / "a/b"))
    assert lease_folder() == tmp_path / "a/b"
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o777
    with leased_gpu(("0",)) as lease:
        assert [path.parent for path in lease.held] == [tmp_path / "a/b"] * SLOTS
        assert all(path.stat().st_mode & 0o777 == 0o666 for path in (tmp_path / "a/b").iterdir())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(leases.FOLDER, str(tmp_path / "file"))
    with pytest.raises(PiecewiseError, match="name one in PYTEST_PIECEWISE_LEASES"):
        lease_folder()


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, ("0", "1", "2")),
        ("", ()),
        ("2", ("2",)),
        ("1, 0", ("1", "0")),
        ("GPU-8f2a,MIG-3b", ("GPU-8f2a", "MIG-3b")),
    ],
)
def test_visible_gpus_are_named_as_the_environment_names_them(
    listed: str | None, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert visible_gpus(3) == expected


ALIKE = (Gpu("GPU-aa11", "H200", 80), Gpu("GPU-aa22", "H200", 80))
UNLIKE = (Gpu("GPU-aa11", "H200", 80), Gpu("GPU-bb22", "T4", 16))


@pytest.mark.parametrize(
    ("names", "known", "order", "expected"),
    [
        (("0", "1"), ALIKE, "", ("GPU-aa11", "GPU-aa22")),
        (("1",), ALIKE, "", ("GPU-aa22",)),
        (("GPU-aa2",), ALIKE, "", ("GPU-aa22",)),
        (("GPU-aa",), ALIKE, "", ("GPU-aa",)),  # of two; CUDA will refuse it
        (("MIG-3b", "MIG-GPU-aa11/7/0"), ALIKE, "", ("MIG-3b", "MIG-GPU-aa11/7/0")),
        (("2",), ALIKE, "", ("2",)),
        (("0", "1"), (), "", ("0", "1")),
        (("0", "1"), UNLIKE, "", ("0", "1")),
        (("0", "1"), UNLIKE, "PCI_BUS_ID", ("GPU-aa11", "GPU-bb22")),
        (("GPU-bb",), UNLIKE, "", ("GPU-bb22",)),
    ],
)
def test_sessions_that_name_a_gpu_differently_mean_the_same(
    names: tuple[str, ...],
    known: tuple[Gpu, ...],
    order: str,
    expected: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    assert machine_wide(names, known) == expected


@pytest.mark.parametrize(
    ("budget", "total", "slots"),
    [(0, 80, 8), (10, 0, 8), (1, 80, 1), (10, 80, 1), (11, 80, 2), (40, 80, 4), (80, 80, 8), (200, 80, 8)],
)
def test_budget_is_rounded_up_to_eighths(budget: int, total: int, slots: int) -> None:
    assert slots_for(budget, total) == slots


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs of 80 bytes, of which the caller may use the second and then the first."""
    monkeypatch.setenv(leases.FOLDER, str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    monkeypatch.setattr("pytest_piecewise.nvml.gpus", lambda: ALIKE)
    monkeypatch.setattr("pytest_piecewise.nvml.memory_total", lambda name: 80)
    monkeypatch.setattr("pytest_piecewise.nvml.memory_used", lambda name: None)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "kind", "budget", "name", "slots"),
    [
        ("cuda", "build", 0, "GPU-aa22", 8),
        ("cuda:1", "build", 0, "GPU-aa11", 8),
        ("cuda", "build", 30, "GPU-aa22", 3),
        ("cuda", "reference", 30, "GPU-aa22", 3),
        ("cuda", "cost", 30, "GPU-aa22", 8),
        ("cuda", "probe", 0, "GPU-aa22", 1),
    ],
)
def test_task_gets_what_its_kind_needs(device: str, kind: str, budget: int, name: str, slots: int) -> None:
    with gpu_for(device, 2, share_of(kind, budget), lambda: None) as lease:
        assert lease is not None
        assert (lease.name, len(lease.held)) == (name, slots)


@pytest.mark.usefixtures("two_gpus")
def test_task_without_a_gpu_leases_none_and_one_that_is_not_there_is_refused() -> None:
    with gpu_for("cpu", 2, 0, lambda: None) as lease:
        assert lease is None
    for device, count in (("cuda:2", 2), ("cuda:1", 1), ("cuda", 0)):
        refused = pytest.raises(PiecewiseError, match=f"for device {device}, found {count}")
        with refused, gpu_for(device, count, 0, lambda: None):
            pass


def test_memory_of_a_dead_child_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "POLL_SECONDS", 0.001)
    readings = iter([5 << 30, 30 << 30, 20 << 30, (5 << 30) + 1])
    with freed_afterwards("0", lambda name: next(readings)):
        pass
    assert list(readings) == []


def test_memory_that_is_not_given_back_is_said_and_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "FREED_SECONDS", 0.2)
    readings = iter([0, *[1 << 30] * 1000])
    warned = pytest.warns(UserWarning, match=r"GPU 0 has 1024 MiB more in use.*another process may use it")
    with warned, freed_afterwards("0", lambda name: next(readings)):
        pass
    with freed_afterwards("0", lambda name: None):
        pass


# Two sessions of four workers each, on three GPUs that do not exist; some workers are killed and replaced.

WORKER = """
import fcntl, json, os, random, sys, time
from pathlib import Path
from pytest_piecewise import leases
leases.POLL_SECONDS = 0.002
folder, journal, count, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
random.seed(seed)
use = folder / "use"
for _ in range(count):
    slots = random.choice((8, 8, 2, 4))
    with leases.leased_gpu(("0", "1", "MIG-a/1"), slots, folder=folder) as lease:
        # What the lease is for: nobody else may be on these parts. An independent lock says so, part by part.
        for path in lease.held:
            descriptor = os.open(use / path.name, os.O_RDWR | os.O_CREAT)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.set_inheritable(descriptor, False)
        assert len(lease.held) == slots
        time.sleep(random.uniform(0, 0.004))
        with open(journal, "a") as file:
            file.write(json.dumps([os.getpid(), lease.name, slots]) + "\\n")
        if seed % 4 == 0 and random.random() < 0.05:
            os.kill(os.getpid(), 9)  # holding the lease
        for descriptor in range(3, 40):
            try:
                if "/use/" in os.readlink(f"/proc/self/fd/{descriptor}"):
                    os.close(descriptor)
            except OSError:
                pass
print("done")
"""


def test_two_sessions_of_workers_that_die_never_share_and_never_lose_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "use").mkdir()
    journal = tmp_path / "journal"

    def start(seed: int, count: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, str(tmp_path), str(journal), str(count), str(seed)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())

    running = {seed: start(seed, 70) for seed in range(8)}
    killed, seed = 0, 8
    while running:
        key, process = next(iter(running.items()))
        out, err = process.communicate(timeout=120)
        del running[key]
        if process.returncode == -signal.SIGKILL:
            killed += 1
            seed += 4 if key % 4 == 0 else 1
            running[seed] = start(seed, 10)  # its replacement
            if killed > 12:
                break
        else:
            assert (process.returncode, out) == (0, "done\n"), err  # a double lease is a BlockingIOError here
    for process in running.values():
        process.communicate(timeout=120)
    leased = [json.loads(line) for line in journal.read_text().splitlines()]
    assert len(leased) >= 500
    assert killed >= 3
    assert set(Counter(name for _, name, _ in leased)) == {"0", "1", "MIG-a/1"}
    # Nothing is lost: all parts of all of them can be had at once.
    for name in ("0", "1", "MIG-a/1"):
        assert attempt((name,), tmp_path, 0) == name
