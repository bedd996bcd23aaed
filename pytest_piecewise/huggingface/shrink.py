"""Makes a config small: fewer layers, or everything, with every structural feature kept. Pure: a dict in, a dict out.

Names are those of `transformers`; `names` maps a general name to the one that a config has (its `attribute_map`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

LAYERS = 3
"""At least: the first, a middle and the last layer end up in pieces of their own."""
HEAD, KV_HEADS, GROUP, HEADS = 16, 2, 4, 4
"""Features of a head; at most so many key-value heads, query heads for each, and heads where none are grouped."""
VOCABULARY, EXPERTS, CHOSEN, WINDOW, STATE, CHUNK, STEP = 128, 8, 2, 4, 16, 8, 16
"""At most so many tokens, experts, experts per token, rows of a window, states, rows of a chunk; widths go by `STEP`."""

PERIODS = ("decoder_sparse_step", "expert_layer_period", "interleave_moe_layer_step", "mlp_layer_period")
ATTENTION_PERIODS = (
    "attn_layer_period",
    "full_attention_interval",
    "global_attn_every_n_layers",
    "sliding_window_pattern",
)
"""Integers that say every how many layers comes another kind; those of attention count if no list names the kinds."""
WIDTHS = (
    "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size",
    "n_inner", "ffn_dim", "q_lora_rank", "kv_lora_rank", "word_embed_proj_dim", "embedding_size", "time_step_rank",
    "moe_shared_expert_intermediate_size",
)  # fmt: skip
"""Sizes that keep their ratio to the width."""
EXPERT_NUMBERS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts")
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id", "sep_token_id", "cls_token_id")


def thin(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The config with as few layers as show each kind of layer and each kind that follows another."""
    number = names.get("num_hidden_layers", "num_hidden_layers")
    layers = values.get(number)
    if not isinstance(layers, int) or layers <= LAYERS:
        return dict(values)
    lists = {k: v for k, v in values.items() if _is_per_layer(k, v, layers)}
    indices = {k: v for k, v in values.items() if _is_indices(k, v) and k not in lists}
    dense = values.get("first_k_dense_replace") or 0
    kinds: list[Any] = [
        (*(repr(v[i]) for v in lists.values()), *(i in v for v in indices.values()), i < dense) for i in range(layers)
    ]
    periods = (*PERIODS, *(() if any(k.endswith(("layer_types", "block_type")) for k in lists) else ATTENTION_PERIODS))
    period = max((v for k in periods if isinstance(v := values.get(k), int)), default=1)
    kept = list(range(min(layers, max(LAYERS, period + 1)))) if period > 1 else kept_layers(kinds)
    made = dict(values) | {number: len(kept)}
    for key, value in lists.items():
        chosen = [value[i] for i in kept]
        made[key] = "".join(chosen) if isinstance(value, str) else chosen
    made |= {key: [n for n, i in enumerate(kept) if i in value] for key, value in indices.items()}
    if dense:
        made["first_k_dense_replace"] = sum(i < dense for i in kept)
    return made


def kept_layers(kinds: Sequence[Any]) -> list[int]:
    """The fewest layers, at least `LAYERS`, with every kind and every pair of neighbours of different kinds."""
    wanted, compressed = set(pairwise(kinds)), list[int]()
    for index, kind in enumerate(kinds):
        run = [kinds[i] for i in compressed[-2:]]
        if run != [kind, kind] or len(set(kinds)) == 1:
            compressed.append(index)
    for length in range(min(LAYERS, len(compressed)), len(compressed) + 1):
        kept = [kinds[i] for i in compressed[:length]]
        if wanted <= set(pairwise(kept)):
            return compressed[:length]
    return compressed


def _is_per_layer(key: str, value: Any, layers: int) -> bool:
    if isinstance(value, str):
        return key.endswith("pattern") and len(value) == layers
    return isinstance(value, (list, tuple)) and len(value) == layers and not key.endswith(("indices", "idxs"))


def _is_indices(key: str, value: Any) -> bool:
    named = key.endswith(("layer_indices", "attn_idxs", "only_layers"))
    return named and isinstance(value, (list, tuple)) and all(isinstance(item, int) for item in value)


