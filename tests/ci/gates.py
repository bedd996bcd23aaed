"""Faults that a pipeline must not let through, each planted in a copy of the shipped pipeline, and what became of it.

`python -m tests.ci.gates docs/ci.md` runs them all and writes their table into that file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_piecewise.ci.local import Build, Choices, LocalBuild
from tests.running import ROOT

BEGIN, END = "<!-- gates: made by `python -m tests.ci.gates docs/ci.md` -->", "<!-- end of gates -->"
BOOTSTRAP, CPU, GPU, PERF = "generate", "fastcheck-cpu", "fastcheck-gpu", "fastcheck-perf"
RESULT = ".piecewise/fastcheck-cpu/0"


def real(model: str) -> str:
    """A test of a planted model by the native engine."""
    return (
        "import pytest\n"
        f'@pytest.mark.piecewise("tests.planted.models:{model}", dtype="float32")\n'
        "def test_model(piecewise):\n    piecewise.check()\n"
    )


def case(engine: str) -> str:
    """A test of a model that costs as little as one can; pytest itself does not import torch for it."""
    return f"""\
import pytest
from pytest_piecewise import Model

def build():
    from torch import nn
    return nn.Linear(8, 8)

def inputs(size, generator):
    import torch
    return (torch.randn(size, 8, generator=generator),)

SMALL = Model(name="small", build=build, inputs=inputs, splitting_ops=("aten::addmm",), capture_sizes=(1, 4))

@pytest.mark.piecewise(SMALL, engine="{engine}", dtype="float32")
def test_model(piecewise):
    piecewise.check()
"""


RIGHT, SKIPPED = case("stand_in"), case("stand_in_absent")
FAILING = f"{SKIPPED}\ndef test_ordinary():\n    assert False\n"


Edit = tuple[str, str, str]
"""In a file of the pipeline, a text and what it is replaced by."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One fault: the test that a suite consists of, what is changed in the pipeline, and what has to come of it."""

    name: str
    test: str = RIGHT
    step: str = CPU
    edits: tuple[Edit, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    prepare: str = ""
    state: str = "failed"
    exit_code: int = 2  # what make turns every failure into
    attempts: int = 1
    passes: bool = False
    says: str = ""
    """What the step's log or the report's annotation must say."""


FAST, PIPELINE, CONFIG = (
    f".buildkite/{name}" for name in ("steps/1-fastcheck.yaml", "pipeline.yaml", "ci_config.yaml")
)
RUN = f"make fastcheck REPORT={RESULT}"
FINDER = (
    f"find suites -name 'test_*.py' -exec .venv/bin/python -m pytest --piecewise --piecewise-report {RESULT} {{}} \\;"
)
PERF_ON_CPU: tuple[Edit, ...] = ((FAST, "--piecewise-device cuda -p no:xdist", "--piecewise-device cpu -p no:xdist"),)
"""The step for costs, on this machine's CPU."""
KILLED = f"{SKIPPED}\ndef test_then_killed():\n    import os\n    os.kill(os.getpid(), 9)\n"
TOOL = '#!/bin/sh\nexec {python} -m pytest_piecewise.cli "$@"\n'
CRASHING = TOOL.replace(
    "exec", 'if [ "$2" = generate ]; then echo steps: >piecewise-pipeline.yaml; kill -9 $$; fi\nexec'
)
OPTIONS = "-p tests.stand_in"

GATES = (
    Gate(name="nothing (the clean twin)", state="passed", exit_code=0, passes=True, says="result(s)**: all passed"),
    Gate(name="a wrong tensor", test=real("CHANGED_CONSTANT"), says="equivalence (full): "),
    Gate(name="one recompile too many", test=real("RECOMPILE"), says="recompiles "),
    Gate(
        name="a compilation that sleeps",
        test=case("stand_in_sleeping"),
        environ={"PYTEST_ADDOPTS": f"{OPTIONS} --piecewise-timeout 20"},
        says="still running after 20 s in phase 'compile'",
    ),
    Gate(name="no GPU", step=GPU, exit_code=12, attempts=2, says="expected a GPU"),
    Gate(name="nothing collected", test="", says="empty: no case was checked"),
    Gate(name="a test file that cannot be imported", test="import no_such_module\n", says="No module named"),
    Gate(
        name="the test process killed by SIGKILL", test=KILLED, says="unfinished: the session ended early, after 1 case"
    ),
    Gate(
        name="every case skipped",
        test=SKIPPED,
        state="passed",
        exit_code=0,
        says="nothing was checked: all 1 case(s) were skipped",
    ),
    Gate(
        name="no result file",
        test=SKIPPED,
        edits=((FAST, RUN, "make fastcheck REPORT=elsewhere"),),
        state="passed",
        exit_code=0,
        says="missing: the step ended before it wrote a result",
    ),
    Gate(
        name="a result file that is cut off",
        test=SKIPPED,
        edits=((FAST, RUN, f"{RUN}\n      - truncate -s 200 {RESULT}/report.json"),),
        state="passed",
        exit_code=0,
        says="cannot be read: expected JSON",
    ),
    Gate(
        name="a generator that crashes",
        step=BOOTSTRAP,
        files={".venv-ci/bin/pytest-piecewise": CRASHING},
        exit_code=137,
    ),
    Gate(
        name="a configuration that cannot be read",
        step=BOOTSTRAP,
        edits=((CONFIG, "devices:", "devcies:"),),
        says="unknown key 'devcies'",
    ),
    Gate(
        name="a finder that hides exit codes",
        test=FAILING,
        step=BOOTSTRAP,
        edits=((FAST, RUN, FINDER),),
        exit_code=1,
        says="returns 0 when the command fails",
    ),
    Gate(
        name="the same, and nothing linted",
        test=FAILING,
        edits=((FAST, RUN, FINDER), (PIPELINE, "pipeline lint piecewise-pipeline.yaml", "pipeline lint --help")),
        state="passed",
        exit_code=0,
        says="the session ended with exit code 1",
    ),
    Gate(
        name="a cost that grew, in the step for costs",
        step=PERF,
        test=case("stand_in"),
        edits=PERF_ON_CPU,
        prepare="--piecewise-update=new",
        environ={"STAND_IN_KERNELS": "4"},
        state="soft_failed",
        exit_code=10,
        passes=True,
        says="1 case(s) with changed cost",
    ),
    Gate(
        name="a failing test, in the step for costs",
        step=PERF,
        test=FAILING,
        edits=PERF_ON_CPU,
        exit_code=1,
        says="the session ended with exit code 1",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Closed:
    """What became of a fault: how the step and the report ended, and everything that was said."""

    gate: Gate
    build: Build
    said: str

    @property
    def report(self) -> str:
        """The state of the report; empty if it was not even uploaded."""
        return next((step.state for step in self.build.steps if step.key == "report"), "")


def run_gate(gate: Gate, folder: Path) -> Closed:
    """Plants the fault in a copy of the shipped pipeline below `folder`, and runs that."""
    root = _checkout(gate, folder / "checkout")
    environ = {
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(root))),
        "PYTEST_ADDOPTS": OPTIONS if "SMALL" in gate.test else "",
        "WORKERS": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCHINDUCTOR_VEC_ISA_OK": "1",  # spares test programs that nothing here hangs on
    }
    if gate.prepare:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--piecewise",
            "--piecewise-device=cpu",
            gate.prepare,
            "suites",
        ]
        outer = {name: value for name, value in os.environ.items() if name != "CI"}
        subprocess.run(command, cwd=root, env=outer | environ, check=True, capture_output=True)
    said: list[str] = []
    named = {} if gate.step == BOOTSTRAP else {"PIECEWISE_ONLY_STEPS": gate.step}
    choices = Choices(
        environ=environ | {"RUN_ALL": "1"} | named | gate.environ,
        # What the step needs (lint) is left out, and the report where the step owes nothing more than its exit code.
        only=frozenset({gate.step} | ({"report"} if gate.step in (CPU, PERF) else set()) if named else ()),
    )
    build = LocalBuild(root, folder / "spool", choices, said.append).run(root / PIPELINE)
    return Closed(
        gate=gate, build=build, said="\n".join([*said, *(item["body"] for item in build.annotations.values())])
    )


