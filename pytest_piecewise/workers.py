"""Where tasks are done: in children that a warm server forks, each with private directories, a deadline, a memory limit
and a GPU lease; or in this process."""

from __future__ import annotations

import contextlib
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
from pytest_piecewise.outcome import End, free_memory, phase_of, record_of, session_memory
from pytest_piecewise.records import HEADERS, BuildRecord, Case, Settings, from_plain
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

    def alike(self) -> Worker | None:
        """Another worker of the same kind, to be closed by the caller; None where tasks cannot be done side by side."""

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
        return record_of(task, folder, end)

    def alike(self) -> Children:
        """A server of its own, with the same modules imported."""
        return Children(tuple(self._preloaded))

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

    def _watch(self, pid: int, task: dict[str, Any], folder: Path, settings: Settings, on_tick: OnTick) -> End:
        begin, limit = time.monotonic(), settings.memory_limit_bytes or int(free_memory() * MEMORY_SHARE)
        memory = 0
        while pid not in self._exits:
            self._read(POLL_SECONDS)
            seconds, phase = time.monotonic() - begin, phase_of(folder)
            on_tick(task.get("variant") or task["kind"], phase, seconds)
            memory = session_memory(pid) or memory
            if limit and memory > limit:
                return End("memory", f"used {memory / 2**20:.0f} MiB, the limit is {limit / 2**20:.0f} MiB", phase)
            if seconds > settings.timeout_seconds:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
                time.sleep(0.5)
                return End("timeout", f"still running after {settings.timeout_seconds:g} s", phase)
        return End("exit", "", phase_of(folder), self._exits.pop(pid), memory)

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

    def alike(self) -> None:
        """There is one process."""

    def close(self) -> None:
        """Nothing to end."""


class Workers:
    """The workers of a session, started when first needed. Engines share a server only if it has the same modules imported:
    such a module may change torch for all that is forked later, as vLLM's do."""

    def __init__(self, isolation: str) -> None:
        self._isolated = isolation != "none"
        self._started: dict[tuple[str, ...], Worker] = {}

    def of_engine(self, engine: str) -> Worker:
        """Where builds of an engine are made."""
        preload = tuple(getattr(hooks.find_engine(engine), "preload", ())) if self._isolated else ()
        if preload not in self._started:
            self._started[preload] = Children(preload) if self._isolated else InProcess()
        return self._started[preload]

    @property
    def gpus(self) -> int:
        """How many GPUs torch sees on this machine."""
        return (next(iter(self._started.values()), None) or self.of_engine("native")).gpus

    def close(self) -> None:
        """Ends all that was started."""
        while self._started:
            self._started.popitem()[1].close()


def _own_environment() -> dict[str, str]:
    """The environment variables of this process, without those in which pytest says where it is."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
