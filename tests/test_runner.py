"""Children, one per build: what becomes of each way to end, and that nothing of them is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise import Case, PiecewiseError, Status
from pytest_piecewise.records import BuildRecord, Settings, to_plain
from pytest_piecewise.runner import run_case
from pytest_piecewise.workers import Children, InProcess, Worker
from tests.running import ROOT, environment

MODELS = """
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from pytest_piecewise import Model
from tests.planted.models import Network, rows

NOTES = Path(os.environ["CHILD_NOTES"])


def note(*values):
    NOTES.write_text("\\\\n".join(map(str, values)))


def directories():
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")
    note(*[os.environ[name] for name in names], tempfile.gettempdir(), os.getpid())
    for name in names:
        (Path(os.environ[name]) / "left").write_text("behind")


def leave():
    print("about to leave", flush=True)
    os._exit(3)


def leave_politely():
    raise SystemExit("no such weights")


def crash():
    os.write(1, b"\\\\xff\\\\xfe before the end\\\\n")
    os.kill(os.getpid(), signal.SIGSEGV)


def fail():
    raise ZeroDivisionError("weights \\\\xff\\\\u2264 1\\\\nand a second line")


def run_out_of_memory():
    raise MemoryError("no room")


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def hang_with_family():
    note(subprocess.Popen(["sleep", "600"]).pid)
    print("hanging", flush=True)
    time.sleep(600)


def crash_with_family():
    note(subprocess.Popen(["sleep", "600"]).pid)
    os._exit(5)


def eat():
    eaten = [torch.ones(2**24) for _ in range(200)]
    raise AssertionError(f"ate {len(eaten)}")


def show_environment():
    note(os.environ.get("A_VARIABLE_OF_THE_PARENT"), os.environ["PYTEST_PIECEWISE_CHILD"], sys.path[0])


def built(first):
    first()
    return Network()


