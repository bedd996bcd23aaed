"""Whole engines: one `LLM` per variant, the same prompts and the same continuations in all, compared by log-probabilities.

Every position is judged: a logits processor forces the continuation that the case has drawn, so that no variant goes
another way at a near tie. The log-probabilities are those of before it. Besides, every size is decoded greedily.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from vllm import LLM, SamplingParams
from vllm.compilation.counter import compilation_counter
from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.model_executor.models import registry
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from pytest_piecewise import protocol
from pytest_piecewise.bitwise import bit_comparison
from pytest_piecewise.capture import GraphPool
from pytest_piecewise.engines import Request, tasks, vllm_modes
from pytest_piecewise.engines.checkpoint import declared_llm, write_checkpoint
from pytest_piecewise.engines.identity import environment
from pytest_piecewise.engines.pieces import Evidence, Stage, counted, generated_code
from pytest_piecewise.engines.prepare import make_inputs, pinned_numerics
from pytest_piecewise.engines.tracing import refusals
from pytest_piecewise.engines.vllm_builds import refuse_changes, refuse_platform
from pytest_piecewise.engines.vllm_platform import AS_IT_IS
from pytest_piecewise.engines.vllm_startup import absent, logged, startup_metrics, timed_captures
from pytest_piecewise.engines.vllm_tokens import Greedy, judge_llm, save_greedy
from pytest_piecewise.engines.vllm_watch import observed
from pytest_piecewise.engines.watch import CompileWatch, counts_from
from pytest_piecewise.findings import allowed, bits_findings
from pytest_piecewise.measure import Meter, peak_memory_bytes
from pytest_piecewise.models import Model, find_model
from pytest_piecewise.records import BuildRecord, Call, Case, Counts, Finding, Metric, Part, Settings, Status
from pytest_piecewise.structure import Evidence as StructureEvidence
from pytest_piecewise.structure import structure_findings

OnPhase = Callable[[str], None]
Outputs = dict[str, torch.Tensor]

NO_GRAPHS = "vLLM's model runner captures nothing on a CPU; the decorator engine `vllm` has recorded graphs there"
_FORCED = "pytest_piecewise_forced"


def run_variant(case: Case, variant: str, settings: Settings, folder: Path, on_phase: OnPhase) -> BuildRecord:
    """Starts one `LLM`, takes it through the protocol, leaves log-probabilities and greedy tokens in `folder`."""
    model, meter = find_model(case.model, case.file), Meter(on_phase)
    with pinned_numerics(settings.threads, torch.device(case.device)):
        request = tasks.make_request(model, case, variant, settings, meter)
        build = LlmBuild(request)
        try:
            outputs, repeated, greedy = _perform(build, request, _steps(model, settings.seed))
            torch.save(outputs, folder / f"{variant}.pt")
            save_greedy(folder, variant, greedy)
            structure = _structure(build, model, variant, len(outputs))
            findings = [*bits_findings([repeated]), *structure, *build.unreported()]
            return BuildRecord(
                variant=variant,
                outcome="ok",
                findings=allowed(model, findings),
                comparisons=() if repeated.ok else (repeated,),
                metrics=(*_count_metrics(build), *build.startup),
                phases=meter.phases,
                counts=build.counts,
                calls=len(outputs),
                graph_kind=build.graph_kind,
                notes=build.notes,
                environment=environment(case, model, build.for_revision()) if variant == "eager" else {},
            )
        finally:
            build.close()


def run_comparison(case: Case, settings: Settings, folder: Path, on_phase: OnPhase) -> BuildRecord:
    """What every engine compares, then greedy tokens, and whether eager is the model that it should be."""
    record = tasks.run_comparison(case, settings, folder, on_phase)
    model = find_model(case.model, case.file)
    findings = judge_llm(folder, getattr(torch, case.dtype))
    return dataclasses.replace(record, findings=(*record.findings, *allowed(model, findings)))


def _steps(model: Model, seed: int) -> list[Call]:
    """The protocol up to the weight update: vLLM packs weights as it loads them, so that none can be changed in place."""
    return [call for call in protocol.calls(model, seed) if not call.weights]


def _perform(build: LlmBuild, request: Request, steps: Sequence[Call]) -> tuple[dict[int, Outputs], Any, list[Greedy]]:
    outputs: dict[int, Outputs] = {}
    greedy: list[Greedy] = []
    for call in steps:
        with request.meter.phase(f"protocol: {call.phase}"):
            outputs[call.index] = build.run(call)
            if call.phase == "reverse":
                greedy += build.greedy(call)
    with request.meter.phase("protocol: repeat"):
        again = build.run(steps[0])
    against = "the same call again"
    repeated = bit_comparison("bits_repeat", build.variant, against, steps[0], outputs[steps[0].index], again)
    return outputs, repeated, greedy


def _structure(build: LlmBuild, model: Model, variant: str, calls: int) -> tuple[Finding, ...]:
    """Of the variants whose structure the case decides; the default's is vLLM's own affair."""
    if variant not in ("full", "piecewise"):
        return ()
    counts, steps = build.counts, calls * declared_llm(model).new_tokens
    findings = structure_findings(
        StructureEvidence(
            model=model,
            variant=variant,
            counts=counts,
            # With graphs, compiled code runs only to warm up and to be captured; what replays is counted apart.
            plain_calls=1 if build.graph_kind else steps,
            graph_calls=max(steps, counts.replays // max(1, counts.pieces)),
            drops_guards=True,
            without_graphs="" if build.graph_kind else NO_GRAPHS,
        )
    )
    return tuple(vllm_modes.naming_captured_attention(item, counts) for item in findings)


def _count_metrics(build: LlmBuild) -> list[Metric]:
    names = ("graphs", "pieces", "distinct_pieces", "compiles", "kernels", "splitting_ops")
    found = [Metric(name="peak_memory", kind="bytes", value=peak_memory_bytes())]
    if build.variant in ("full", "piecewise"):
        found += [Metric(name=name, kind="count", value=getattr(build.counts, name)) for name in names]
    return found


class ForcedContinuation(AdapterLogitsProcessor):  # type: ignore[misc]  # Any, where vLLM is not installed
    """Leaves one token to choose where a request says which."""

    def is_argmax_invariant(self) -> bool:
        """It is not."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., torch.Tensor] | None:
        """The processor of one request, or None."""
        tokens = (params.extra_args or {}).get(_FORCED)
        if tokens is None:
            return None

        def force(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            forced = torch.full_like(logits, -torch.inf)
            forced[tokens[min(len(output_ids), len(tokens) - 1)]] = 0.0
            return forced

        return force


class LlmBuild:
    """One `LLM`, alive in this process, in one of vLLM's modes."""

    def __init__(self, request: Request) -> None:
        self.variant, self._request = request.variant, request
        self._llm_declared = declared_llm(request.model)
        self._evidence = Evidence()
        self._watch = CompileWatch(self._evidence)
        self._before = dict(vars(compilation_counter))
        with request.meter.phase("checkpoint"):
            checkpoint = write_checkpoint(request.model, request.seed)
        with request.meter.phase("startup"), self._watched() as lines, timed_captures() as seconds, refusals():
            self._llm = LLM(model=str(checkpoint), **self._arguments())
        self.config = self._llm.llm_engine.vllm_config
        refuse_changes(vllm_modes.asked_of_vllm(request), self.config)
        graphs = self.config.compilation_config.cudagraph_mode
        self.graph_kind = "cuda graphs" if request.device.type == "cuda" and graphs != CUDAGraphMode.NONE else ""
        self._tally()
        self.startup = startup_metrics(self.config, lines, self._evidence.captures, seconds)
        self._watch.warm()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the default is here, which the case does not decide."""
        made = self.config.compilation_config
        chosen = f"mode {made.mode.name}, backend {made.backend or 'none'}, CUDA graphs {made.cudagraph_mode.name}"
        return (f"vLLM's default is {chosen}",) if self.variant == "default" else ()

    def unreported(self) -> list[Finding]:
        """What of the start-up table there is no number for, with the reasons."""
        return [
            Finding(check="cost", status=Status.SKIP, variant=self.variant, summary=line)
            for line in absent(self.startup, self._reasons())
        ]

    def _reasons(self) -> dict[str, str]:
        made, why = self.config.compilation_config, dict[str, str]()
        if made.mode != CompilationMode.VLLM_COMPILE:
            reason = f"mode {made.mode.name} does not compile through vLLM's backend"
            why |= dict.fromkeys(("compile", "compile_dynamo", "compile_inductor"), reason)
        if not self.graph_kind:
            reason = NO_GRAPHS if self._request.device.type == "cpu" else "CUDA graphs are off in this mode"
            why |= dict.fromkeys(("capture", "captures", "graph_pool"), reason)
        return why

    @contextmanager
    def _watched(self) -> Iterator[list[str]]:
        """Notes what is split, compiled and said while the engine starts."""
        pool = GraphPool(self._request.device)
        ops = frozenset([*CompilationConfig._attention_ops, *self._request.model.splitting_ops])
        with ExitStack() as stack:
            # The class is looked at in this process, which will import it anyway, and not in one of its own.
            stack.enter_context(mock.patch.object(registry, "_run_in_subprocess", lambda look: look()))
            compiled = stack.enter_context(observed(self._evidence, Stage(pool=pool, frozen=ExitStack), ops))
            stack.enter_context(generated_code(self._evidence))
            yield stack.enter_context(logged())
        entries = [entry for piece in compiled for entry in piece.range_entries.values() if entry.runnable is not None]
        self._evidence.compiles = len({id(entry.runnable) for entry in entries})
        for entry in entries:
            entry.runnable = counted(self._evidence, entry.runnable)

    def _arguments(self) -> dict[str, Any]:
        request, llm = self._request, self._llm_declared
        if request.device.type == "cpu":
            refuse_platform(request)
        arguments: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "dtype": str(request.dtype).removeprefix("torch."),
            "max_model_len": llm.prompt_tokens[1] + llm.new_tokens,
            "max_num_seqs": request.model.largest,
            "max_logprobs": -1,
            "enable_prefix_caching": False,
            "async_scheduling": False,
            "logits_processors": [ForcedContinuation],
            "seed": request.seed,
            "disable_log_stats": True,
        }
        arguments |= llm.arguments
        if request.variant == "default":
            return arguments | {"additional_config": {AS_IT_IS: True} | arguments.get("additional_config", {})}
        return arguments | {"compilation_config": vllm_modes.compilation(request)}

    def run(self, call: Call) -> Outputs:
        """Log-probabilities of the whole vocabulary, at every position of prompts and forced continuations."""
        tokens, lengths = self._inputs(call)
        new = self._llm_declared.new_tokens
        prompts = [row[:length] for row, length in zip(tokens, lengths, strict=True)]
        forced = [row[length : length + new] for row, length in zip(tokens, lengths, strict=True)]
        answers = self._generate(
            prompts, [self._sampling(extra_args={_FORCED: ids}, prompt_logprobs=-1) for ids in forced]
        )
        for answer, ids in zip(answers, forced, strict=True):
            assert list(answer.outputs[0].token_ids) == ids, "a forced token was not taken"
        return {
            "prompt": _rows(row for answer in answers for row in answer.prompt_logprobs[1:]),
            "generated": _rows(row for answer in answers for row in answer.outputs[0].logprobs),
        }

    def greedy(self, call: Call) -> list[Greedy]:
        """What the engine says by itself after the prompts of the call, with the log-probabilities that it chose by."""
        tokens, lengths = self._inputs(call)
        prompts = [row[:length] for row, length in zip(tokens, lengths, strict=True)]
        answers = self._generate(prompts, [self._sampling() for _ in prompts])
        return [Greedy(list(a.outputs[0].token_ids), _rows(a.outputs[0].logprobs)) for a in answers]

    def _inputs(self, call: Call) -> tuple[list[list[int]], list[int]]:
        request = self._request
        tokens, lengths = make_inputs(request.model, call.size, call.seed, request.dtype, torch.device("cpu"))
        return tokens.tolist(), lengths.tolist()

    def _sampling(self, **more: Any) -> SamplingParams:
        new = self._llm_declared.new_tokens
        return SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False, logprobs=-1, **more)

    def _generate(self, prompts: list[list[int]], sampling: list[SamplingParams]) -> list[Any]:
        answers = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        self._tally()
        return list(answers)

    def _tally(self) -> None:
        """Takes over what vLLM has counted since this build began."""
        now, evidence = vars(compilation_counter), self._evidence
        moved = {name: value - self._before[name] for name, value in now.items()}
        evidence.graphs, evidence.pieces = moved["num_graphs_seen"], moved["num_piecewise_capturable_graphs_seen"]
        evidence.captures = moved["num_cudagraph_captured"]
        evidence.loaded = moved["num_compiled_artifacts_loaded"] + moved["num_aot_artifacts_loaded"]

    @property
    def counts(self) -> Counts:
        """vLLM's counts and our evidence so far."""
        return counts_from(self._evidence, self._watch, self._request.model) if self.variant != "eager" else Counts()

    @property
    def parts(self) -> tuple[Part, ...]:
        """What vLLM's split graphs consist of; empty for eager, and where all was loaded from a cache."""
        return tuple(self._evidence.parts)

    def for_revision(self) -> Any:
        """Something that has the module, as other builds do."""
        return SimpleNamespace(module=self._llm.apply_model(lambda module: module)[0])

    def close(self) -> None:
        """Ends the engine."""
        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        cleanup_dist_env_and_memory()


def _rows(rows: Any) -> torch.Tensor:
    """Dictionaries of log-probabilities by token as one matrix: a row per position, a column per token of the vocabulary."""
    return torch.tensor([[row[token].logprob for token in range(len(row))] for row in rows])
