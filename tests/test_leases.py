"""GPU leases exclude each other across processes, and die with their holder."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_piecewise import PiecewiseError
from pytest_piecewise.leases import leased_gpu, visible_gpus

HOLDER = """
import sys
from pathlib import Path
from pytest_piecewise.leases import leased_gpu
with leased_gpu(tuple(sys.argv[2].split(",")), Path(sys.argv[1])) as gpu:
    print(gpu, flush=True)
    sys.stdin.readline()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Start]:
    """Starts processes that hold a lease until a line is written to them."""
    started: list[subprocess.Popen[str]] = []

    def start(candidates: str, *, wait: bool = True) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(tmp_path), candidates]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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


def attempt(candidates: tuple[str, ...], folder: Path, seconds: float) -> str | None:
    """The GPU that a lease gives within some seconds, or None if it still waits."""
    got: list[str] = []

    def take() -> None:
        with suppress(PiecewiseError), leased_gpu(candidates, folder) as gpu:
            got.append(gpu)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(seconds)
    return got[0] if got else None


def test_lease_gives_the_first_that_is_free(tmp_path: Path) -> None:
    with leased_gpu(("0", "1"), tmp_path) as first, leased_gpu(("0", "1"), tmp_path) as second:
        assert (first, second) == ("0", "1")
    with leased_gpu(("0", "1"), tmp_path) as again:
        assert again == "0"


def test_two_processes_exclude_each_other(tmp_path: Path, holder: Start) -> None:
    first = holder("0")
    assert gpu_of(first) == "0"
    assert attempt(("0",), tmp_path, 0.5) is None
    assert gpu_of(holder("0,1")) == "1"


def test_lease_that_was_given_back_is_taken_by_who_waits(tmp_path: Path, holder: Start) -> None:
    first = holder("0")
    waiting = holder("0", wait=False)
    time.sleep(0.5)
    assert first.stdin is not None
    first.stdin.write("\n")
    first.stdin.flush()
    assert waiting.stdout is not None
    assert waiting.stdout.readline().strip() == "0"
    assert attempt(("0",), tmp_path, 0.3) is None


def test_lease_of_a_killed_process_is_free_again(tmp_path: Path, holder: Start) -> None:
    process = holder("0")
    assert attempt(("0",), tmp_path, 0.3) is None
    process.kill()
    process.wait()
    with leased_gpu(("0",), tmp_path) as gpu:
        assert gpu == "0"


def test_lease_is_given_back_when_its_holder_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="build failed"), leased_gpu(("0",), tmp_path):
        raise RuntimeError("build failed")
    assert attempt(("0",), tmp_path, 5) == "0"


def test_names_with_slashes_can_be_leased(tmp_path: Path) -> None:
    name = "MIG-GPU-0123/7/0"
    with leased_gpu((name,), tmp_path) as gpu:
        assert gpu == name
        assert attempt((name,), tmp_path, 0.3) is None


def test_no_gpu_at_all_is_an_error_and_no_endless_wait(tmp_path: Path) -> None:
    refusals: list[str] = []

    def take() -> None:
        try:
            with leased_gpu((), tmp_path):
                pass
        except PiecewiseError as error:
            refusals.append(str(error))

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(2)
    assert not thread.is_alive(), "still waiting for a GPU of which there is none"
    assert "expected" in refusals[0]


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
