"""What a result depends on, and the keys under which it may be compared: the platform, and the revision of the case."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from pytest_piecewise.engines import Build
from pytest_piecewise.models import Model
from pytest_piecewise.records import Case


def environment(case: Case, model: Model, build: Build) -> dict[str, str]:
    """Keys and facts of one eager build, for the records of all variants."""
    version = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    if case.device.startswith("cuda"):
        name = torch.cuda.get_device_name(torch.device(case.device))
        device, accelerator = "cuda-" + name.lower().replace(" ", "-"), f"{name}, CUDA {torch.version.cuda}"
    else:
        device, accelerator = f"cpu-{_vector_isa()}", "none"
    return {
        "platform": f"{device}-torch{version}",
        "revision": revision(case, model, build),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "accelerator": accelerator,
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "threads": str(torch.get_num_threads()),
        "triton": _version_of("triton"),
        "driver": _driver() if case.device.startswith("cuda") else "",
        "queue": os.environ.get("BUILDKITE_AGENT_META_DATA_QUEUE", ""),
    }


def _cpu_model() -> str:
    """The product name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == "model name")
    return next(names, platform.processor())


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _driver() -> str:
    """The version of the NVIDIA driver, which torch does not tell."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter(done.stdout.split()), "")


def _vector_isa() -> str:
    """The level that Inductor generates code for. AMX is AVX-512 with matrix products in templates, which only autotuning
    chooses, and that is switched off: one code, one name."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa  # noqa: PLC0415 - private, and slow the first time

    found = str(pick_vec_isa())
    return next((level for level in ("avx512", "avx2", "neon", "sve") if level in found), "scalar")


def revision(case: Case, model: Model, build: Build) -> str:
    """Hash of what defines the case: declaration, the builder's source, names and shapes of all weights."""
    tensors = [f"{n} {tuple(t.shape)} {t.dtype}" for n, t in sorted(build.module.state_dict().items())]
    declared = (model.splitting_ops, model.capture_sizes, model.largest, model.dynamic_shapes, model.state)
    text = "\n".join([case.engine, case.dtype, repr(declared), _source(model.build), *tensors])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _source(builder: Any) -> str:
    """The text of a builder, which may be a partial call of one; empty where there is none to be had."""
    while isinstance(builder, functools.partial):
        builder = builder.func
    try:
        return inspect.getsource(builder)
    except (OSError, TypeError):
        return ""