def _checkout(gate: Gate, root: Path) -> Path:
    """A repository with the shipped pipeline, one test as its suite, and environments that are this one."""
    shutil.copytree(ROOT / ".buildkite", root / ".buildkite")
    for name in ("Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, root / name)
    files = {
        "pyproject.toml": '[tool.pytest_piecewise]\nplugins = ["tests.stand_in", "tests.planted.engines"]\n',
        "suites/fastcheck/test_model.py": gate.test,
        "suites/fastcheck/test_llama.py": gate.test,
        ".venv/bin/python": '#!/bin/sh\nexec {python} "$@"\n',
        ".venv-ci/bin/pytest-piecewise": TOOL,
        **gate.files,
        ".venv/ready": "",
        ".venv-ci/ready": "",
    }
    if gate.step != PERF:
        del files["suites/fastcheck/test_llama.py"]
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{python}", sys.executable))
        if "bin/" in name:
            path.chmod(0o755)
    for name, old, new in gate.edits:
        text = (root / name).read_text()
        assert old in text, f"{gate.name}: {name} has no {old!r} any more"
        (root / name).write_text(text.replace(old, new))
    return root


def run_gates(folder: Path) -> list[Closed]:
    """All of them, two at a time."""
    folders = [folder / str(index) for index in range(len(GATES))]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run_gate, GATES, folders))


def table(closed: Sequence[Closed]) -> str:
    """Markdown: one row for each fault."""
    rows = ["| planted | step | ends | report | build |", "|---|---|---|---|---|"]
    for item in closed:
        step = next(step for step in item.build.steps if step.key == item.gate.step)
        ends = f"{step.state}, exit {step.exit_codes[0]}" + " twice" * (step.attempts[0] == 2)
        build = "passed" if item.build.passed else "**failed**"
        report = item.report or "-"
        rows.append(f"| {item.gate.name} | `{step.key}` | {ends} | {report} | {build} |")
    return "\n".join(rows)


def main(path: Path) -> None:
    """Writes the table between its marks in `path`."""
    with TemporaryDirectory() as folder:
        made = table(run_gates(Path(folder)))
    before, _, rest = path.read_text().partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
