"""`hf:`, `hf-thin:` and `hf-tiny:` references: what a config becomes, what the op does, and a whole run of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_piecewise import Call, ModelError
from pytest_piecewise.huggingface import find, hf_model, read_config
from pytest_piecewise.huggingface.metadata import current_batch, one_sequence
from pytest_piecewise.huggingface.shrink import kept_layers, thin, tiny
from pytest_piecewise.models import find_model, needed_module
from tests.running import configure, run_pytest

transformers = pytest.importorskip("transformers")

from pytest_piecewise.huggingface import attention, build  # noqa: E402 - needs transformers

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008],
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
}


def call(size: int, seed: int = 3) -> Call:
    return Call(index=0, phase="by hand", size=size, padded_size=size, seed=seed)


def tiny_config(model_type: str, **values: Any) -> Any:
    known = LLAMA if model_type == "llama" else {"model_type": model_type}
    return build.make_config(known | values, "tiny")


# Shrinking


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        ("aaaaaaaa", "aaa"),
        ("aa", "aa"),
        ("sssssfsssssfsssssf", "ssfs"),
        ("sfsfsfsf", "sfsf"[:3]),
        ("dddmmmmm", "ddmm"),
        ("mmmmmmmmmammmmmmmma", "mmam"),
        ("m-m-m*-m-m*-", "m-m-m*-"),
    ],
)
def test_kept_layers_have_every_kind_and_every_neighbourhood(kinds: str, kept: str) -> None:
    assert "".join(kinds[i] for i in kept_layers(kinds)) == kept


def test_thin_keeps_the_width_and_takes_layers_out_of_every_list() -> None:
    values = {
        "num_hidden_layers": 8,
        "hidden_size": 512,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
        "attn_layer_indices": [3, 7],
        "eos_token_id": [1, 2],
    }
    assert thin(values, {}) == values | {
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        "attn_layer_indices": [2],
    }


def test_thin_keeps_dense_layers_before_those_with_experts() -> None:
    made = thin({"num_hidden_layers": 61, "first_k_dense_replace": 3}, {})
    assert made == {"num_hidden_layers": 4, "first_k_dense_replace": 2}


def test_thin_keeps_a_period_that_only_a_number_tells() -> None:
    assert thin({"num_hidden_layers": 32, "attn_layer_period": 8}, {})["num_hidden_layers"] == 9


def test_few_layers_stay_as_they_are() -> None:
    assert thin({"num_hidden_layers": 2, "layer_types": ["a", "b"]}, {}) == {
        "num_hidden_layers": 2,
        "layer_types": ["a", "b"],
    }


def test_tiny_llama_keeps_ratios() -> None:
    made = tiny(LLAMA, {})
    assert (made["num_attention_heads"], made["num_key_value_heads"], made["num_hidden_layers"]) == (8, 2, 3)
    assert made["hidden_size"] == 8 * 16
    assert made["intermediate_size"] / made["hidden_size"] == LLAMA["intermediate_size"] / LLAMA["hidden_size"]
    assert made["vocab_size"] == 128
    assert made["eos_token_id"] == [127, 127]
    assert made["rope_theta"] == LLAMA["rope_theta"]


def test_tiny_keeps_grouped_experts() -> None:
    values = LLAMA | {"n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4}
    made = tiny(values, {})
    assert (made["n_routed_experts"], made["num_experts_per_tok"], made["n_group"], made["topk_group"]) == (8, 2, 4, 2)


def test_tiny_keeps_the_parts_of_latent_heads() -> None:
    config = tiny_config("deepseek_v3")
    assert (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim, config.qk_head_dim) == (16, 8, 16, 24)
    assert config.q_lora_rank >= 16


def test_tiny_shortens_rotary_lists_with_the_heads() -> None:
    scaling = {"type": "longrope", "long_factor": [1.0] * 48, "short_factor": [1.0] * 48}
    shape = {"hidden_size": 3072, "num_attention_heads": 32, "original_max_position_embeddings": 4096}
    config = tiny_config("phi3", rope_scaling=scaling, **shape)
    assert len(config.rope_parameters["long_factor"]) == len(config.rope_parameters["short_factor"]) == 8


def test_tiny_keeps_the_pattern_of_windows_and_puts_them_within_reach() -> None:
    config = tiny_config("gemma3_text")
    assert config.layer_types == ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    assert config.sliding_window == 4


def test_the_text_part_of_a_larger_model_is_taken() -> None:
    config = build.make_config({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "tiny")
    assert config.model_type == "gemma3_text"


# Routing


ROUTED = ("llama", "gemma2", "gemma3_text", "gpt_oss", "mistral", "deepseek_v3", "qwen3_moe", "phi3", "olmo2", "bert")


@pytest.mark.parametrize("model_type", ROUTED)
def test_routed_attention_is_what_transformers_itself_computes(model_type: str) -> None:
    config = tiny_config(model_type)
    task = "encoder" if model_type == "bert" else "causal-lm"
    torch.manual_seed(0)
    module = build.make_module(config, task, "batched_mm").eval()
    inputs = build.make_inputs(config, task, 16, torch.Generator().manual_seed(1))
    with torch.no_grad(), one_sequence(call(16)):
        routed = module(*inputs)
        module.model.set_attn_implementation("eager")
        module.model.set_experts_implementation("eager")
        plain = module(*inputs)
    assert routed.std() > 0.3
    torch.testing.assert_close(routed, plain, rtol=0, atol=2e-5 * float(plain.abs().max()))


def test_sequences_that_are_packed_do_not_see_each_other_and_padding_is_left_alone() -> None:
    q, k, v = (torch.randn(10, 2, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    model = find_model_of_llama()
    packed = torch.full_like(q, 7.0)
    with model.context(call(8, seed=5)):
        lengths = current_batch().lengths
        torch.ops.pytest_piecewise.attention(q, k, v, packed, None, 0.5, True, 0, 0.0)
    assert sum(lengths) == 8
    assert all(lengths)
    assert bool((packed[8:] == 7.0).all())
    start = 0
    for length in lengths:
        rows, alone = slice(start, start + length), torch.empty(length, 2, 4)
        with one_sequence(call(length)):
            torch.ops.pytest_piecewise.attention(q[rows], k[rows], v[rows], alone, None, 0.5, True, 0, 0.0)
        torch.testing.assert_close(packed[rows], alone)
        start += length


def find_model_of_llama() -> Any:
    return hf_model(name="llama", config=LLAMA, scale="tiny")


def test_op_without_metadata_says_what_is_missing() -> None:
    q = torch.randn(2, 1, 4)
    with pytest.raises(
        RuntimeError, match=r"expected batch metadata, found none; call the model within its Model\.context"
    ):
        torch.ops.pytest_piecewise.attention(q, q, q, torch.empty_like(q), None, 0.5, True, 0, 0.0)


@pytest.mark.parametrize(
    ("mask", "options", "found"),
    [
        (None, {"position_bias": torch.zeros(1)}, "position_bias"),
        (torch.zeros(1), {}, "attention_mask"),
        (None, {"dropout": 0.1}, "dropout"),
        (None, {"output_attentions": True}, "output_attentions"),
    ],
)
def test_what_the_op_does_not_know_is_refused_and_not_dropped(mask: Any, options: dict[str, Any], found: str) -> None:
    states = torch.randn(1, 2, 3, 4)
    with pytest.raises(ModelError, match=rf"expected attention that .* can do .*, found {found};"):
        attention._packed(torch.nn.Identity(), states, states, states, mask, **options)


def test_a_window_that_only_the_mask_would_have_is_refused() -> None:
    module = torch.nn.Identity()
    module.config, module.layer_idx = tiny_config("gemma2"), 0
    states = torch.randn(1, 2, 3, 4)
    with pytest.raises(ModelError, match="found a sliding window that is only in the mask"):
        attention._packed(module, states, states, states, None)


def test_layers_whose_pattern_is_in_the_mask_alone_are_refused() -> None:
    with pytest.raises(
        ModelError, match=r"llama4_text: expected layers of the kinds full_attention.* found chunked_attention"
    ):
        tiny_config("llama4_text")


# Weights


@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt2", "gpt_oss", "qwen3_moe", "bamba"])
def test_logits_have_a_sensible_scale_and_follow_every_weight(model_type: str) -> None:
    config = tiny_config(model_type)
    torch.manual_seed(0)
    module = build.make_module(config, "causal-lm", "batched_mm").eval()
    inputs = build.make_inputs(config, "causal-lm", 16, torch.Generator().manual_seed(1))
    with torch.no_grad(), one_sequence(call(16)):
        before = module(*inputs)
        assert 1.0 < before.std() < 4.0
        idle = []
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                kept = parameter.clone()
                parameter.mul_(0.5 + torch.rand(parameter.shape))
                change = (module(*inputs) - before).norm() / before.norm()
                parameter.copy_(kept)
                idle += [f"{name} {change:.2g}"] if change < 1e-3 else []
    assert idle == []


# References


def write_config(directory: Path, values: dict[str, Any] = LLAMA) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(values))
    return directory


def test_directory_file_and_scheme_give_the_name(tmp_path: Path) -> None:
    directory = write_config(tmp_path / "My Llama")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(LLAMA))
    assert find_model(f"hf-tiny:{directory}").name == "hf-tiny-My-Llama"
    assert find_model(f"hf:{directory}/config.json").name == "hf-My-Llama"
    assert find_model(f"hf-thin:{other}").name == "hf-thin-other"
    assert needed_module(f"hf-tiny:{directory}") == build.__name__
    assert needed_module("mypkg.models:LLAMA") == "mypkg.models"


def test_name_in_the_local_cache_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--own--llama-small"
    write_config(repository / "snapshots" / "0123456789")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123456789")
    assert find("hf-tiny:own/llama-small").name == "hf-tiny-own-llama-small"


@pytest.mark.parametrize("reference", ["own/never-heard-of", "not a name at all", "/no/such/directory"])
def test_reference_that_leads_to_no_config_says_where_was_looked(reference: str) -> None:
    with pytest.raises(ModelError) as refusal:
        read_config(reference)
    text = str(refusal.value)
    assert text.startswith(
        "expected a directory with a config.json, a path to one, or the name of a model in the local"
    )
    assert repr(reference) in text
    assert f"Nothing is downloaded; to get it: hf download {reference} config.json" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected a config.json in .*, found none; name the directory that has it"),
        ("{", "expected JSON, found"),
        ("{}", "expected the config.json of a model, with a model_type, found none in it"),
    ],
)
def test_directory_without_a_usable_config_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


def test_unknown_architecture_is_refused_and_no_code_of_its_own_is_run() -> None:
    remote = {"model_type": "brand_new", "auto_map": {"AutoConfig": "configuration.Config"}}
    with pytest.raises(ModelError, match="found 'brand_new'; code from the hub is never run"):
        build.make_config(remote, "tiny")


@pytest.mark.parametrize("changes", [{"scale": "huge"}, {"task": "chat"}])
def test_unknown_scale_and_task_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="expected a scale out of whole, thin, tiny and a task out of causal-lm"):
        hf_model(name="x", config=LLAMA, **changes)


def test_reference_without_a_place_is_refused() -> None:
    with pytest.raises(ModelError, match="expected a config as 'hf-tiny:DIR_OR_NAME', found 'hf-tiny:'"):
        find_model("hf-tiny:")


# Whole runs


def test_tiny_model_of_a_directory_is_checked_without_a_test_file(tmp_path: Path) -> None:
    directory = configure(tmp_path)
    write_config(tmp_path / "llama")
    done = run_pytest(directory, "--piecewise", "--piecewise-dtype=float32", "--piecewise-model", "hf-tiny:llama")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hf-tiny:llama[native-float32] ." in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("hf-tiny-llama-native-float32  piecewise"))
    assert "4 (3)" in row
    assert row.endswith("ok")


def test_unusable_references_are_usage_errors(tmp_path: Path) -> None:
    directory = configure(tmp_path)
    write_config(tmp_path / "chunked", {"model_type": "llama4_text"})
    for reference, text in (
        ("hf-tiny:nowhere", "found none for 'nowhere'. Nothing is downloaded"),
        ("hf-tiny:chunked", "llama4_text: expected layers of the kinds"),
    ):
        done = run_pytest(directory, "--piecewise", "--piecewise-model", reference)
        assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
        assert text in done.stderr
        assert "Traceback" not in done.stderr
