"""`pytest_piecewise::attention`: the splitting op to which the attention of any model in `transformers` is routed.

It behaves as the attention of a serving engine does: it writes into an argument, learns from per-call metadata how
many rows are real and how sequences are packed into them, and touches no other row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pytest_piecewise.errors import ModelError
from pytest_piecewise.huggingface.metadata import current_batch

PACKED, BATCHED = "pytest_piecewise_packed", "pytest_piecewise_batched"
"""Names for `attn_implementation`: sequences packed into one row of tokens, or a batch whose items have one length."""

KNOWN = ("scaling", "dropout", "sliding_window", "softcap", "s_aux", "is_causal")
"""Options of an attention function that the op has; `dropout` has to be 0."""
HARMLESS = ("position_ids", "cache_position", "use_cache", "return_dict", "logits_to_keep", "output_router_logits")
"""Options that transformers hands through to attention functions and that say nothing about attention."""


@torch.library.custom_op("pytest_piecewise::attention", mutates_args=("out",))
def attention(  # noqa: PLR0913 - an op's signature is its schema
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sinks: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> None:
    """Attention of `(rows, heads, features)` within each packed sequence, or of `(items, rows, heads, features)`.

    Heads of `k` and `v` may be fewer by a whole factor, and the features of `v` and `out` may be other ones. `window` is
    how many rows back one sees, itself included, and `softcap` bounds scores; 0 means neither. `sinks` is one more score
    per head that takes its share of the weight and has no value.
    """
    batch = current_batch()
    real = batch.rows
    groups = q.shape[-2] // k.shape[-2]
    q, k, v = (tensor[:real].float() for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(groups, dim=-2) for tensor in (k, v))
    scores = torch.einsum("...qhd,...khd->...hqk", q, k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    lengths = (q.shape[1],) if q.dim() == 4 else batch.lengths
    scores = scores.masked_fill(~visible(lengths, causal, window).to(q.device), float("-inf"))
    if sinks is not None:
        column = sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = scores.softmax(dim=-1)
    out[:real] = torch.einsum("...hqk,...khd->...qhd", weights, v)


@attention.register_fake
def _(  # noqa: PLR0913
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sinks: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> None:
    return None


def visible(lengths: tuple[int, ...], causal: bool, window: int) -> Tensor:
    """Which row (first dimension) sees which (second), for sequences of these lengths one after the other."""
    sequence = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    row = torch.arange(sum(lengths))
    distance = row[:, None] - row
    seen = sequence[:, None] == sequence
    if causal:
        seen &= distance >= 0
        return seen & (distance < window) if window else seen
    return seen & (distance.abs() <= window) if window else seen


def register() -> None:
    """Makes both names known to transformers."""
    from transformers import AttentionInterface  # noqa: PLC0415 - slow to import, and optional

    AttentionInterface.register(PACKED, _packed)
    AttentionInterface.register(BATCHED, _batched)


def _packed(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
    """The attention function for `(1, heads, rows, features)`."""
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return _attend(module, q, k, v, attention_mask, options)[None], None


def _batched(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
    """The attention function for `(items, heads, rows, features)`."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return _attend(module, q, k, v, attention_mask, options), None


def _attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: dict[str, Any]) -> Tensor:
    _refuse_unknown(module, mask, options)
    scaling, causal = options.get("scaling"), options.get("is_causal")
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    torch.ops.pytest_piecewise.attention(
        q,
        k,
        v,
        out,
        options.get("s_aux"),
        q.shape[-1] ** -0.5 if scaling is None else float(scaling),
        bool(getattr(module, "is_causal", True) if causal is None else causal),
        options.get("sliding_window") or 0,
        float(options.get("softcap") or 0.0),
    )
    return out


def _refuse_unknown(module: nn.Module, mask: Any, options: dict[str, Any]) -> None:
    """Raises for whatever would change the result and is not among the arguments of the op."""
    given = [name for name, value in options.items() if value is not None and value is not False]
    unknown = [name for name in given if name not in (*KNOWN, *HARMLESS)]
    if mask is not None:
        unknown.append("attention_mask")
    if options.get("dropout"):
        unknown.append("dropout")
    if layer_kind(module) == "sliding_attention" and not options.get("sliding_window"):
        unknown.append("a sliding window that is only in the mask")
    if unknown:
        raise ModelError(
            f"{type(module).__name__}: expected attention that pytest_piecewise::attention can do (scaling, causal or not, "
            f"sliding window, grouped heads, soft cap, sinks), found {', '.join(unknown)}; "
            "declare the model in a test module, with an attention op of its own"
        )


def layer_kind(module: nn.Module) -> str:
    """What the config says of the attention layer's kind; empty where it says nothing."""
    kinds = getattr(getattr(module, "config", None), "layer_types", None)
    index = getattr(module, "layer_idx", None)
    return str(kinds[index]) if kinds and index is not None and index < len(kinds) else ""
