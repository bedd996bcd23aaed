"""`StaticGraph`: one callable recorded for one size, then replayed. CUDA graphs on a GPU, recorded graphs on a CPU.

Both keep the same contract, which is that of a CUDA graph: a replay reads the tensors that were given at capture,
wherever they lay then, writes the outputs that were returned at capture, and runs none of the caller's Python again.
A recorded graph keeps it by holding those tensors and running the callable on *them*, within the metadata of the
capture. Stale inputs, moved addresses, overwritten outputs and frozen metadata thus go wrong on a CPU as on a GPU.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

Function = Callable[..., Any]
Frozen = Callable[[], AbstractContextManager[Any]]


class GraphPool:
    """Where captures of one build put their memory, and which stream they are made on. On a CPU it is only a name.

    `handle` names a pool that exists already.
    """

    def __init__(self, device: torch.device, handle: Any = None) -> None:
        self.is_cuda = device.type == "cuda"
        self.kind = "cuda graphs" if self.is_cuda else "recorded graphs"
        self._handle = handle or torch.cuda.graph_pool_handle() if self.is_cuda else None
        self._stream = torch.cuda.Stream(device) if self.is_cuda else None

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Within it captures are made. Garbage is collected here, once, and not at every capture."""
        if self._stream is None:
            yield
            return
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.synchronize()

    def record(
        self, function: Function, arguments: Sequence[Any], frozen: Frozen
    ) -> tuple[Callable[[], None], Any, Any]:
        """Runs `function` once and records it. Returns the replay, this run's outputs, and those that replays write."""
        if self.is_cuda:
            return self._record_cuda(function, arguments)
        return _record_cpu(function, arguments, frozen)

    def _record_cuda(self, function: Function, arguments: Sequence[Any]) -> tuple[Callable[[], None], Any, Any]:
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph(): it collects garbage and empties the cache each time, for thousands of captures.
        graph.capture_begin(pool=self._handle, capture_error_mode="thread_local")
        try:
            outputs = function(*arguments)
        finally:
            graph.capture_end()
        # A capture computes nothing. What runs next, eager ops that index by these outputs too, must not see what lay there.
        graph.replay()
        return graph.replay, outputs, _map_tensors(_without_owning, outputs)

    def pool_bytes(self) -> int:
        """Bytes of the allocator's segments that belong to this pool; 0 on a CPU, where there is none."""
        if not self.is_cuda:
            return 0
        return sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment.get("segment_pool_id", (0, 0))) == tuple(self._handle or ())
        )


def _record_cpu(function: Function, arguments: Sequence[Any], frozen: Frozen) -> tuple[Callable[[], None], Any, Any]:
    # Aliases of the memory as it is now: a tensor that is given new memory later takes a CUDA graph nowhere either.
    arguments = [value.detach() if isinstance(value, torch.Tensor) else value for value in arguments]
    outputs = function(*arguments)
    targets = _tensors(outputs)

    def replay() -> None:
        with frozen():
            results = _tensors(function(*arguments))
        for target, result in zip(targets, results, strict=True):
            if target.data_ptr() != result.data_ptr():  # an output that is a view of an input is already in place
                target.copy_(result)

    return replay, outputs, outputs


def capture(
    pool: GraphPool,
    function: Function,
    arguments: Sequence[Any],
    *,
    names: Sequence[str],
    copied: dict[int, torch.Tensor],
    frozen: Frozen,
) -> tuple[StaticGraph, Any]:
    """Runs and records `function` on `arguments`. Returns the graph, and the outputs of this run, which own their memory.

    `copied` maps argument indices to buffers: such an argument is copied into its buffer before every replay, because
    its producer is eager and returns it at a new address each time. `frozen` gives the metadata of the capture.
    """
    static = list(arguments)
    for index, buffer in copied.items():
        buffer.copy_(arguments[index])
        static[index] = buffer
    recorded = tuple(None if index in copied else _place(argument) for index, argument in enumerate(static))
    replay, outputs, kept = pool.record(function, static, frozen)
    return StaticGraph(replay, kept, recorded, names, copied), outputs


class StaticGraph:
    """A recording of one callable at one size. Made by `capture`."""

    def __init__(
        self,
        replay: Callable[[], None],
        outputs: Any,
        recorded: tuple[int | str | None, ...],
        names: Sequence[str],
        copied: dict[int, torch.Tensor],
    ) -> None:
        self._replay, self._outputs, self.recorded = replay, outputs, recorded
        """`recorded` has the address that each argument is read at, a value that is no tensor as text, and None for one
        that is copied to its place before every replay."""
        self._names, self._copied = names, copied

    def replay(self, arguments: Sequence[Any]) -> tuple[Any, list[str]]:
        """The outputs, and what a replay would read elsewhere than where this call has put it: one line each."""
        moved = [
            f"{self._names[index]}: recorded at {_shown(recorded)}, now at {_shown(_place(argument))}"
            for index, (recorded, argument) in enumerate(zip(self.recorded, arguments, strict=True))
            if recorded is not None and recorded != _place(argument)
        ]
        for index, buffer in self._copied.items():
            buffer.copy_(arguments[index])
        self._replay()
        return self._outputs, moved


def _place(value: Any) -> int | str | None:
    """What a graph has fixed of an argument: a tensor's address, or another value as text, since NaN is not equal to itself
    and lists of tensors cannot be compared."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    return None if value is None else f"value {value}"


def _shown(place: int | str | None) -> str:
    return hex(place) if isinstance(place, int) else str(place)


def _tensors(outputs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _map_tensors(found.append, outputs)
    return found


def _map_tensors(function: Callable[[torch.Tensor], Any], outputs: Any) -> Any:
    if isinstance(outputs, torch.Tensor):
        return function(outputs)
    if isinstance(outputs, (tuple, list)):
        return type(outputs)(_map_tensors(function, output) for output in outputs)
    return outputs


def _without_owning(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without keeping it alive: the pool may reuse the block once the capture's own run is over.

    Safe because the capture's run uses every boundary tensor exactly as long as a replay will, and because two sizes
    are never in flight together. Private names, unchanged from torch 2.11 to 2.15; there is no public counterpart.
    """
    storage = tensor.untyped_storage()
    if storage.data_ptr() == 0:
        return tensor
    alias = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), tensor.device, storage.nbytes())
    metadata = {
        "size": tensor.shape,
        "stride": tensor.stride(),
        "storage_offset": tensor.storage_offset(),
        "nbytes": storage.nbytes(),
        "dtype": tensor.dtype,
        "device": tensor.device,
    }
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata, alias)
