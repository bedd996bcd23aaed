"""What this machine can check, what it cannot, and why. torch is asked in a process of its own; nothing here imports it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from pytest_piecewise import leases, nvml
from pytest_piecewise.errors import PiecewiseError
from pytest_piecewise.hooks import find_engine
from pytest_piecewise.records import Case

TORCH = (Version("2.11"), Version("2.16"))
"""The oldest torch that is supported, and the first that is not."""
ENGINES = ("native", "vllm", "vllm-llm")
PROBE_SECONDS = 300
PROBE = """
import json, sys
told = {}
try:
    import torch
    told["torch"] = torch.__version__
    told["cuda"] = torch.version.cuda or ""
    told["isa"] = torch.backends.cpu.get_cpu_capability()
    told["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.version.cuda else []
    if sys.argv[1] == "try":
        for device in ["cpu"] + ["cuda"] * bool(told["gpus"]):
            try:
                x = torch.ones(64, 64, device=device)
                torch.compile(lambda x: (x.sin() + 1).sum(-1), fullgraph=True)(x)
                if device == "cuda":
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        x + 1
                    graph.replay()
                    torch.cuda.synchronize()
                told["tried-" + device] = ""
            except Exception as error:
                told["tried-" + device] = f"{type(error).__name__}: {error}"[:500]
except Exception as error:
    told["error"] = f"{type(error).__name__}: {error}"[:500]
for name in ("torchvision", "transformers"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        pass
    except Exception as error:
        told["broken-" + name] = f"{type(error).__name__}: {error}"[:300]
print(json.dumps(told))
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One line: `subject`, whether it is there or can be done (`yes`, `no`), what was found, and what to do about a no."""

    subject: str
    status: str
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is on the machine, what can be checked with it, and combinations that are known to be broken."""

    here: tuple[Answer, ...]
    checks: tuple[Answer, ...]
    broken: tuple[Answer, ...]

    @property
    def able(self) -> bool:
        """Whether any engine can build anything here."""
        return any(item.status == "yes" for item in self.checks if item.subject.startswith("engine "))


def diagnose(*, attempt: bool) -> Diagnosis:
    """Looks at this machine. With `attempt`, one small kernel is compiled and captured on each kind of device."""
    torch = ask_torch(attempt=attempt)
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++") or ""
    versions = {name: _version(name) for name in ("pytest", "pytest-xdist", "transformers", "triton", "PyYAML")}
    here = (*_machine(torch, compiler), *_tools(versions))
    checks = (*_engines(torch, compiler), *_extras(torch))
    return Diagnosis(here, checks, tuple(broken(versions, torch)))


def ask_torch(*, attempt: bool) -> dict[str, Any]:
    """What a fresh process finds out about torch; under `error`, why it found nothing."""
    command = [sys.executable, "-c", PROBE, "try" if attempt else "look"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"import torch took more than {PROBE_SECONDS} s"}
    lines = done.stdout.strip().splitlines()
    with suppress(ValueError, IndexError):
        return dict(json.loads(lines[-1]))
    return {"error": f"a process that imports torch ended with code {done.returncode}: {done.stderr.strip()[-300:]}"}


def _machine(torch: Mapping[str, Any], compiler: str) -> Iterator[Answer]:
    yield Answer("Python", "yes", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    yield Answer("cores, memory", "yes", f"{cores} cores, {_memory() / 2**30:.0f} GiB free")
    remedy = "pip install 'torch>=2.11,<2.16'"
    if "torch" in torch:
        found = f"{torch['torch']}, CUDA {torch['cuda'] or 'none'}, CPU code for {torch['isa']}"
        supported = TORCH[0] <= Version(torch["torch"].split("+")[0]) < TORCH[1]
        yield Answer("torch", "yes" if supported else "no", found, "" if supported else f"supported: {remedy}")
    else:
        yield Answer("torch", "no", torch.get("error", "none"), remedy)
    yield Answer("C++ compiler", "yes" if compiler else "no", compiler or "none", "" if compiler else "install g++")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    for gpu in nvml.gpus():
        yield Answer("GPU", "yes", f"{gpu.product}, {gpu.memory_bytes / 2**30:.0f} GiB, {gpu.uuid}")
    if not nvml.gpus():
        yield Answer("GPU", "no", "NVIDIA's driver shows none", "needed for CUDA graphs alone")
    if visible is not None:
        yield Answer("CUDA_VISIBLE_DEVICES", "yes" if visible else "no", visible or "empty: no GPU may be used")
    try:
        yield Answer("GPU leases", "yes", f"in {leases.lease_folder()}")
    except PiecewiseError as error:
        yield Answer("GPU leases", "no", str(error))


def _tools(versions: Mapping[str, str]) -> Iterator[Answer]:
    for name in ("pytest", "pytest-xdist", "transformers", "triton"):
        yield Answer(name, "yes" if versions[name] else "no", versions[name] or "none")
    agent = shutil.which("buildkite-agent") or ""
    remedy = "" if agent else "`pipeline run-local` has a stub of its own"
    yield Answer("buildkite-agent", "yes" if agent else "no", agent or "none on the PATH", remedy)


def _engines(torch: Mapping[str, Any], compiler: str) -> Iterator[Answer]:
    for name in ENGINES:
        for device in ("cpu", "cuda"):
            why = _why_not(name, device, torch, compiler)
            graphs = "CUDA graphs" if device == "cuda" else "recorded graphs stand in for CUDA graphs"
            yield Answer(f"engine {name} on {device}", "no" if why else "yes", why or graphs)


def _why_not(engine: str, device: str, torch: Mapping[str, Any], compiler: str) -> str:
    """Why an engine cannot build on a device; empty if it can, as far as can be seen without trying."""
    if "torch" not in torch:
        return "torch cannot be imported"
    if device == "cuda" and not torch["gpus"]:
        if not torch["cuda"]:
            return f"torch {torch['torch']} is built without CUDA"
        return "torch finds no GPU" + (", though the driver does" if nvml.gpus() else "")
    if device == "cpu" and not compiler:
        return "no C++ compiler for Inductor's code"
    if tried := torch.get(f"tried-{device}"):
        return f"tried, and found {tried}"
    return find_engine(engine).unsupported(Case(model="", name="doctor", device=device)) or ""


EXTRAS = (
    ("pipelines: generate, run-local", ("yaml",), "pip install 'pytest-piecewise[ci]'"),
    ("pipelines: schema", ("check_jsonschema",), "pip install 'pytest-piecewise[ci]'"),
    ("history", ("sqlalchemy",), "pip install 'pytest-piecewise[history]'"),
    ("alerts", ("ruptures", "scipy"), "pip install 'pytest-piecewise[alerts]'"),
    ("several workers", ("xdist",), "pip install pytest-xdist"),
    ("models of transformers", ("transformers",), "pip install 'pytest-piecewise[models]'"),
)
"""What needs which modules."""


def _extras(torch: Mapping[str, Any]) -> Iterator[Answer]:
    for subject, modules, remedy in EXTRAS:
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        failing = [torch[f"broken-{name}"] for name in modules if f"broken-{name}" in torch]
        if missing or failing:
            yield Answer(subject, "no", failing[0] if failing else f"without {', '.join(missing)}", remedy)
        else:
            yield Answer(subject, "yes", ", ".join(modules))


def broken(versions: Mapping[str, str], torch: Mapping[str, Any]) -> Iterator[Answer]:
    """Combinations that are known to go wrong, out of those that are here."""
    pytest, xdist = (Version(versions[name] or "0") for name in ("pytest", "pytest-xdist"))
    if pytest >= Version("9.2") and Version("0") < xdist <= Version("3.8.0"):
        found = f"pytest {pytest} with pytest-xdist {xdist} ignores `--dist loadgroup` without a word"
        yield Answer("xdist groups", "no", found, "do not serialise tests by xdist_group; GPU leases do without it")
    if "broken-torchvision" in torch:
        remedy = "uninstall torchvision, or install the one that is built for this torch"
        yield Answer("torchvision", "no", f"{torch['broken-torchvision']}; it takes transformers down with it", remedy)
    if torch.get("cuda") and not torch.get("gpus") and nvml.gpus():
        remedy = "check CUDA_VISIBLE_DEVICES and the driver's version"
        yield Answer("CUDA", "no", "the driver shows GPUs and torch finds none", remedy)


def _version(package: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""


def _memory() -> int:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return 0
