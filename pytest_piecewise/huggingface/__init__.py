"""Any causal language model of `transformers` from its config alone: random weights, attention through a splitting op.

`hf:REFERENCE` names a model as its config has it, `hf-thin:REFERENCE` one of full width with few layers, and
`hf-tiny:REFERENCE` one with every structural feature and nothing else, which takes seconds on a CPU. REFERENCE is a
directory with a config.json, a path to one, or a name in the local Hugging Face cache. Nothing is downloaded, and no
code from the hub is run. Neither torch nor transformers is imported here.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_piecewise.errors import ModelError
from pytest_piecewise.huggingface.metadata import one_sequence, packed_sequences
from pytest_piecewise.models import Model

SCALES: Mapping[str, str] = {"hf": "whole", "hf-thin": "thin", "hf-tiny": "tiny"}
"""What is kept of a config, by the scheme of a reference."""
BUILDER = f"{__name__}.build"
"""The module that building takes; heavy."""
TASKS = ("causal-lm", "encoder", "vision")
"""Logits of tokens, hidden states of tokens that see each other, hidden states of the patches of images."""

BITS_FULL = (
    "rotary angles go through sin and cos, of which Inductor's C++ has a vector and a scalar form, unlike in the last bit, "
    "and picks one by what it is fused with, which splitting changes"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Transformer:
    """What `Model.build` is for a config: called, it makes the module. `values` is the content of a config.json."""

    values: Mapping[str, Any]
    scale: str
    task: str
    experts: str

    def __call__(self) -> Any:
        """The module, with random weights of a sensible scale."""
        from pytest_piecewise.huggingface import build  # noqa: PLC0415 - torch, only in the processes that build

        return build.make_module(self.config, self.task, self.experts)

    @functools.cached_property
    def config(self) -> Any:
        """The config as transformers has it, at its scale."""
        from pytest_piecewise.huggingface import build  # noqa: PLC0415

        return build.make_config(self.values, self.scale)

    def inputs(self, size: int, generator: Any) -> tuple[Any, ...]:
        """Token ids and positions that start elsewhere in every call, or images."""
        from pytest_piecewise.huggingface import build  # noqa: PLC0415

        return build.make_inputs(self.config, self.task, size, generator)


def hf_model(
    *,
    name: str,
    config: str | Path | Mapping[str, Any],
    scale: str = "whole",
    task: str = "causal-lm",
    experts: str = "batched_mm",
    **declared: Any,
) -> Model:
    """A `Model` from a Hugging Face config: a directory, a path, a name in the local cache, or the content itself.

    `scale` is `whole`, `thin` (full width, few layers) or `tiny`; `task` is one of `TASKS`; `experts` is how transformers
    computes a mixture of experts (`eager` loops over those that were chosen, which no single graph can hold). `declared`
    are further fields of `Model`, such as `capture_sizes`.
    """
    if scale not in SCALES.values() or task not in TASKS:
        raise ModelError(
            f"Model {name!r}: expected a scale out of {', '.join(SCALES.values())} and a task out of {', '.join(TASKS)}, "
            f"found {scale!r} and {task!r}"
        )
    values = config if isinstance(config, Mapping) else read_config(config)
    made = Transformer(values=values, scale=scale, task=task, experts=experts)
    defaults: dict[str, Any] = {
        "splitting_ops": ("pytest_piecewise::attention",),
        "context": packed_sequences if task == "causal-lm" else one_sequence,
        "allow": {"bits_full": BITS_FULL} if task == "causal-lm" else {},
    }
    return Model(name=name, build=made, inputs=made.inputs, **(defaults | declared))


def find(reference: str) -> Model:
    """The model of a reference with one of the schemes of `SCALES`."""
    scheme, _, place = reference.partition(":")
    if not place:
        raise ModelError(f"expected a config as '{scheme}:DIR_OR_NAME', found {reference!r}")
    return hf_model(name=f"{scheme}-{_name_of(place)}", config=place, scale=SCALES[scheme])


def _name_of(place: str) -> str:
    """A name for files out of a path or of the name of a model: the directory's own, or owner and model."""
    path = Path(place)
    if path.suffix == ".json":
        path = path.resolve().parent if path.name == "config.json" else path.with_suffix("")
    name = path.resolve().name if path.exists() or path.is_absolute() or path.parent.is_dir() else place
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"


def read_config(reference: str | Path) -> dict[str, Any]:
    """The content of the config.json that a reference leads to; a clear error if it leads to none."""
    path = Path(reference)
    if path.is_dir():
        path = path / "config.json"
    elif not path.is_file():
        path = _cached(str(reference))
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelError(
            f"expected a config.json in {path.parent}, found none; name the directory that has it"
        ) from error
    except ValueError as error:
        raise ModelError(f"{path}: expected JSON, found {error}; it should be the config.json of a model") from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ModelError(f"{path}: expected the config.json of a model, with a model_type, found none in it")
    return values


def _cached(name: str) -> Path:
    """Where the config of a model of that name lies in the local cache."""
    place = "the local Hugging Face cache"
    try:
        from huggingface_hub import constants, try_to_load_from_cache  # noqa: PLC0415 - optional

        place = f"{place}, {constants.HF_HUB_CACHE}"
        found = try_to_load_from_cache(name, "config.json")
    except ImportError:
        found, place = None, f"{place} (huggingface_hub is not installed)"
    except ValueError:  # no name that a model could have
        found = None
    if not isinstance(found, str):
        raise ModelError(
            f"expected a directory with a config.json, a path to one, or the name of a model in {place}; found none for "
            f"{name!r}. Nothing is downloaded; to get it: hf download {name} config.json"
        )
    return Path(found)
