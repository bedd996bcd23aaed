"""The warm server: imports torch once, compiles one throw-away kernel, then forks a child per build. Never touches CUDA.

Run as `python -m pytest_piecewise.server`. Commands come as JSON lines on stdin, answers go to stdout; the end of
stdin ends the server and everything that it has started.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import logging
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pytest_piecewise.leases import hold
from pytest_piecewise.records import CHILD, HEADERS, OUTPUT, RESULT, TASK

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what imported modules print must not end up among the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller decides when children die
    # Generated code must not run on several threads here: a child forked from a process with an OpenMP pool hangs.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ[CHILD] = "1"
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    children: set[int] = set()
    _answer(answers, {"torch": torch.__version__, "gpus": _count_gpus(torch)})
    buffered = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.02 if children else None)
        for pid, status in _reap(children):
            _answer(answers, {"exit": pid, "status": status})
        if not ready:
            continue
        data = os.read(0, 1 << 20)
        if not data:
            break
        *lines, buffered = (buffered + data).split(b"\n")
        for line in lines:
            _serve(json.loads(line), answers, children)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _serve(command: dict[str, Any], answers: Any, children: set[int]) -> None:
    if "import" in command:
        _answer(answers, _import(command["import"], command["path"]))
    elif "warm" in command:
        with _temporary_directory(os.environ[HEADERS]):  # codecache asks where it is when it is imported, and only then
            imported = _attempt(warm_imports)
        _answer(answers, _attempt(_warm_cpu) if command["warm"] == "cpu" and "error" not in imported else imported)
    else:
        pid = os.fork()
        if pid == 0:
            _child(command)
        children.add(pid)
        _answer(answers, {"pid": pid})


def _answer(answers: Any, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")


def _attempt(action: Callable[[], object]) -> dict[str, Any]:
    begin = time.perf_counter()
    try:
        action()
    except BaseException:  # noqa: BLE001 - a server that dies of a user's module, or exits with it, could not say so
        return {"error": traceback.format_exc()}
    return {"seconds": time.perf_counter() - begin}


def _import(module: str, path: list[str]) -> dict[str, Any]:
    sys.path[:] = path
    return _attempt(lambda: importlib.import_module(module))


def _count_gpus(torch: Any) -> int:
    """Asked of a child: the driver, once initialised here, would be unusable in every later child."""
    pid = os.fork()
    if pid == 0:
        count = 0
        with contextlib.suppress(Exception):
            count = torch.cuda.device_count()
        os._exit(min(count, 100))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextlib.contextmanager
def _temporary_directory(name: str) -> Iterator[None]:
    before, tempfile.tempdir = tempfile.tempdir, name
    try:
        yield
    finally:
        tempfile.tempdir = before


def warm_imports() -> None:
    """Everything that a build imports, so that no child pays for it.

    Inductor keeps its precompiled headers, which take longer to make than ten kernels and which it tells apart by compiler,
    flags and content, in what is the directory of temporary files at this moment. So this comes before
    `private_directories`: they are made once per machine, as without this tool, and are not removed under later builds.
    """
    for module in ("pytest_piecewise.engines.tasks", "pytest_piecewise.engines.builds", "torch._inductor.compile_fx"):
        importlib.import_module(module)


def _warm_cpu() -> None:
    """One small compilation: vector instruction set, precompiled headers, and Inductor's lazy imports are then known."""
    torch = importlib.import_module("torch")
    with tempfile.TemporaryDirectory() as cache, torch.no_grad():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        torch.compile(lambda x: (x.sin() + 1).sum(-1))(torch.randn(64, 64))
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    utils = importlib.import_module("torch._dynamo.utils")
    torch._dynamo.reset()
    utils.counters.clear()
    utils.clear_compilation_metrics()


def _reap(children: set[int]) -> list[tuple[int, int]]:
    ended = []
    for pid in list(children):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            children.remove(pid)
            ended.append((pid, os.waitstatus_to_exitcode(status)))
    return ended


def _child(command: dict[str, Any]) -> None:
    """Never returns. Session leader of its own, so that it and all it starts can be killed together."""
    try:
        os.setsid()
        _die_with_the_server()
        folder = Path(command["folder"])
        output = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if sys.modules["torch"].cuda._is_in_bad_fork():
            # An imported module has asked the driver something in the server: no fork of it can use CUDA any more.
            (folder / TASK).write_text(json.dumps(command))
            os.execv(sys.executable, [sys.executable, "-m", __spec__.name, str(folder / TASK)])
        _work(command)
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(70)


def _die_with_the_server() -> None:
    """Where the kernel can: this process is killed when the server ends, and first when memory runs out."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _work(command: dict[str, Any]) -> None:
    """Does the task of a command and ends the process, until which it holds the GPU that was leased for it."""
    hold(command["held"])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # a hanging child is asked where it hangs before it is killed
    folder = Path(command["folder"])
    os.environ.update(command["environ"])
    sys.path[:] = command["path"]
    private_directories(folder, command["task"].get("cache"))
    if caches := command["task"].get("caches"):
        shared_caches(Path(caches))
    from pytest_piecewise.child import work  # noqa: PLC0415 - imports torch

    part = folder / f"{RESULT}.part"
    part.write_text(json.dumps(work(command["task"], folder)))
    part.rename(folder / RESULT)
    sys.stdout.flush()
    os._exit(0)


def private_directories(folder: Path, cache: str | None = None) -> None:
    """Caches and temporary files of this process alone: nothing on disk is found, and nothing is left.

    `cache` is an Inductor cache directory to use, and to leave, in place of its own.
    """
    for variable, name in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton"), ("TMPDIR", "tmp")):
        (folder / name).mkdir(exist_ok=True)
        os.environ[variable] = str(folder / name)
    if cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    tempfile.tempdir = None


def shared_caches(folder: Path) -> None:
    """All compilation caches in `folder`, where a later process is to find what this one leaves."""
    for variable, name in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        os.environ[variable] = str(folder / name)


def quiet_trace_log() -> None:
    """Keeps torch's structured trace, hundreds of records a build, from the log that pytest shows with a failed test."""
    logging.getLogger("torch.__trace").propagate = False


def remove_directories(folder: Path) -> None:
    """Removes what `private_directories` has made."""
    for name in ("inductor", "triton", "tmp"):
        shutil.rmtree(folder / name, ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _work(json.loads(Path(sys.argv[1]).read_text()))
    main()
    os._exit(0)  # there is nothing to save, and torch's own way out takes more than a second
