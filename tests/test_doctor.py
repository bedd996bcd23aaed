"""What the machine can check and why not: seen on machines that lack something on purpose."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise import doctor
from pytest_piecewise.nvml import Gpu
from tests.running import ROOT, environment


def run(*options: str, path: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_piecewise.cli", "doctor", *options]
    first = {"PYTHONPATH": f"{path}:{ROOT}"} if path else {}
    variables = environment(TORCHINDUCTOR_VEC_ISA_OK="1", CUDA_VISIBLE_DEVICES="", **first) | environ
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def answers(done: subprocess.CompletedProcess[str], part: str) -> dict[str, dict[str, Any]]:
    return {item["subject"]: item for item in json.loads(done.stdout)[part]}


def test_machine_with_torch_and_compiler_can_check_on_its_cpu() -> None:
    done = run("--json", "--try")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["able"] is True
    checks, here = answers(done, "checks"), answers(done, "here")
    assert checks["engine native on cpu"]["status"] == "yes"
    assert checks["engine native on cuda"]["status"] == "no"
    assert "torch" in checks["engine native on cuda"]["found"]
    assert here["CUDA_VISIBLE_DEVICES"]["found"] == "empty: no GPU may be used"
    assert here["torch"]["status"] == "yes"


def test_compiler_that_fails_is_seen_by_trying() -> None:
    done = run("--json", "--try", CXX="/bin/false")
    assert done.returncode == 1
    assert answers(done, "checks")["engine native on cpu"]["found"].startswith("tried, and found")


@pytest.mark.parametrize(
    ("torch", "says"),
    [
        ("raise ImportError('libtorch.so: no such file')", "ImportError: libtorch.so: no such file"),
        ("import os; os._exit(3)", "a process that imports torch ended with code 3"),
    ],
)
def test_machine_whose_torch_is_broken_can_check_nothing(torch: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(torch)
    done = run(path=tmp_path)
    assert done.returncode == 1
    assert f"  no   torch                 {says}" in done.stdout
    assert "  no   engine native on cpu            torch cannot be imported\n" in done.stdout


def test_table_names_subject_finding_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('none')")
    (tmp_path / "yaml.py").write_text("")
    lines = run(path=tmp_path, PATH="").stdout.splitlines()
    assert [line for line in lines if not line.startswith(" ")][:2] == ["here:", "can be checked:"]
    assert any("no   C++ compiler" in line and "install g++" in line for line in lines)
    assert any("no   buildkite-agent" in line and "has a stub of its own" in line for line in lines)


TORCH = {"torch": "2.13.0+cpu", "cuda": "", "isa": "AVX512", "gpus": []}
VERSIONS = {"pytest": "9.1.1", "pytest-xdist": "3.8.0"}


@pytest.mark.parametrize(
    ("versions", "torch", "gpus", "subjects"),
    [
        (VERSIONS, TORCH, (), []),
        (VERSIONS | {"pytest": "9.2.0"}, TORCH, (), ["xdist groups"]),
        ({"pytest": "9.2.0", "pytest-xdist": ""}, TORCH, (), []),
        ({"pytest": "9.2.0", "pytest-xdist": "3.9.0"}, TORCH, (), []),
        (VERSIONS, TORCH | {"broken-torchvision": "RuntimeError: nms"}, (), ["torchvision"]),
        (VERSIONS, TORCH | {"cuda": "13.0"}, (Gpu("GPU-1", "H200", 80),), ["CUDA"]),
        (VERSIONS, TORCH | {"cuda": "13.0", "gpus": ["H200"]}, (Gpu("GPU-1", "H200", 80),), []),
        (VERSIONS, TORCH | {"cuda": "13.0"}, (), []),
    ],
)
def test_combinations_that_are_known_to_be_broken(
    versions: dict[str, str],
    torch: dict[str, Any],
    gpus: tuple[Gpu, ...],
    subjects: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pytest_piecewise.nvml.gpus", lambda: gpus)
    assert [item.subject for item in doctor.broken(versions, torch)] == subjects


@pytest.mark.parametrize(
    ("engine", "device", "torch", "compiler", "says"),
    [
        ("native", "cpu", TORCH, "/usr/bin/g++", ""),
        ("native", "cpu", TORCH, "", "no C++ compiler"),
        ("native", "cpu", {"error": "x"}, "g++", "torch cannot be imported"),
        ("native", "cpu", TORCH | {"tried-cpu": "boom"}, "g++", "tried, and found boom"),
        ("native", "cuda", TORCH, "g++", "torch 2.13.0+cpu is built without CUDA"),
        ("native", "cuda", TORCH | {"cuda": "13.0"}, "g++", "torch finds no GPU"),
        ("native", "cuda", TORCH | {"cuda": "13.0", "gpus": ["H200"]}, "", ""),
    ],
)
def test_reasons(engine: str, device: str, torch: dict[str, Any], compiler: str, says: str) -> None:
    found = doctor._why_not(engine, device, torch, compiler)
    assert found.startswith(says)
    assert bool(found) is bool(says)


def test_unsupported_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {item.subject: item for item in doctor._machine(TORCH | {"torch": "2.10.0"}, "g++")}
    assert (found["torch"].status, "supported: pip install" in found["torch"].remedy) == ("no", True)
