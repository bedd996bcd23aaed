"""A failed comparison is followed to the planted place, with a script that reproduces it: pytest in a subprocess."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise.engines.sources import kernel_of
from pytest_piecewise.hooks import PLUGINS_VARIABLE
from pytest_piecewise.localize.place import module_path
from pytest_piecewise.localize.repro import _run
from pytest_piecewise.located import Localization, Repro
from pytest_piecewise.records import CHILD, HEADERS, VARIANTS, BuildRecord
from pytest_piecewise.reports.located import localization_lines
from pytest_piecewise.runner import with_company
from tests.running import ROOT, configure, environment, run_pytest

Found = dict[str, Any]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Found], str]:
    """All placed faults once, over two workers: the directory, localizations of piecewise by engine, and the output."""
    directory = configure(tmp_path_factory.mktemp("places"), "tests.places.engines", "tests.planted.engines")
    done = run_pytest(directory, "-n2", "--piecewise", "--piecewise-report=out", str(ROOT / "tests/places/cases.py"))
    report = json.loads((directory / "out" / "report.json").read_text())
    found = {
        result["case"]["engine"]: item
        for result in report["results"]
        for item in result["localizations"]
        if item["variant"] == "piecewise"
    }
    assert done.returncode == 1, done.stdout + done.stderr
    return directory, found, done.stdout


PLACES = [
    # engine, cause, segment, and what the evidence, the op or the sources must say
    ("native@shifted@add", "code", "piece 0", "test_encoder.py"),
    ("native@swapped@1", "wiring", "piece 1", "got the value of"),
    ("stale_inputs", "stale", "piece 1", "recorded at 0x"),
    ("native", "padding", "planted::mix_all_rows", "padding row"),
]


@pytest.mark.parametrize(("engine", "cause", "segment", "said"), PLACES, ids=[place[0] for place in PLACES])
def test_place_is_the_planted_one(
    session: tuple[Path, dict[str, Found], str], engine: str, cause: str, segment: str, said: str
) -> None:
    found = session[1][engine]
    assert (found["cause"], found["segment"]) == (cause, segment), found
    assert said in " ".join([*found["evidence"], found["op_source"], *found["sources"]])


def test_op_is_the_planted_one(session: tuple[Path, dict[str, Found], str]) -> None:
    found = session[1]["native@shifted@add"]
    assert found["op"].partition(" ")[0] == "add"
    assert "test_encoder.py" in found["op_source"]
    assert "async_compile" in Path(found["kernel_source"]).read_text()


@pytest.mark.parametrize("engine", ["native@shifted@add", "stale_inputs", "native"])
def test_script_was_run_and_reproduces(session: tuple[Path, dict[str, Found], str], engine: str) -> None:
    made = session[1][engine]["repro"]
    assert made["reproduced"], made
    directory = Path(made["directory"])
    assert directory.is_relative_to(session[0] / "out" / "repro")
    assert 0 < made["size_bytes"] < 8 * 2**20


def test_script_of_a_replay_needs_torch_alone(session: tuple[Path, dict[str, Found], str]) -> None:
    made = session[1]["stale_inputs"]["repro"]
    assert made["inputs"].startswith("captures and replays by itself")
    text = (Path(made["directory"]) / "repro.py").read_text()
    assert not re.search(r"^\s*(import|from) (?!torch|sys|pathlib|safetensors|contextlib)", text, re.MULTILINE)


def test_failure_shows_the_place(session: tuple[Path, dict[str, Found], str]) -> None:
    assert "WHERE (piecewise, bits_graphs" in session[2]
    assert "exits 1 in a fresh process" in session[2]


def test_report_of_another_machine_is_followed_here(
    session: tuple[Path, dict[str, Found], str], tmp_path: Path
) -> None:
    text = (session[0] / "out" / "report.json").read_text().replace(f"{ROOT}/", "/of/another/machine/")
    (tmp_path / "report.json").write_text(text)
    plugins = {PLUGINS_VARIABLE: "tests.places.engines,tests.planted.engines"}
    command = [sys.executable, "-m", "pytest_piecewise.cli", "localize", str(tmp_path)]
    for directory, code, said in (
        (ROOT, 0, "WHERE (piecewise"),
        (tmp_path, 2, "go to the directory in which pytest was run"),
    ):
        done = subprocess.run(
            [*command, "encoder-native@swapped@1-float32"], cwd=directory, env=environment(**plugins), text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert said in done.stdout + done.stderr
    assert (tmp_path / "repro").is_dir()


@pytest.mark.parametrize(
    ("check", "wrong", "said"),
    [
        ("equivalence", ("piecewise",), {"piecewise": ("full is right",)}),
        ("equivalence", ("full", "piecewise"), {"full": ("piecewise fails, too",), "piecewise": ("full fails, too",)}),
        ("bits_graphs", ("piecewise",), {"piecewise": ()}),
        ("answer", ("eager",), {"eager": ("full is right", "piecewise is right")}),
    ],
)
def test_place_says_what_became_of_the_other_builds(
    check: str, wrong: tuple[str, ...], said: dict[str, tuple[str, ...]]
) -> None:
    located = [
        Localization(variant=variant, check=check, phase="", size=4, cause="code", summary="") for variant in wrong
    ]
    builds = [BuildRecord(variant=variant, outcome="ok") for variant in (*VARIANTS, "reference")]
    assert {item.variant: item.notes for item in with_company(located, builds)} == said


def test_script_finds_the_headers_of_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HEADERS, str(tmp_path))
    (tmp_path / "repro.py").write_text(f"import os, tempfile; print(tempfile.gettempdir(), {CHILD!r} in os.environ)")
    assert _run(tmp_path) == (0, f"{tmp_path} False")


def test_script_that_does_not_reproduce_is_said_to_be_so() -> None:
    made = Repro(directory="/r", size_bytes=2048, reproduced=False, output="0 of 8", inputs="Inductor alone")
    found = Localization(
        variant="full", check="equivalence", phase="first", size=8, cause="code", summary="x", repro=made
    )
    assert list(localization_lines(found))[-1].strip() == (
        "python /r/repro.py: does NOT reproduce in a fresh process (Inductor alone; 2.0 KiB)"
    )


SOURCE = """
    def call(self, args):
        # Topologically Sorted Source Nodes: [linear, add], Original ATen: [aten.mm, aten.add]
        extern_kernels.mm(arg0, arg1, out=buf0)
        cpp_fused_add_mean_0(buf0)
        # Topologically Sorted Source Nodes: [mean, linear_1], Original ATen: [aten.mean, aten.mm]
        extern_kernels.mm(buf0, arg2, out=buf1)
        cpp_fused_mul_silu_1(buf1)
