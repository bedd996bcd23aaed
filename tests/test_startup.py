"""`pytest --piecewise=nightly suites/startup` where there is no GPU: a table, and a reason for each test that is skipped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .running import ROOT, run_pytest


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the session shows. vLLM's part has its own tests; what matters here is what is left without it."""
    tests = (f"{ROOT}/suites/startup/{name}" for name in ("test_llama_8b.py", "test_small_llama.py::test_native"))
    directory = tmp_path_factory.mktemp("startup")
    done = run_pytest(
        directory, "--piecewise=nightly", "--piecewise-costs=counts", "-rs", *tests, CUDA_VISIBLE_DEVICES=""
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_needs_a_gpu_is_skipped_with_the_reason(output: str) -> None:
    assert "the test asks for device cuda, and this machine has no GPU" in output


def test_table_is_printed(output: str) -> None:
    header, variants, compiled, dynamo, inductor = output.partition("start-up of startup-llama")[2].splitlines()[:5]
    assert header.split() == [",", "float32", "on", "cpu", "native"]
    assert variants.split() == ["full", "piecewise", "piecewise/full"]
    seconds = re.fullmatch(r"compile s +(\d+\.\d\d) +(\d+\.\d\d) +(\d+\.\d\d)", compiled)
    assert seconds
    full, piecewise, ratio = map(float, seconds.groups())
    assert ratio == pytest.approx(piecewise / full, abs=0.02)
    of_it = [[float(value) for value in line.split()[4:6]] for line in (dynamo, inductor)]
    assert all(first > 0 for first in of_it[0])
    assert 0.8 * full < of_it[0][0] + of_it[1][0] <= full
    assert 0.8 * piecewise < of_it[0][1] + of_it[1][1] <= piecewise
    assert "capture" not in output.partition("start-up of startup-llama")[2]


def test_device_that_was_asked_for_on_the_command_line_is_no_skip(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        "--piecewise=nightly",
        "--piecewise-device=cuda",
        f"{ROOT}/suites/startup/test_llama_8b.py",
        CUDA_VISIBLE_DEVICES="",
    )
    assert done.returncode not in (0, 5)
    assert "expected a GPU for device cuda, found 0" in done.stdout
