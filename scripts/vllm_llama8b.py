"""Llama-3-8B's shape through vLLM: do its modes agree, and what does each need to start? Markdown and JSON.

    PYTHONPATH=. python scripts/vllm_llama8b.py --out out/vllm_llama8b

Every mode runs in a process of its own with a time limit, and leaves `<mode>.json` in the output directory as it goes on.
Modes whose result is there are not run again, so that a run which was cut short goes on where it ended. Weights are seeded,
of a sensible scale, and put in place of vLLM's dummy ones. `float32` is the reference for the others, whose error it
measures; where it cannot run, `eager` is, and the difference between prompts batched and alone stands for its error.
`--tiny` does it all with a small shape, also on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from vllm_agreement import compare, report, startup_of

MODES = ("eager", "none", "full", "piecewise", "default", "float32")
"""Without compile and graphs; without compile, one CUDA graph; one compiled graph; pieces; vLLM's own; the reference."""

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
TINY = LLAMA_8B | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 1024,
}
LENGTHS = (3, 9, 17, 33, 65, 130, 260, 300)
"""Of the prompts of a batch: together more tokens than vLLM captures, alone fewer."""
NEW_TOKENS, TOP, ROUNDS = 12, 20, 2
FORCED = "pytest_piecewise_forced"


def main() -> int:
    """Runs the modes that have no result yet, then compares what there is."""
    options = parse()
    if options.mode:
        run_mode(options)
        return 0
    out = options.out
    (out / "model").mkdir(parents=True, exist_ok=True)
    (out / "model" / "config.json").write_text(json.dumps(TINY if options.tiny else LLAMA_8B))
    for mode in options.modes.split(","):
        if not read(out, mode).get("complete"):
            start(mode, options)
    results = {mode: found for mode in MODES if (found := read(out, mode))}
    verdicts = compare(results)
    text = report(results, verdicts, MODES)
    (out / "report.md").write_text(text)
    (out / "report.json").write_text(json.dumps({"verdicts": verdicts, "startup": startup_of(results)}, indent=1))
    print(text)
    return 0 if verdicts and all(item["ok"] for item in verdicts.values()) else 1


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/vllm_llama8b"))
    parser.add_argument("--modes", default=",".join(MODES), help="those to run, in this order; results are kept")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds that one mode may take")
    parser.add_argument("--memory", type=float, default=0.6, help="vLLM's gpu_memory_utilization")
    parser.add_argument("--tiny", action="store_true", help="a small shape, to try the script; runs on a CPU too")
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    return parser.parse_args()


