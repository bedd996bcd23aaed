"""The builds of the vLLM engine: one decorated module under one `VllmConfig`, called within vLLM's forward context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import nn
from vllm.compilation.counter import compilation_counter
from vllm.compilation.passes.inductor_pass import CallableInductorPass, InductorPass
from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper
from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode, VllmConfig, set_current_vllm_config
from vllm.config.compilation import DynamicShapesConfig, DynamicShapesType
from vllm.forward_context import BatchDescriptor, get_forward_context, set_forward_context
from vllm.platforms import current_platform

from pytest_piecewise.capture import GraphPool
from pytest_piecewise.engines import Request
from pytest_piecewise.engines.builds import (
    as_returned,
    dummy_call,
    note_mutations,
    owned,
    preserved_state,
)
from pytest_piecewise.engines.layout import Layout
from pytest_piecewise.engines.pieces import Evidence, Stage, counted, generated_code
from pytest_piecewise.engines.prepare import call_context, flatten, make_inputs, make_module, weight_storages
from pytest_piecewise.engines.static import SizedOutputs, StaticInputs
from pytest_piecewise.engines.tracing import inductor_patches, refusals
from pytest_piecewise.engines.vllm_graphs import FROZEN
from pytest_piecewise.engines.vllm_platform import RecordingCpuPlatform
from pytest_piecewise.engines.vllm_watch import observed
from pytest_piecewise.engines.watch import CompileWatch, counts_from
from pytest_piecewise.errors import BuildError, ModelError
from pytest_piecewise.models import Model
from pytest_piecewise.records import Call, Counts, Part


class VllmBuild:
    """One variant: `eager` is mode NONE, `full` VLLM_COMPILE without splitting ops or graphs, `piecewise` with both."""

    drops_guards = True

    def __init__(self, request: Request, *, partition: bool = False) -> None:
        self.variant, self._request = request.variant, request
        self.config = make_config(request, partition=partition)
        has_graphs, on_gpu = request.variant == "piecewise", request.device.type == "cuda"
        self._pool = GraphPool(request.device, current_platform.get_global_graph_pool() if on_gpu else None)
        self.graph_kind = self._pool.kind if has_graphs else ""
        self.compilation_counts = dict.fromkeys(vars(compilation_counter), 0)
        """vLLM's `compilation_counter`, as far as this build has moved it."""
        self._evidence, self._stage = Evidence(), Stage(pool=self._pool, frozen=ExitStack)
        self._watch = CompileWatch(self._evidence)
        self._inputs, self._outputs = StaticInputs(request), SizedOutputs()
        self.layouts: list[Layout] = []
        with request.meter.phase("model"), set_current_vllm_config(self.config), self._tallied():
            self.module = make_module(request.model, request.dtype, request.device, request.seed, self.config)
        self._stage.weights = weight_storages(self.module)
        _refuse_undecorated(request.model, self.module)

    def prepare(self) -> None:
        """Compiles at the largest captured size, then captures all sizes, largest first, as vLLM's model runner does."""
        request = self._request
        if self.variant == "eager":
            return
        with set_current_vllm_config(self.config), preserved_state(request.model, self.module):
            with request.meter.phase("compile"):
                self._compile(dummy_call(request.model.capture_sizes[-1]))
            if self.graph_kind:
                with request.meter.phase("capture"), self._pool.capturing():
                    for size in reversed(self.config.compilation_config.cudagraph_capture_sizes):
                        self._capture(dummy_call(size))
        self._watch.warm()

    def _compile(self, call: Call) -> None:
        declared = frozenset(self._request.model.splitting_ops)
        layouts = self.layouts if self._request.observed else None
        with observed(self._evidence, self._stage, declared, layouts) as compiled, generated_code(self._evidence):
            self._outputs.observe(self._call(call, self._inputs.place(call)), call.size)
        entries = [entry for piece in compiled for entry in piece.range_entries.values()]
        self._evidence.compiles = len({id(entry.runnable) for entry in entries})
        if not self._evidence.partitions:
            for entry in entries:
                entry.runnable = counted(self._evidence, entry.runnable)

    def _capture(self, call: Call) -> None:
        arguments = self._inputs.place(call)
        self._outputs.observe(self._call(call, arguments), call.size)
        self._call(call, arguments, CUDAGraphMode.PIECEWISE)

    def run(self, call: Call, *, graphs: bool = True) -> dict[str, torch.Tensor]:
        """The outputs of one call; of the piecewise variant at the padded size. A size that was not captured runs
        without graphs, as it would in vLLM."""
        request, mode = self._request, CUDAGraphMode.NONE
        if not self.graph_kind:
            arguments = make_inputs(request.model, call.size, call.seed, request.dtype, request.device)
            outputs = as_returned(flatten(self._call(call, arguments)), self.module)
            note_mutations(self._evidence, request, call, arguments)
            return outputs
        if graphs and call.padded_size in self._evidence.captured_sizes:
            mode = CUDAGraphMode.PIECEWISE
        outputs = flatten(self._call(call, self._inputs.place(call), mode))
        note_mutations(self._evidence, request, call, self._inputs.real_rows(call))
        return owned(self._outputs.real_rows(outputs, call))

    def _call(self, call: Call, arguments: Sequence[Any], mode: CUDAGraphMode = CUDAGraphMode.NONE) -> Any:
        model, stage = self._request.model, self._stage
        rows = call.padded_size if self.graph_kind and call.padded_size else call.size
        stage.size, stage.padded_size = call.size, rows
        # Poison within the graph needs ops that know how many rows are real, which only a context can tell them.
        stage.poison = call.padding == "nan" and model.context is not None
        with self._tallied(), refusals(), self._forward_context(rows, mode), call_context(model, call):
            get_forward_context().additional_kwargs[FROZEN] = lambda: call_context(model, call)
            return self.module(*arguments)

    def _forward_context(self, rows: int, mode: CUDAGraphMode) -> Any:
        descriptor = BatchDescriptor(num_tokens=rows)
        return set_forward_context(
            None, self.config, num_tokens=rows, cudagraph_runtime_mode=mode, batch_descriptor=descriptor
        )

    @contextmanager
    def within(self, call: Call) -> Iterator[None]:
        """The metadata of a call, and the configuration in which pieces are compiled."""
        rows = call.padded_size if self.graph_kind and call.padded_size else call.size
        patches = inductor_config.patch(inductor_patches(self._request.model))
        context = self._forward_context(rows, CUDAGraphMode.NONE)
        with set_current_vllm_config(self.config), patches, context, call_context(self._request.model, call):
            yield

    @contextmanager
    def _tallied(self) -> Iterator[None]:
        """Adds what vLLM counts meanwhile: its counter is one for the process, which may hold several builds."""
        before = dict(vars(compilation_counter))
        yield
        tally, evidence = self.compilation_counts, self._evidence
        for name, value in vars(compilation_counter).items():
            tally[name] += value - before[name]
        evidence.graphs = tally["num_graphs_seen"]
        evidence.pieces = evidence.partitions or tally["num_piecewise_capturable_graphs_seen"]
        evidence.captures = tally["num_cudagraph_captured"]
        evidence.loaded = tally["num_compiled_artifacts_loaded"] + tally["num_aot_artifacts_loaded"]

    @property
    def counts(self) -> Counts:
        """vLLM's counts and our evidence so far."""
        if self.variant == "eager":
            return Counts(mutated_inputs=tuple(self._evidence.mutated_inputs))
        return counts_from(self._evidence, self._watch, self._request.model)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the generated kernels, as often as they are called."""
        return tuple(self._evidence.kernel_names)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What vLLM's split graph consists of; empty for eager, and where all was loaded from a cache."""
        return tuple(self._evidence.parts)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the segments of vLLM's graph pool."""
        return self._pool.pool_bytes() if self.graph_kind else 0

    def close(self) -> None:
        """Drops the module, and with it graphs and compiled code."""
        for part in self.module.modules():
            if isinstance(part, TorchCompileWithNoGuardsWrapper):
                part.cleanup()
        del self.module


