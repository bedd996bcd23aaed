"""The torch part: a config at its scale, the module with random weights of a sensible scale, and the inputs of a call."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.pytorch_utils import Conv1D

from pytest_piecewise.errors import ModelError
from pytest_piecewise.huggingface import attention
from pytest_piecewise.huggingface.shrink import thin, tiny

LOGIT_SPREAD = 2.0
"""Standard deviation of logits to aim at."""
POSITIONS = 128
"""Positions start below this one: rotary angles of a size at which every dtype still tells them apart."""
LEFT_OUT = ("auto_map", "quantization_config", "torch_dtype", "dtype")
"""What a config says of code from the hub, of stored weights and of their dtype; weights here are random."""
ATTENTION_KINDS = ("full_attention", "sliding_attention", "attention")
WITHOUT_ATTENTION = (
    "linear_attention",
    "conv",
    "mamba",
    "mamba2",
    "moe",
    "mlp",
    "hybrid",
    "recurrent",
    "dense",
    "sparse",
)
"""Kinds of layers, by what the op can do: attention it knows, and layers that have none."""


def make_config(values: Mapping[str, Any], scale: str) -> Any:
    """The config of the text model that `values` describe, at its scale."""
    kind = values["model_type"]
    if kind not in CONFIG_MAPPING:
        raise ModelError(
            f"expected a model_type that transformers {transformers.__version__} has, found {kind!r}; "
            "code from the hub is never run: declare the model in a test module"
        )
    known = {key: value for key, value in values.items() if key not in LEFT_OUT}
    config = CONFIG_MAPPING[kind].from_dict(known).get_text_config()
    if scale != "whole":
        shrink = thin if scale == "thin" else tiny
        made = shrink(config.to_dict(), config.attribute_map)
        config = type(config).from_dict({key: value for key, value in made.items() if key not in LEFT_OUT})
    _refuse_unknown_layers(config)
    return config


def _refuse_unknown_layers(config: Any) -> None:
    """Attention whose pattern is known to the mask alone would lose it, since the op is given no mask."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := sorted(kinds - {*ATTENTION_KINDS, *WITHOUT_ATTENTION}):
        raise ModelError(
            f"{config.model_type}: expected layers of the kinds {', '.join(ATTENTION_KINDS)}, or without attention, found "
            f"{', '.join(unknown)}, whose mask pytest_piecewise::attention does not know; declare the model in a test module"
        )


class Unbatched(nn.Module):
    """A model of `transformers` without its batch dimension, caches and dataclasses: tensors in, one tensor out."""

    def __init__(self, model: Any, task: str) -> None:
        super().__init__()
        self.model, self._task = model, task
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def forward(self, first: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits or hidden states, one row per token; or hidden states `(images, patches, features)`."""
        if self._task == "vision":
            states: Tensor = self.model(pixel_values=first).last_hidden_state
            return states
        given: dict[str, Any] = (
            {"position_ids": positions[None]} if self._takes_positions and positions is not None else {}
        )
        if self._task == "causal-lm":
            logits: Tensor = self.model(input_ids=first[None], use_cache=False, **given).logits[0]
            return logits
        states = self.model(input_ids=first[None], **given).last_hidden_state
        return states[0]


def make_module(config: Any, task: str, experts: str) -> nn.Module:
    """The module on the CPU in float32. It draws its weights from torch's own generator, which the tool has seeded."""
    attention.register()
    classes: Any = transformers.AutoModelForCausalLM if task == "causal-lm" else transformers.AutoModel
    name = attention.PACKED if task != "vision" else attention.BATCHED
    try:
        model = classes.from_config(
            config,
            dtype=torch.float32,
            attn_implementation=name,
            experts_implementation=experts,
            trust_remote_code=False,
        )
    except ValueError as error:
        raise ModelError(
            f"{config.model_type}: expected what {classes.__name__} can build with attention of ours, found: {error}"
        ) from error
    initialise(model)
    return Unbatched(model, task)


def make_inputs(config: Any, task: str, size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Token ids `(size,)` and their positions, int64; or images `(size, channels, height, width)`, float32."""
    if task == "vision":
        extent = config.image_size
        return (torch.randn(size, config.num_channels, extent, extent, generator=generator),)
    positions = min(POSITIONS, getattr(config, "max_position_embeddings", None) or POSITIONS)
    start = torch.randint(0, max(1, positions - size + 1), (1,), generator=generator)
    return torch.randint(0, config.vocab_size, (size,), generator=generator), start + torch.arange(size)


def initialise(model: Any) -> None:
    """Weights such that activations keep their scale: matrices by what they sum over, embeddings of unit size, and vectors,
    which are gains and biases, a little away from what the model itself makes them."""
    embeddings, output = model.get_input_embeddings(), model.get_output_embeddings()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            parameter.data.copy_(_drawn(module, name, parameter.data))
    weight = getattr(output, "weight", None)
    if isinstance(embeddings, nn.Embedding) and embeddings.weight is weight:
        weight.data.normal_(std=LOGIT_SPREAD * weight.shape[-1] ** -0.5)
        return
    if isinstance(embeddings, nn.Embedding):
        # Where the model multiplies embeddings, the first layers' results would else be lost beside them.
        embeddings.weight.data.div_(float(getattr(embeddings, "embed_scale", 1.0)))
    if weight is not None:
        weight.data.mul_(LOGIT_SPREAD)


def _drawn(module: nn.Module, name: str, old: Tensor) -> Tensor:
    noise = torch.randn(old.shape)
    if isinstance(module, nn.Embedding) or any(part in name for part in ("embed", "token")):
        return noise
    if old.dim() < 2 or "bias" in name:
        return old + 0.1 * noise
    return noise / math.sqrt(_summed_over(module, old))


def _summed_over(module: nn.Module, weight: Tensor) -> int:
    """How many products make one element of a layer's result."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return weight[0].numel()
    if isinstance(module, Conv1D) or getattr(module, "is_transposed", False):
        return weight.shape[-2]
    return weight.shape[-1]