def read(out: Path, mode: str) -> dict[str, Any]:
    """The result of a mode as far as there is one."""
    path = out / f"{mode}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def start(mode: str, options: argparse.Namespace) -> None:
    """One mode in a fresh process with caches of its own; its output is in `<mode>.log`."""
    own = options.out.resolve() / f"cache-{mode}"
    environment = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # apply_model is given a function; it stays in its process
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_CACHE_ROOT": str(own / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
        "TRITON_CACHE_DIR": str(own / "triton"),
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, instead of most of a CPU's memory
        "HF_HUB_OFFLINE": "1",
        "PYTEST_PIECEWISE_CHILD": "1",  # on a CPU: vLLM compiles in pieces
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")])),
    }
    arguments = [*sys.argv[1:], "--mode", mode]
    begin = time.perf_counter()
    with (options.out / f"{mode}.log").open("w") as log:
        try:
            code: object = subprocess.run(
                [sys.executable, __file__, *arguments],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=options.limit,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"stopped at the limit of {options.limit:g} s"
    print(f"{mode}: {code}, {time.perf_counter() - begin:.0f} s", flush=True)


# In the process of one mode


def run_mode(options: argparse.Namespace) -> None:
    """Starts vLLM, leaves the start-up table; then two rounds of prompts, and leaves what they gave."""
    import torch
    from vllm import LLM
    from vllm.compilation.counter import compilation_counter

    from pytest_piecewise.engines.vllm_startup import logged, startup_metrics, timed_captures
    from pytest_piecewise.records import to_plain

    torch.backends.cuda.matmul.allow_tf32 = False
    begin = time.perf_counter()
    with logged() as lines, timed_captures() as seconds, looked_at_here():
        llm = LLM(**arguments_of(options))
    found: dict[str, Any] = {"mode": options.mode, "init_s": time.perf_counter() - begin, "complete": False}
    config = llm.llm_engine.vllm_config
    captured = compilation_counter.num_cudagraph_captured
    found["startup"] = to_plain(startup_metrics(config, lines, captured, seconds))
    found["counters"] = {name: value for name, value in vars(compilation_counter).items() if value}
    found["configuration"] = (
        f"{config.compilation_config.mode.name}, graphs {config.compilation_config.cudagraph_mode.name}"
    )
    write(options, found)
    if torch.cuda.is_available():
        llm.apply_model(set_weights)
    found["rows"], found["greedy"] = {}, {}
    for number in range(ROUNDS):
        batch = prompts(options, number)
        found["rows"][f"round {number}"] = score(llm, batch)
        found["greedy"][f"round {number}"] = greedy(llm, batch)
        write(options, found)
    batch = prompts(options, 0)
    found["rows"]["alone"] = [score(llm, [item])[0] for item in batch]
    write(options, found | {"complete": True})


def write(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Replaces the result of the mode as a whole."""
    part = options.out / f"{options.mode}.part"
    part.write_text(json.dumps(found))
    part.replace(options.out / f"{options.mode}.json")


def looked_at_here() -> Any:
    """Within it, vLLM looks at the model's class in this process, and not in one that would have to import it all again."""
    from unittest import mock

    from vllm.model_executor.models import registry

    return mock.patch.object(registry, "_run_in_subprocess", lambda look: look(), create=True)


def checkpoint(options: argparse.Namespace) -> str:
    """For a CPU, where vLLM packs weights as it loads them, so that none can be set afterwards."""
    import torch
    from transformers import AutoConfig, LlamaForCausalLM

    directory = options.out / f"checkpoint-{options.mode}"
    model = LlamaForCausalLM(AutoConfig.for_model(**TINY))
    set_weights(model)
    model.to(torch.bfloat16).save_pretrained(directory)
    return str(directory)


def arguments_of(options: argparse.Namespace) -> dict[str, Any]:
    """What `LLM` is given."""
    import torch
    from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode

    from pytest_piecewise.engines.vllm_llm import ForcedContinuation
    from pytest_piecewise.engines.vllm_platform import AS_IT_IS

    mode, on_gpu = options.mode, torch.cuda.is_available()
    compiled, none = CompilationMode.VLLM_COMPILE, CUDAGraphMode.NONE
    full, piecewise = (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE) if on_gpu else (none, none)
    chosen: dict[str, Any] = {
        "eager": {"mode": CompilationMode.NONE, "cudagraph_mode": none},
        "float32": {"mode": CompilationMode.NONE, "cudagraph_mode": none},
        "none": {"mode": CompilationMode.NONE, "cudagraph_mode": full},
        "full": {"mode": compiled, "splitting_ops": [], "cudagraph_mode": full},
        "piecewise": {"mode": compiled, "cudagraph_mode": piecewise},
    }
    more = {"compilation_config": CompilationConfig(**chosen[mode])} if mode in chosen else {}
    if on_gpu:
        more |= {"gpu_memory_utilization": options.memory, "load_format": "dummy", "model": str(options.out / "model")}
    else:
        more["model"] = checkpoint(options)
        more |= {} if mode in chosen else {"additional_config": {AS_IT_IS: True}}
    return more | {
        "skip_tokenizer_init": True,
        "dtype": "float32" if mode == "float32" else "bfloat16",
        "max_model_len": 512 if options.tiny else 4096,
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "logits_processors": [ForcedContinuation],
        "disable_log_stats": True,
        "seed": 0,
    }


def set_weights(model: Any) -> int:
    """The same weights for every mode: rounded to bfloat16, of a scale that keeps activations, written where the old are."""
    import torch

    for index, (name, parameter) in enumerate(sorted(model.named_parameters())):
        generator = torch.Generator(parameter.device).manual_seed(index)
        noise = torch.randn(parameter.shape, generator=generator, device=parameter.device)
        if parameter.dim() == 1:
            noise = 1 + 0.1 * noise
        elif "embed" not in name:
            noise *= (2.0 if "lm_head" in name else 1.0) * parameter.shape[-1] ** -0.5
        parameter.data.copy_(noise.to(torch.bfloat16))
    return len(list(model.parameters()))


def prompts(options: argparse.Namespace, number: int) -> list[list[int]]:
    """Of one round: every prompt with the tokens that are to follow it."""
    import torch

    generator = torch.Generator().manual_seed(100 + number)
    vocabulary = (TINY if options.tiny else LLAMA_8B)["vocab_size"]
    order = LENGTHS if number % 2 == 0 else LENGTHS[::-1]
    return [torch.randint(3, vocabulary, (n + NEW_TOKENS,), generator=generator).tolist() for n in order]


def score(llm: Any, batch: list[list[int]]) -> list[list[dict[str, float]]]:
    """Per sequence, the most probable tokens of every position, of prompt and forced continuation."""
    forced = [ids[-NEW_TOKENS:] for ids in batch]
    answers = generate(llm, batch, [{"prompt_logprobs": TOP, "extra_args": {FORCED: ids}} for ids in forced])
    assert all(list(a.outputs[0].token_ids) == ids for a, ids in zip(answers, forced, strict=True))
    return [[plain(row) for row in (*a.prompt_logprobs[1:], *a.outputs[0].logprobs)] for a in answers]


def greedy(llm: Any, batch: list[list[int]]) -> list[dict[str, Any]]:
    """What vLLM says by itself after each prompt."""
    answers = generate(llm, batch, [{} for _ in batch])
    return [
        {"tokens": list(a.outputs[0].token_ids), "rows": [plain(row) for row in a.outputs[0].logprobs]} for a in answers
    ]


def generate(llm: Any, batch: list[list[int]], more: list[dict[str, Any]]) -> list[Any]:
    """The prompts of a batch, without what is to follow them."""
    from vllm import SamplingParams

    shared = {"temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True, "detokenize": False, "logprobs": TOP}
    inputs = [{"prompt_token_ids": ids[:-NEW_TOKENS]} for ids in batch]
    return list(llm.generate(inputs, [SamplingParams(**shared, **item) for item in more], use_tqdm=False))


def plain(row: Any) -> dict[str, float]:
    """Log-probabilities by token, as JSON has them."""
    return {str(token): entry.logprob for token, entry in row.items()}


if __name__ == "__main__":
    sys.exit(main())