model = partial(Model, inputs=rows, capture_sizes=(1,), dtypes=("float32",))
DIRECTORIES = model(name="directories", build=partial(built, directories))
LEAVE = model(name="leave", build=partial(built, leave))
LEAVE_POLITELY = model(name="leave-politely", build=partial(built, leave_politely))
CRASH = model(name="crash", build=partial(built, crash))
FAIL = model(name="fail", build=partial(built, fail))
RUN_OUT = model(name="run-out", build=partial(built, run_out_of_memory))
KILLED = model(name="killed", build=partial(built, is_killed))
HANG = model(name="hang", build=partial(built, hang_with_family))
CRASH_WITH_FAMILY = model(name="crash-with-family", build=partial(built, crash_with_family))
EAT = model(name="eat", build=partial(built, eat))
ENVIRONMENT = model(name="environment", build=partial(built, show_environment))
# An op that is not registered makes the probe call build(), in case that registers it.
HANG_IN_PROBE = model(name="hang-in-probe", build=partial(built, hang_with_family), splitting_ops=("odd::no_such_op",))
""".replace("\\\\", "\\")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the models, on the path of this process and thereby of every child."""
    directory = tmp_path_factory.mktemp("models")
    (directory / "odd_models.py").write_text(MODELS)
    (directory / "broken_models.py").write_text("import nothing_of_this_name\n")
    (directory / "leaving_models.py").write_text("raise SystemExit('not here')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        patch.setenv("CHILD_NOTES", str(directory / "notes"))
        patch.setenv("A_VARIABLE_OF_THE_PARENT", "its value")
        patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")  # spares the server the test programs for the instruction set
        yield directory


@pytest.fixture(scope="module")
def children(place: Path) -> Iterator[Children]:
    started = Children()
    yield started
    started.close()


@pytest.fixture
def notes(place: Path) -> Callable[[], list[str]]:
    """What the child of this test has written down."""
    path = place / "notes"
    path.unlink(missing_ok=True)
    return lambda: path.read_text().splitlines()


def do(worker: Worker, model: str, folder: Path, kind: str = "build", **settings: Any) -> BuildRecord:
    """The eager build of a model, with `folder` for its own."""
    case = to_plain(Case(model=model if ":" in model else f"odd_models:{model}", name="odd", device="cpu"))
    chosen = Settings(device="cpu", **settings)
    variant = "eager" if kind == "build" else ""
    task = {"kind": kind, "variant": variant, "case": case, "settings": to_plain(chosen)}
    return worker.do(task, folder, chosen, lambda variant, phase, seconds: None)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return not Path("/proc").exists()
        return False


def ends(pid: int, seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_running(pid)


def only_finding(record: BuildRecord) -> tuple[str, str, str]:
    (found,) = record.findings
    assert (found.check, found.status, found.variant) == ("build", Status.FAIL, "eager")
    return found.summary, found.detail, found.action


def test_every_child_has_directories_of_its_own_that_are_removed(
    children: Children, tmp_path: Path, notes: Callable[[], list[str]]
) -> None:
    found = []
    before = {name: os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")}
    for name in ("first", "second"):
        assert do(children, "DIRECTORIES", tmp_path / name).outcome == "ok"
        *directories, temporary, pid = notes()
        assert temporary == directories[2]
        assert all(directory.startswith(str(tmp_path / name)) for directory in directories)
        assert int(pid) not in (os.getpid(), children._server.pid)
        found += [*directories, pid]
    assert len(set(found)) == 8
    assert not any(Path(path).exists() for path in found)
    assert (tmp_path / "first" / "result.json").exists()
    assert {name: os.environ.get(name) for name in before} == before


def test_environment_and_path_of_the_parent_reach_the_child(
    children: Children, tmp_path: Path, place: Path, notes: Callable[[], list[str]]
) -> None:
    assert do(children, "ENVIRONMENT", tmp_path / "build").outcome == "ok"
    assert notes() == ["its value", "1", str(place)]
    assert "PYTEST_PIECEWISE_CHILD" not in os.environ


ENDS = [
    # model, outcome, what the summary says, what the detail says, what to do
    ("LEAVE", "crash", "ended with exit code 3 and no result in phase 'model'", "about to leave", "with --pdb"),
    ("LEAVE_POLITELY", "crash", "ended with exit code 70 and no result in phase 'model'", "SystemExit: no such weights", ""),
    ("CRASH", "crash", "killed by SIGSEGV in phase 'model'", "odd_models.py", "the last output is in the detail"),
    ("FAIL", "error", "ZeroDivisionError: weights \xff\u2264 1", "and a second line", ""),
    ("RUN_OUT", "memory", "MemoryError: no room", "in run_out_of_memory", ""),
    ("KILLED", "memory", "killed by SIGKILL, probably by the kernel for want of memory; it last used", "", "smaller model"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "outcome", "summary", "detail", "action"), ENDS, ids=[end[0] for end in ENDS])
def test_every_end_becomes_a_record(
    children: Children, tmp_path: Path, model: str, outcome: str, summary: str, detail: str, action: str
) -> None:
    record = do(children, model, tmp_path / "build")
    assert (record.outcome, record.variant) == (outcome, "eager")
    found = only_finding(record)
    assert found[0].startswith(summary)
    assert detail in found[1]
    assert action in found[2]
    assert detail in record.last_output
    assert do(children, "odd_models:FAIL", tmp_path / "next").outcome == "error"  # the server goes on


def test_output_that_is_no_text_is_harmless(children: Children, tmp_path: Path) -> None:
    record = do(children, "CRASH", tmp_path / "build")
    assert record.last_output.startswith("\ufffd\ufffd before the end\n")
    assert (tmp_path / "build" / "output.txt").read_bytes().startswith(b"\xff\xfe before")


def test_child_past_its_deadline_is_asked_where_it_hangs_and_killed_with_its_family(
    children: Children, tmp_path: Path, notes: Callable[[], list[str]]
) -> None:
    begin = time.monotonic()
    record = do(children, "HANG", tmp_path / "build", timeout_seconds=2.0)
    assert time.monotonic() - begin < 30
    summary, detail, action = only_finding(record)
    assert record.outcome == "timeout"
    assert summary == "still running after 2 s in phase 'model'"
    assert "in hang_with_family" in detail
    assert "odd_models.py" in record.last_output
    assert record.last_output.startswith("hanging\n")
    assert "--piecewise-timeout raises it" in action
    assert ends(int(notes()[0]))


def test_family_of_a_child_that_ended_by_itself_is_killed(
    children: Children, tmp_path: Path, notes: Callable[[], list[str]]
) -> None:
    assert do(children, "CRASH_WITH_FAMILY", tmp_path / "build").outcome == "crash"
    assert ends(int(notes()[0]))


def test_child_beyond_the_memory_limit_is_killed(children: Children, tmp_path: Path) -> None:
    record = do(children, "EAT", tmp_path / "build", memory_limit_bytes=2 * 2**30)
    summary, _, action = only_finding(record)
    assert record.outcome == "memory"
    assert summary.endswith("MiB, the limit is 2048 MiB in phase 'model'")
    assert 2048 < int(summary.split()[1]) < 12_000
    assert "memory-limit in [tool.pytest_piecewise] raises the limit" in action


@pytest.mark.parametrize(
    ("module", "text"), [("broken_models", "No module named 'nothing_of_this_name'"), ("leaving_models", "not here")]
)
def test_module_that_cannot_be_imported_is_reported_by_the_child(
    children: Children, tmp_path: Path, module: str, text: str
) -> None:
    server = children._server.pid
    children.preload(module)
    record = do(children, f"{module}:MODEL", tmp_path / "build", kind="probe")
    assert record.outcome in ("error", "crash")
    assert text in record.last_output
    assert children._server.pid == server
    assert do(children, "DIRECTORIES", tmp_path / "next", kind="probe").outcome == "ok"


def test_probe_imports_nothing_of_the_compiler(place: Path, tmp_path: Path) -> None:
    task = {"kind": "probe", "case": to_plain(Case(model="odd_models:DIRECTORIES", name="odd", device="cpu"))}
    program = (
        "import json, sys, pathlib; from pytest_piecewise.child import work; task = json.loads(sys.argv[1]); "
        "assert work(task, pathlib.Path(sys.argv[2]))['outcome'] == 'ok'; "
        "print({'torch._inductor.compile_fx', 'pytest_piecewise.engines.tasks'} & set(sys.modules))"
    )
    told = json.dumps(task | {"settings": to_plain(Settings(device="cpu"))})
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, told, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert (ended.returncode, ended.stdout) == (0, "set()\n"), ended.stderr


def test_precompiled_headers_serve_later_sessions_and_a_damaged_one_is_made_again(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for number in range(2):
        worker = Children()
        try:
            assert do(worker, "DIRECTORIES", tmp_path / f"{number}" / "build").outcome == "ok"
        finally:
            worker.close()
        (header,) = tmp_path.glob("torchinductor_*/precompiled_headers/*.gch")
        made = header.read_bytes()
        header.write_bytes(made[:10_000_000])
    assert len(made) == 10_000_000, "the second session has used, or made, the first one's"


def test_phases_are_told_while_a_child_runs(children: Children, tmp_path: Path) -> None:
    told: list[tuple[str, str, float]] = []
    settings = Settings(device="cpu", timeout_seconds=1.0)
    case = Case(model="odd_models:HANG", name="hang", device="cpu")
    task = {"kind": "build", "variant": "full", "case": to_plain(case), "settings": to_plain(settings)}
    children.do(task, tmp_path / "build", settings, lambda *what: told.append(what))
    told = [(variant, phase, seconds) for variant, phase, seconds in told if phase != "warming the compiler"]
    assert {(variant, phase) for variant, phase, _ in told} <= {("full", ""), ("full", "model")}
    assert told[-1][:2] == ("full", "model")
    assert [seconds for _, _, seconds in told] == sorted(seconds for _, _, seconds in told)
    assert len(told) >= 4


def test_killed_server_is_started_again_for_the_next_task(
    place: Path, tmp_path: Path, notes: Callable[[], list[str]]
) -> None:
    children = Children()
    try:
        home, first = children._home, children._server

        def kill_when_it_hangs() -> None:
            while not (place / "notes").exists() or not notes():
                time.sleep(0.05)
            first.kill()

        killer = threading.Thread(target=kill_when_it_hangs, daemon=True)
        killer.start()
        with pytest.raises(PiecewiseError, match="the server process ended with code -9; run "):
            do(children, "HANG_IN_PROBE", tmp_path / "before", kind="probe", timeout_seconds=60.0)
        killer.join()
        assert ends(int(notes()[0]))
        assert do(children, "DIRECTORIES", tmp_path / "after", kind="probe").outcome == "ok"
        assert children._server.pid != first.pid
        assert home.exists()
    finally:
        children.close()
    assert ends(children._server.pid)
    assert not home.exists()


def test_children_have_the_environment_of_the_test_that_asks(
    place: Path, tmp_path: Path, notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    children = Children()
    try:
        first = children._server.pid
        do(children, "ENVIRONMENT", tmp_path / "before")
        assert (notes()[0], children._server.pid) == ("its value", first)
        monkeypatch.setenv("A_VARIABLE_OF_THE_PARENT", "another")
        do(children, "ENVIRONMENT", tmp_path / "after")
        assert notes()[0] == "another"
        assert ends(first)
    finally:
        children.close()


def test_variants_that_need_a_build_that_failed_are_not_tried(children: Children) -> None:
    settings = Settings(device="cpu")
    before = set(Path(tempfile.gettempdir()).glob("piecewise-case-*"))
    case = Case(model="odd_models:FAIL", name="fail", device="cpu")
    result = run_case(case, settings, children, lambda variant, phase, seconds: None)
    said = [(item.variant, item.status, item.summary) for item in result.findings]
    reason = "not done, since eager did not end well"
    assert said[0][:2] == ("eager", Status.FAIL)
    assert said[1:] == [(name, Status.SKIP, reason) for name in ("full", "piecewise", "reference", "comparison")]
    assert [build.outcome for build in result.builds] == ["error"]
    assert set(Path(tempfile.gettempdir()).glob("piecewise-case-*")) == before


def test_in_process_restores_the_environment(
    place: Path, tmp_path: Path, notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "as it was")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    before, temporary = dict(os.environ), tempfile.gettempdir()
    told: list[str] = []
    worker = InProcess()
    settings = Settings(device="cpu")
    case = Case(model="odd_models:DIRECTORIES", name="here", device="cpu")
    task = {"kind": "reference", "variant": "", "case": to_plain(case), "settings": to_plain(settings)}
    record = worker.do(task, tmp_path / "build", settings, lambda variant, phase, seconds: told.append(phase))
    *directories, inside, pid = notes()
    assert (record.outcome, int(pid)) == ("ok", os.getpid())
    assert directories == [str(tmp_path / "build" / name) for name in ("inductor", "triton", "tmp")]
    assert inside == directories[2]
    assert not any(Path(directory).exists() for directory in directories)
    assert dict(os.environ) == before
    assert tempfile.gettempdir() == temporary
    assert told[0] == "model"
    assert do(worker, "FAIL", tmp_path / "failing").outcome == "error"
    assert dict(os.environ) == before
    worker.close()


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


INITIALISED = """
    import torch
    torch.ones(1, device="cuda").sum().item()
    assert torch.cuda.is_initialized()

    from pytest_piecewise import Case
    from pytest_piecewise.records import Settings
    from pytest_piecewise.runner import run_case
    from pytest_piecewise.workers import Children

    children = Children()
    case = Case(model="tests.planted.models:CLEAN", name="clean", device="cuda")
    result = run_case(case, Settings(device="cuda"), children, lambda variant, phase, seconds: None)
    children.close()
    for item in result.findings:
        if item.status == "FAIL":
            print(item)
    print("status", result.status, result.graph_kind)
"""


@pytest.mark.skipif("not has_cuda()", reason="needs CUDA")
def test_parent_that_has_initialised_cuda_is_no_obstacle(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INITIALISED)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "status PASS cuda graphs" in done.stdout, done.stdout