def make_config(request: Request, *, partition: bool = False) -> VllmConfig:
    """The `VllmConfig` of a variant. What vLLM makes of it other than was asked is an error, since it would be ignored.

    With `partition` the pieces are those that Inductor makes of the graph.
    """
    model, made_for = request.model, request.variant
    refuse_platform(request)
    asked: dict[str, Any] = {"mode": CompilationMode.NONE, "cudagraph_mode": CUDAGraphMode.NONE}
    if made_for != "eager":
        asked |= {"mode": CompilationMode.VLLM_COMPILE, "splitting_ops": []}
    if made_for == "piecewise":
        asked |= {"cudagraph_mode": CUDAGraphMode.PIECEWISE, "splitting_ops": list(model.splitting_ops)}
        asked |= {"use_inductor_graph_partition": True} if partition else {}
    made = CompilationConfig(
        **asked,
        backend="inductor",
        dynamic_shapes_config=DynamicShapesConfig(type=DynamicShapesType(model.dynamic_shapes)),
        inductor_compile_config={name: as_pass(value) for name, value in inductor_patches(model).items()},
    )
    config = VllmConfig(compilation_config=made)
    action = "with empty splitting_ops vLLM makes no piecewise graphs: name the ops that stay eager"
    refuse_changes(asked, config, "" if model.splitting_ops else action)
    if made_for == "piecewise":
        # vLLM drops the sizes where there is no model_config (`VllmConfig._set_cudagraph_sizes`), as for a bare module.
        config.compilation_config.cudagraph_capture_sizes = list(model.capture_sizes)
        config.compilation_config.max_cudagraph_capture_size = model.capture_sizes[-1]
    return config


