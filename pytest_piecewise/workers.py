"""Where tasks are done: in children that a warm server forks, each with private directories, a deadline, a memory limit
and a GPU lease; or in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from pytest_piecewise import hooks
from pytest_piecewise.errors import PiecewiseError, UnfitError
from pytest_piecewise.leases import gpu_for, share_of
from pytest_piecewise.records import (
    HEADERS,
    OUTPUT,
    PHASE,
    RESULT,
    BuildRecord,
    Case,
    Finding,
    Settings,
    Status,
    from_plain,
)
from pytest_piecewise.server import private_directories, quiet_trace_log, remove_directories, warm_imports

POLL_SECONDS = 0.25
"""Between two looks at a child, each of which reads what every process of the machine uses. Its end is noticed at once."""
MEMORY_SHARE = 0.9
"""Without a limit in the settings, a build may use this share of the memory that is free when it starts."""

OnTick = Callable[[str, str, float], None]
"""Told `(variant, phase, seconds so far)` a few times a second while a build runs."""


class Worker(Protocol):
    """Where tasks are done: in children, or in this process."""

    gpus: int

    def do(self, task: dict[str, Any], folder: Path, settings: Settings, on_tick: OnTick) -> BuildRecord:
        """Does one task with `folder` as its own directory, whose parent the case's tasks share."""

    def close(self) -> None:
        """Ends everything that was started."""


