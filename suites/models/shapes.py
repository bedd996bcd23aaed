"""A published config at two scales: what a CPU checks in seconds, and full width with few layers for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_piecewise import Model
from pytest_piecewise.huggingface import hf_model

THIN_VOCABULARY = 8192
"""Full width is what matters on a GPU; ten times the tokens would only make more weights to draw."""


def tiny_and_thin(
    name: str, config: Mapping[str, Any], thin: Mapping[str, Any] | None = None, **declared: Any
) -> tuple[Model, Model]:
    """The two models of one name; `thin` changes the config of the second, where full width would not fit one GPU."""
    text = dict(config.get("text_config") or config)
    if "vocab_size" in text:
        text |= {"vocab_size": min(text["vocab_size"], THIN_VOCABULARY), "pad_token_id": None}
    return (
        hf_model(name=name, config=config, scale="tiny", **declared),
        hf_model(name=name, config={**text, **(thin or {})}, scale="thin", **declared),
    )
