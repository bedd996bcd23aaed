"""The machine's lock: many readers or one writer, across processes; no deadlock, no starving, and death unlocks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_piecewise.machine_lock import VARIABLE, Busy, alone, lock_directory, shared, shared_if_free
from tests.running import ROOT

HOLD = """
import sys, time
from pathlib import Path
from pytest_piecewise.machine_lock import alone, shared
with {how}(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def start(directory: Path, how: str, seconds: float) -> subprocess.Popen[str]:
    """A process that holds the lock as soon as it can, for so long."""
    command = [sys.executable, "-c", HOLD.format(how=how), str(directory), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


@contextmanager
def holding(directory: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    process = start(directory, how, 60)
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_readers_share_and_a_writer_waits_for_them(tmp_path: Path) -> None:
    with holding(tmp_path, "shared"):
        with shared(tmp_path, timeout=0):
            pass
        with pytest.raises(Busy), alone(tmp_path, timeout=0.1):
            pass


def test_writer_keeps_everybody_out(tmp_path: Path) -> None:
    with holding(tmp_path, "alone"):
        for how in (shared, alone):
            with pytest.raises(Busy), how(tmp_path, timeout=0.1):
                pass


def test_one_process_does_not_let_itself_in_either(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(Busy), shared(tmp_path, timeout=0):
        pass


@pytest.mark.parametrize("how", ["shared", "alone"])
def test_killed_holder_holds_nothing(tmp_path: Path, how: str) -> None:
    with holding(tmp_path, how) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with alone(tmp_path, timeout=5):
            pass


def test_lock_is_free_again_after_an_error_inside_or_while_waiting(tmp_path: Path) -> None:
    for how in (shared, alone):
        with pytest.raises(ZeroDivisionError), how(tmp_path):
            raise ZeroDivisionError
    with holding(tmp_path, "shared"):
        with pytest.raises(Busy), alone(tmp_path, timeout=0.1):
            pass
        with shared(tmp_path, timeout=0):  # the writer that gave up no longer keeps readers out
            pass


def test_waiting_writer_is_not_starved_by_readers_that_keep_coming(tmp_path: Path) -> None:
    readers = [start(tmp_path, "shared", 1.0) for _ in range(2)]
    for reader in readers:
        assert reader.stdout is not None
        reader.stdout.readline()
    writer = start(tmp_path, "alone", 0.0)
    time.sleep(0.3)  # it now waits at the room, and holds the door
    with pytest.raises(Busy), shared(tmp_path, timeout=0):
        pass
    assert writer.wait(20) == 0
    assert [reader.wait(20) for reader in readers] == [0, 0]


def test_many_of_both_kinds_come_to_an_end(tmp_path: Path) -> None:
    processes = [start(tmp_path, how, 0.05) for how in ("shared", "alone", "shared", "alone", "shared", "alone")]
    assert [process.wait(60) for process in processes] == [0] * 6


def test_build_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with holding(tmp_path, "alone"):
        begin = time.monotonic()
        with shared_if_free(0.2):
            assert time.monotonic() - begin >= 0.2


def test_directory_is_the_machines_and_not_that_of_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert lock_directory() == Path("/tmp")


def test_files_may_be_locked_by_every_user(tmp_path: Path) -> None:
    with shared(tmp_path):
        pass
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {"0o666"}
    for path in tmp_path.iterdir():
        path.chmod(0o444)
    with alone(tmp_path, timeout=0):
        pass