"""


@pytest.mark.parametrize(
    ("node", "op", "kernel", "members"),
    [
        ("mean", "mean", "cpp_fused_add_mean_0", ("add", "mean")),
        ("silu", "silu", "cpp_fused_mul_silu_1", ("mul", "silu")),
        ("linear_1", "linear", "extern_kernels.mm", ("mm",)),
        ("cat", "cat", "", ()),
    ],
)
def test_kernel_of_a_node(node: str, op: str, kernel: str, members: tuple[str, ...]) -> None:
    assert kernel_of(SOURCE, node, op) == (kernel, members)


def test_triton_kernel_is_named_by_the_comment_before_it() -> None:
    comment = "# Topologically Sorted Source Nodes: [relu], Original ATen: []"
    source = f"def call(args):\n  {comment}\n  triton_poi_fused_relu_0.run(x)"
    assert kernel_of(source, "relu", "relu") == ("triton_poi_fused_relu_0", ("relu",))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("L['self'].layers.0.attention", "layers.0.attention"),
        ("L['self']._modules['layers']._modules['0']", "layers.0"),
        ("L['self'].layers[3].mlp", "layers.3.mlp"),
        ("L['self']", ""),
        ("L['fn'].1", "1"),
    ],
)
def test_path_of_a_module(path: str, expected: str) -> None:
    assert module_path(path) == expected
