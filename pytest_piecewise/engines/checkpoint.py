"""A seeded checkpoint of a sensible scale for a Hugging Face config, and the same model in `transformers` to judge by."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_piecewise.engines import Request
from pytest_piecewise.errors import ModelError
from pytest_piecewise.models import Llm, Model

LOGIT_SPREAD = 2.0
"""Standard deviation of logits to aim at: far from flat, and near ties are rare."""


def declared_llm(model: Model) -> Llm:
    """What `llm_model` has declared."""
    if not isinstance(model.build, Llm):
        raise ModelError(
            f"Model {model.name!r}: engine 'vllm-llm' builds from a Hugging Face config; declare the model with "
            "pytest_piecewise.llm_model(name=..., config=...)"
        )
    return model.build


def write_checkpoint(model: Model, seed: int) -> Path:
    """A directory with config and safetensors in float32, among this process's temporary files."""
    directory = Path(tempfile.mkdtemp(prefix="checkpoint-"))
    _seeded(model, seed).save_pretrained(directory)
    return directory


def _seeded(model: Model, seed: int) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - slow to import, and optional

    llm = declared_llm(model)
    config = AutoConfig.for_model(**llm.values)
    torch.manual_seed(seed)
    classes: Any = AutoModelForCausalLM
    # Attention and experts in plain operations, which float64 has.
    made = classes.from_config(config, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    initialise(made.named_parameters(), torch.Generator().manual_seed(seed))
    return made


def initialise(parameters: Iterator[tuple[str, nn.Parameter]], generator: torch.Generator) -> None:
    """Weights such that activations keep their scale: matrices by their inputs, embeddings of unit size, and vectors, which
    are gains and biases, a little away from what they were."""
    for name, parameter in parameters:
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            parameter.data.add_(0.1 * noise)
        elif "embed" in name:
            parameter.data.copy_(noise)
        else:
            scale = LOGIT_SPREAD if "lm_head" in name else 1.0
            parameter.data.copy_(scale * noise * parameter[0].numel() ** -0.5)


class Scored(nn.Module):
    """Log-probabilities of the whole vocabulary at every position of every sequence, each sequence by itself."""

    def __init__(self, inner: Any, new_tokens: int) -> None:
        super().__init__()
        self.inner, self._new_tokens = inner, new_tokens

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Rows of all prompts and rows of all continuations, in the order of the sequences."""
        prompts, generated = [], []
        for row, length in zip(tokens, lengths.tolist(), strict=True):
            ids = row[: length + self._new_tokens - 1]
            rows = self.inner(input_ids=ids[None], use_cache=False).logits[0].log_softmax(-1)
            prompts.append(rows[: length - 1])
            generated.append(rows[length - 1 :])
        return {"prompt": torch.cat(prompts), "generated": torch.cat(generated)}


def scored(request: Request) -> nn.Module:
    """The checkpoint in `transformers`, its weights rounded to the dtype of the case as vLLM's are."""
    llm = declared_llm(request.model)
    inner = _seeded(request.model, request.seed).to(device=request.device, dtype=request.dtype)
    return Scored(inner, llm.new_tokens).eval().requires_grad_(False)