def tiny(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The config with few layers, and small in every other way, too. Ratios between sizes stay about what they were."""
    made = thin(values, names)
    heads = _heads(made, names)
    made |= heads
    width, before = made[names.get("hidden_size", "hidden_size")], values[names.get("hidden_size", "hidden_size")]
    for key in WIDTHS:
        if made.get(key):
            made[key] = _scaled(made[key], width, before)
    made |= _experts(made)
    made |= _recurrence(made, width)
    made |= _image(made)
    made |= _tokens(made)
    for key in ("sliding_window", "local_attention"):
        if made.get(key):
            made[key] = min(made[key], WINDOW)
    rope = made.get("rope_parameters")
    if rope:
        made["rope_parameters"] = _rope(rope, *_rotary_features(values, names, heads))
    return made


def _scaled(value: Any, width: int, before: int) -> Any:
    if isinstance(value, (list, tuple)):
        return [_scaled(item, width, before) for item in value]
    return max(STEP, round(value * width / before / STEP) * STEP)


def _heads(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Heads, their features, and the width that goes with them."""
    width, number = names.get("hidden_size", "hidden_size"), names.get("num_attention_heads", "num_attention_heads")
    heads = values.get(number)
    if not isinstance(heads, int):
        return {width: 4 * HEAD}
    grouped = values.get("num_key_value_heads") or heads
    if grouped == heads:
        few = kv = min(heads, HEADS)
    else:
        kv = min(grouped, KV_HEADS)
        few = kv * min(heads // grouped, GROUP)
    made = {number: few} | ({"num_key_value_heads": kv} if values.get("num_key_value_heads") else {})
    features = _latent(values) if "qk_nope_head_dim" in values else {}
    of_head = values.get("v_head_dim" if features else "head_dim") or values[width] // heads
    if not features and "head_dim" in values and values["head_dim"]:
        features = {"head_dim": HEAD}
    if values.get("query_pre_attn_scalar"):
        features["query_pre_attn_scalar"] = max(1, values["query_pre_attn_scalar"] * HEAD // of_head)
    return made | features | {width: _scaled(values[width], few * HEAD, heads * of_head)}


def _latent(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a head in multi-head latent attention, in their ratios."""
    whole = values["v_head_dim"]
    part = {key: max(8, values[key] * HEAD // whole) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    part["qk_head_dim"] = part["qk_nope_head_dim"] + part["qk_rope_head_dim"]
    return part | {"head_dim": part["qk_rope_head_dim"]}


def _rotary_features(values: Mapping[str, Any], names: Mapping[str, str], made: Mapping[str, Any]) -> tuple[int, int]:
    """How many features of a head there are now, and were before."""
    width, heads = names.get("hidden_size", "hidden_size"), names.get("num_attention_heads", "num_attention_heads")
    return made.get("head_dim") or HEAD, values.get("head_dim") or values[width] // max(1, values.get(heads) or 1)


def _rope(rope: Any, now: int, before: int) -> Any:
    """Rotary parameters whose lists have one entry per pair of features, or say how many pairs belong to what."""
    if not isinstance(rope, Mapping):
        return rope
    made = {key: _rope(value, now, before) for key, value in rope.items()}
    for key in ("long_factor", "short_factor"):
        if key in made:
            made[key] = made[key][: max(1, len(made[key]) * now // before)]
    if "mrope_section" in made:
        made["mrope_section"] = [part * now // before for part in made["mrope_section"]]
    return made


def _experts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fewer experts, of which a token still gets several, and as many per group as are chosen from."""
    made: dict[str, Any] = {}
    for key in EXPERT_NUMBERS:
        if isinstance(values.get(key), int) and values[key]:
            made[key] = min(values[key], EXPERTS)
    for key in EXPERTS_PER_TOKEN:
        if isinstance(values.get(key), int) and values[key]:
            made[key] = min(values[key], CHOSEN)
    groups = values.get("n_group")
    if made and groups:
        made["n_group"] = min(groups, EXPERTS // 2)
        made["topk_group"] = max(1, values["topk_group"] * made["n_group"] // groups)
    return made


def _recurrence(values: Mapping[str, Any], width: int) -> dict[str, Any]:
    """State-space and linear-attention layers: small states and chunks, heads that fill the inner width."""
    made = {key: min(values[key], STATE) for key in ("mamba_d_state", "state_size") if values.get(key)}
    made |= {key: min(values[key], CHUNK) for key in ("mamba_chunk_size", "chunk_size") if values.get(key)}
    made |= {key: min(values[key], 2) for key in ("mamba_n_groups", "n_groups") if values.get(key)}
    for head, number, expand in (
        ("mamba_d_head", "mamba_n_heads", "mamba_expand"),
        ("mamba_head_dim", "mamba_num_heads", "mamba_expand"),
        ("head_dim", "num_heads", "expand"),
    ):
        if values.get(head) and values.get(number) and expand in values:
            made |= {head: HEAD, number: int(values[expand] * width) // HEAD}
            if values.get("mamba_d_ssm"):
                made["mamba_d_ssm"] = int(values[expand] * width)
    if values.get("linear_num_key_heads"):
        ratio = values["linear_num_value_heads"] // values["linear_num_key_heads"]
        made |= {"linear_num_key_heads": 2, "linear_num_value_heads": 2 * ratio}
        made |= dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), HEAD)
    return made


def _image(values: Mapping[str, Any]) -> dict[str, Any]:
    """Images of four by four patches."""
    if not isinstance(values.get("image_size"), int) or not isinstance(values.get("patch_size"), int):
        return {}
    patch = min(values["patch_size"], 4)
    return {"patch_size": patch, "image_size": 4 * patch}


def _tokens(values: Mapping[str, Any]) -> dict[str, Any]:
    """A small vocabulary, and special tokens that are in it."""
    if not isinstance(values.get("vocab_size"), int):
        return {}
    size = min(values["vocab_size"], VOCABULARY)
    made: dict[str, Any] = {"vocab_size": size}
    for key in TOKEN_IDS:
        value = values.get(key)
        if isinstance(value, int):
            made[key] = min(value, size - 1)
        elif isinstance(value, (list, tuple)):
            made[key] = [min(item, size - 1) for item in value]
    return made
