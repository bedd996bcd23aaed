"""CACHE: compiled code is found under a key that says too little, or too much."""

from __future__ import annotations

import os
from typing import Any

from pytest_piecewise.faults.catalogue import fault
from pytest_piecewise.faults.plant import Plant

DETAILS = "torch._inductor.codecache.FxGraphHashDetails.__init__"
"""Private: what Inductor's key of a graph is made of, for AOTAutograd's key as well. Unchanged from torch 2.11 to 2.15."""


@fault("CACHE", "vllm#53366", "cache", variants=("cache",))
def key_forgets_config(plant: Plant) -> None:
    """The key of a compiled artefact leaves out the compiler's configuration and its custom passes."""

    @plant.wrap(DETAILS)
    def init(original: Any, details: Any, *arguments: Any, **options: Any) -> None:
        original(details, *arguments, **options)
        for name in vars(details):
            if name.startswith(("inductor_config", "post_grad", "custom", "joint", "pre_grad", "_")):
                setattr(details, name, None)
                plant.note()


@fault("CACHE", "vllm#47573", "cache", variants=("cache",))
def key_names_directory(plant: Plant) -> None:
    """The key has the cache's own path in it: a copy of the directory is never hit."""

    @plant.wrap(DETAILS)
    def init(original: Any, details: Any, *arguments: Any, **options: Any) -> None:
        original(details, *arguments, **options)
        details.directory = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
        plant.note()


@fault("CACHE", "ai-dynamo/dynamo#10119", "cache", variants=("cache",))
def key_names_process(plant: Plant) -> None:
    """The key has something in it that every process has anew: nothing is ever found again."""

    @plant.wrap(DETAILS)
    def init(original: Any, details: Any, *arguments: Any, **options: Any) -> None:
        original(details, *arguments, **options)
        details.process = os.getpid()
        plant.note()