def as_pass(value: Any) -> Any:
    """Graph passes as vLLM's pass manager takes them; it does so itself only for passes that are given by name."""
    return value if isinstance(value, InductorPass) or not callable(value) else CallableInductorPass(value)


def refuse_changes(asked: Mapping[str, Any], config: VllmConfig, action: str = "") -> None:
    """What vLLM makes of a configuration other than was asked for would otherwise be built without a word."""
    for name, wanted in asked.items():
        found = getattr(config.compilation_config, name)
        if found != wanted:
            raise BuildError(
                _ANSWERED_BY[name],
                f"vLLM was asked for {name}={_shown(wanted)} and made it {_shown(found)}",
                action=action or "vLLM's log says why; change what it objects to",
            )


_ANSWERED_BY = {
    "mode": "compiles",
    "splitting_ops": "splitting_ops",
    "cudagraph_mode": "captures",
    "use_inductor_graph_partition": "pieces",
}


def _shown(value: Any) -> str:
    return getattr(value, "name", None) or repr(value)


def refuse_platform(request: Request) -> None:
    """On a CPU there must be our platform: under vLLM's own nothing is compiled piecewise."""
    if request.device.type == "cpu" and not isinstance(current_platform, RecordingCpuPlatform):
        raise ModelError(
            f"expected vLLM's platform to be pytest-piecewise's own, found {type(current_platform).__name__}: vLLM was "
            "imported in this process before, VLLM_TARGET_DEVICE is set, or VLLM_PLUGINS leaves pytest_piecewise out; "
            "use --piecewise-isolation=process and unset both"
        )


def _refuse_undecorated(model: Model, module: nn.Module) -> None:
    if not any(isinstance(part, TorchCompileWithNoGuardsWrapper) for part in module.modules()):
        raise ModelError(
            f"Model {model.name!r}: expected build(vllm_config) to return a module decorated with @support_torch_compile, "
            f"or one that holds such a module; found {type(module).__name__}"
        )
