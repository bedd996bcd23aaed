"""Static graphs under vLLM: recorded graphs for a CPU, and a look at every call of a graph wrapper, ours or vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from vllm.compilation.counter import compilation_counter
from vllm.compilation.cuda_graph import CUDAGraphEntry
from vllm.compilation.monitor import validate_cudagraph_capturing_enabled
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context, is_forward_context_available, override_forward_context

from pytest_piecewise.capture import GraphPool
from pytest_piecewise.engines.pieces import Evidence, Stage
from pytest_piecewise.engines.poison import poison_padding

FROZEN = "pytest_piecewise.frozen"
"""Key in the forward context's `additional_kwargs`: gives the metadata in which a recording replays, that of its capture."""


class RecordedGraphs:
    """vLLM's static-graph wrapper where there are no CUDA graphs: used, keyed and counted as `CUDAGraphWrapper` is.

    A replay runs the piece on the very tensors of the capture, in the metadata of the capture, into the outputs of the
    capture. Like a CUDA graph it does not look where the tensors of the call lie.
    """

    def __init__(self, runnable: Callable[..., Any], vllm_config: Any, runtime_mode: Any, **options: Any) -> None:
        self.runnable, self.runtime_mode = runnable, runtime_mode
        self.concrete_cudagraph_entries: dict[Any, CUDAGraphEntry] = {}
        self._pool = GraphPool(torch.device("cpu"))

    def __call__(self, *arguments: Any) -> Any:
        """Runs, captures or replays, as the forward context says."""
        if not is_forward_context_available():
            return self.runnable(*arguments)
        context = get_forward_context()
        if context.cudagraph_runtime_mode != self.runtime_mode:
            return self.runnable(*arguments)
        entry = self.concrete_cudagraph_entries.get(context.batch_descriptor)
        if entry is None:
            return self._capture(context, arguments)
        entry.cudagraph()
        return entry.output

    def _capture(self, context: Any, arguments: Sequence[Any]) -> Any:
        validate_cudagraph_capturing_enabled()
        frozen_call = context.additional_kwargs.get(FROZEN, nullcontext)

        @contextmanager
        def frozen() -> Iterator[None]:
            with override_forward_context(context), frozen_call():
                yield

        replay, outputs, kept = self._pool.record(self.runnable, arguments, frozen)
        self.concrete_cudagraph_entries[context.batch_descriptor] = CUDAGraphEntry(
            batch_descriptor=context.batch_descriptor,
            cudagraph=replay,
            output=kept,
            input_addresses=[value.data_ptr() for value in arguments if isinstance(value, torch.Tensor)],
        )
        compilation_counter.num_cudagraph_captured += 1
        return outputs


@dataclass(frozen=True, slots=True)
class PieceInputs:
    """What is known of a piece before it is compiled: its label, its inputs by name, and those that have padding rows.

    Of a piece that comes from a cache only the label is known.
    """

    label: str
    names: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    is_partition: bool = False
    """Whether it is one of the parts that Inductor has made of a graph, and not compiled by itself."""


class WatchedGraphs:
    """A static-graph wrapper of one piece; before each call it compares addresses, tallies replays and poisons padding.

    vLLM records the addresses of a capture, and compares them only when it logs at level DEBUG; of Inductor's partitions,
    whose inputs come in one list, it records none.
    """

    def __init__(self, graphs: Any, inputs: PieceInputs, stage: Stage, evidence: Evidence) -> None:
        self._graphs, self._inputs, self._stage, self._evidence = graphs, inputs, stage, evidence
        self._recorded: dict[Any, dict[int, int]] = {}
        self.runnable = graphs.runnable
        """vLLM looks here for its `PiecewiseBackend`."""

    def __call__(self, *arguments: Any) -> Any:
        """Looks, then calls the wrapper."""
        if self._stage.poison:
            poison_padding(self._stage, arguments, self._inputs.rows)
        context = get_forward_context()
        if context.cudagraph_runtime_mode == CUDAGraphMode.PIECEWISE:
            batch, now = context.batch_descriptor, _addresses(arguments)
            if batch in self._graphs.concrete_cudagraph_entries:  # vLLM drops those that it has made to measure memory
                self._evidence.replays += 1
                self._compare(self._recorded[batch], now, batch.num_tokens)
            else:
                self._evidence.captured_sizes.add(batch.num_tokens)
                self._recorded[batch] = now
        elif self._inputs.is_partition:  # pieces that vLLM compiles by themselves are counted where they are called
            self._evidence.compiled_calls += 1
        return self._graphs(*arguments)

    def recorded(self, arguments: Sequence[Any]) -> Sequence[int | None] | None:
        """Where the graph that the context asks for reads its inputs, by position; None where no graph is replayed."""
        context = get_forward_context()
        entry = self._graphs.concrete_cudagraph_entries.get(context.batch_descriptor)
        if context.cudagraph_runtime_mode != CUDAGraphMode.PIECEWISE or entry is None:
            return None
        addresses = iter(entry.input_addresses)
        return [next(addresses) if isinstance(value, torch.Tensor) else None for value in arguments]

    def _compare(self, recorded: dict[int, int], addresses: dict[int, int], size: int) -> None:
        for index, before in recorded.items():
            now = addresses[index]
            if now != before:
                name = (
                    f"{self._inputs.label}, input {dict(enumerate(self._inputs.names)).get(index, index)}, size {size}"
                )
                self._evidence.moved_inputs[f"{name}: recorded at {before:#x}, now at {now:#x}"] = None


def _addresses(arguments: Sequence[Any]) -> dict[int, int]:
    """Where tensors lie, by position. A partition has one argument, the list of its inputs."""
    flat = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list) else arguments
    return {index: value.data_ptr() for index, value in enumerate(flat) if isinstance(value, torch.Tensor)}