class Children:
    """The warm server and the children that it forks. `preload` names modules that all of them have imported."""

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="piecewise-server-"))
        self._headers = tempfile.gettempdir()
        self._preloaded: dict[str, None] = {}
        """In the order in which they were imported: one may change torch for the next."""
        self._warm: set[str] = set()
        self._exits: dict[int, int] = {}
        self._running: set[int] = set()
        self._start()
        for module in preload:
            self.preload(module)

    def _start(self) -> None:
        self._environment = _own_environment()
        environment = os.environ | {"TMPDIR": str(self._home), HEADERS: self._headers}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        # Asked through the driver itself, the number of GPUs would make CUDA unusable in every fork of the server.
        environment.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        # Idle OpenMP threads sleep: spinning ones slow down whatever else runs, as under xdist, and change no result.
        environment.setdefault("OMP_WAIT_POLICY", "passive")
        self._server = subprocess.Popen(
            [sys.executable, "-m", "pytest_piecewise.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self._buffered = b""
        self._answers: list[dict[str, Any]] = []
        hello = self._answer(timeout=300)
        self.gpus = int(hello["gpus"])

    def preload(self, module: str) -> None:
        """Imports a module before forking, so that no child pays for it. One that fails is left to the child to report."""
        if module not in self._preloaded:
            self._preloaded[module] = None
            self._send({"import": module, "path": sys.path})
            self._answer(timeout=300)

    def do(self, task: dict[str, Any], folder: Path, settings: Settings, on_tick: OnTick) -> BuildRecord:
        """Forks a child for the task and waits for its end, its deadline or its memory limit."""
        case = from_plain(Case, task["case"])
        # Killed from outside, the rest of the session goes on with another one; and torch reads much of the environment when
        # it is imported, so that forks would have the old one.
        if self._server.poll() is not None or self._environment != _own_environment():
            self._restart()
        if task["kind"] != "probe":
            self._warm_up("cpu" if case.device == "cpu" else "imports", on_tick)
        folder.mkdir(parents=True)
        name, begin = task.get("variant") or task["kind"], time.monotonic()
        with gpu_for(
            case.device, self.gpus, share_of(task["kind"], settings.gpu_memory_bytes),
            lambda: on_tick(name, "waiting for a GPU", time.monotonic() - begin),
        ) as lease:  # fmt: skip
            environ = {"CUDA_VISIBLE_DEVICES": lease.name} if lease else {}
            held = [str(path) for path in lease.held] if lease else []
            environ |= dict(hooks.find_engine(case.engine).environ(case))
            # A child sees its leased GPU only, as number 0.
            task = task | {"case": task["case"] | {"device": case.device.partition(":")[0]}}
            command = {"task": task, "folder": str(folder), "environ": environ, "path": sys.path, "held": held}
            self._send(command)
            pid = int(self._answer(timeout=60)["pid"])
            self._running.add(pid)
            try:
                end = self._watch(pid, task, folder, settings, on_tick)
            finally:
                self._kill(pid)
        remove_directories(folder)
        return _record(task, folder, end)

    def _restart(self) -> None:
        self.close_server()
        self._warm.clear()
        modules, self._preloaded = self._preloaded, {}
        self._start()
        for module in modules:
            self.preload(module)

    def _warm_up(self, what: str, on_tick: OnTick) -> None:
        if what in self._warm:
            return
        on_tick("", "warming the compiler", 0.0)
        # Precompiled headers of earlier sessions are used, unless one that was killed, or had no room, has left half of one.
        error = self._warmed(what)
        if error:
            self._headers = str(self._home)
            self._restart()
            error = self._warmed(what)
        if error:
            raise UnfitError(f"a first compilation failed; is there a C++ compiler?\n{error}")
        self._warm.add(what)

    def _warmed(self, what: str) -> str | None:
        self._send({"warm": what})
        return self._answer(timeout=300).get("error")

    def _watch(self, pid: int, task: dict[str, Any], folder: Path, settings: Settings, on_tick: OnTick) -> _End:
        begin, limit = time.monotonic(), settings.memory_limit_bytes or int(_free_memory() * MEMORY_SHARE)
        memory = 0
        while pid not in self._exits:
            self._read(POLL_SECONDS)
            seconds, phase = time.monotonic() - begin, _phase(folder)
            on_tick(task.get("variant") or task["kind"], phase, seconds)
            memory = _session_memory(pid) or memory
            if limit and memory > limit:
                return _End("memory", f"used {memory / 2**20:.0f} MiB, the limit is {limit / 2**20:.0f} MiB", phase)
            if seconds > settings.timeout_seconds:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
                time.sleep(0.5)
                return _End("timeout", f"still running after {settings.timeout_seconds:g} s", phase)
        return _End("exit", "", _phase(folder), self._exits.pop(pid), memory)

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        self._running.discard(pid)

    def _send(self, command: dict[str, Any]) -> None:
        assert self._server.stdin is not None
        try:
            self._server.stdin.write(json.dumps(command).encode() + b"\n")
            self._server.stdin.flush()
        except BrokenPipeError as error:
            raise self._died() from error

    def _answer(self, timeout: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while not self._answers:
            if time.monotonic() > deadline:
                raise PiecewiseError(f"the server did not answer within {timeout:g} s")
            self._read(1.0)
        return self._answers.pop(0)

    def _read(self, seconds: float) -> None:
        assert self._server.stdout is not None
        descriptor = self._server.stdout.fileno()
        ready, _, _ = select.select([descriptor], [], [], seconds)
        if not ready:
            return
        data = os.read(descriptor, 1 << 20)
        if not data:
            raise self._died()
        *lines, self._buffered = (self._buffered + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "exit" in message:
                self._exits[message["exit"]] = message["status"]
            else:
                self._answers.append(message)

    def _died(self) -> PiecewiseError:
        code = self._server.wait(10)
        return PiecewiseError(
            f"the server process ended with code {code}; run `{sys.executable} -m pytest_piecewise.server` to see why"
        )

    def close_server(self) -> None:
        """Ends the server and every child that still runs."""
        for pid in list(self._running):
            self._kill(pid)
        assert self._server.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._server.stdin.close()
        try:
            self._server.wait(2)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def close(self) -> None:
        """Ends the server, its children, and removes its directory."""
        self.close_server()
        shutil.rmtree(self._home, ignore_errors=True)


class InProcess:
    """Does tasks in this process, for a debugger: no deadline, no memory limit, and no cost that could be trusted."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - only where the user asked for it

        self.gpus = torch.cuda.device_count()
        before = dict(os.environ)  # in which Inductor, imported, notes its usual cache directory
        warm_imports()
        os.environ.clear()
        os.environ.update(before)

    def do(self, task: dict[str, Any], folder: Path, settings: Settings, on_tick: OnTick) -> BuildRecord:
        """Does the task here, with private cache directories."""
        import torch  # noqa: PLC0415

        from pytest_piecewise.child import work  # noqa: PLC0415 - imports torch

        torch.compiler.reset()  # or each build would count towards the recompile limit of the next one of its class
        folder.mkdir(parents=True)
        before = dict(os.environ)
        try:
            private_directories(folder, task.get("cache"))
            quiet_trace_log()
            name = task.get("variant") or task["kind"]
            # This process sees all GPUs, under their own numbers; without one the task uses the first.
            device = {"cuda": "cuda:0"}.get(task["case"]["device"], task["case"]["device"])
            with gpu_for(device, self.gpus, 0, lambda: on_tick(name, "waiting for a GPU", 0.0)):
                return from_plain(BuildRecord, work(task, folder, lambda phase: on_tick(name, phase, 0.0)))
        finally:
            os.environ.clear()
            os.environ.update(before)
            tempfile.tempdir = None
            remove_directories(folder)

    def close(self) -> None:
        """Nothing to end."""


def _own_environment() -> dict[str, str]:
    """The environment variables of this process, without those in which pytest says where it is."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    kind: str
    reason: str
    phase: str
    status: int = 0
    memory: int = 0


def _record(task: dict[str, Any], folder: Path, end: _End) -> BuildRecord:
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


def _phase(folder: Path) -> str:
    with contextlib.suppress(OSError):
        return (folder / PHASE).read_text(errors="replace")
    return ""


def _free_memory() -> int:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return 0


def _session_memory(session: int) -> int | None:
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
