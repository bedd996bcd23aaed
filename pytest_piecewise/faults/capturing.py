"""CAPTURE: a graph is missing, one too many, or the wrong one."""

from __future__ import annotations

from typing import Any

from pytest_piecewise.faults.catalogue import PADDED, PIECES, SIZES, SPLIT, fault
from pytest_piecewise.faults.plant import Plant


@fault("CAPTURE", "vllm#37865", "captures", "covered_sizes", "replays", needs=(SIZES,))
def largest_not_captured(plant: Plant) -> None:
    """The largest size is silently left without a graph."""
    largest = plant.request.model.capture_sizes[-1]

    @plant.wrap("engines.pieces.Piece._capture")
    def _capture(original: Any, piece: Any, arguments: Any) -> Any:
        if piece._stage.padded_size != largest:
            return original(piece, arguments)
        plant.note()
        return piece._compiled(*arguments)


@fault("CAPTURE", "pytorch#193044", "captures", "replays", needs=(PIECES,))
def piece_not_captured(plant: Plant) -> None:
    """One piece has no graph at one size, and runs without."""
    skipped: list[Any] = []

    @plant.wrap("engines.pieces.Piece._capture")
    def _capture(original: Any, piece: Any, arguments: Any) -> Any:
        if skipped:
            return original(piece, arguments)
        skipped.append(piece)
        plant.note()
        return piece._compiled(*arguments)


@fault("CAPTURE", "vllm#54646", "captures")
def captured_twice(plant: Plant) -> None:
    """Every graph is captured twice, and the first thrown away."""

    @plant.wrap("engines.pieces.Piece._capture")
    def _capture(original: Any, piece: Any, arguments: Any) -> Any:
        original(piece, arguments)
        plant.note()
        return original(piece, arguments)


@fault("CAPTURE", "vllm#29539", "equivalence", "build", "addresses", needs=(SIZES,))
def graph_of_other_size(plant: Plant) -> None:
    """A call is answered with the graph of another size."""
    sizes = tuple(plant.request.model.capture_sizes)

    @plant.wrap("engines.pieces.Piece.forward")
    def forward(original: Any, piece: Any, *arguments: Any) -> Any:
        stage = piece._stage
        if stage.mode != "replay" or stage.padded_size not in sizes:
            return original(piece, *arguments)
        right = stage.padded_size
        stage.padded_size = sizes[(sizes.index(right) + 1) % len(sizes)]
        try:
            plant.note()
            return original(piece, *arguments)
        finally:
            stage.padded_size = right


@fault("CAPTURE", "vllm#23739", "bits_graphs", "replays", "equivalence", needs=(PIECES,))
def replay_forgotten(plant: Plant) -> None:
    """One graph is not replayed, though it is counted: its outputs are those of the call before."""
    forgotten: list[Any] = []

    @plant.wrap("capture.StaticGraph.replay")
    def replay(original: Any, graph: Any, arguments: Any) -> Any:
        import torch  # only in the process that builds

        forgotten[:] = forgotten or [graph]
        if graph is not forgotten[0]:
            return original(graph, arguments)
        outputs = graph._outputs if isinstance(graph._outputs, (tuple, list)) else [graph._outputs]
        before = [tensor.clone() for tensor in outputs if isinstance(tensor, torch.Tensor)]
        result = original(graph, arguments)
        after = [tensor for tensor in outputs if isinstance(tensor, torch.Tensor)]
        for old, new in zip(before, after, strict=True):
            plant.note(plant.differs(old, new))
            new.copy_(old)
        return result


@fault("CAPTURE", "vllm-ascend#16049", "replays", needs=(PADDED,))
def padded_sizes_without_graphs(plant: Plant) -> None:
    """Calls that have to be padded run without graphs, slowly and rightly."""

    @plant.wrap("engines.pieces.Piece.forward")
    def forward(original: Any, piece: Any, *arguments: Any) -> Any:
        stage = piece._stage
        if stage.mode != "replay" or stage.size == stage.padded_size:
            return original(piece, *arguments)
        stage.mode = "compiled"
        try:
            plant.note()
            return original(piece, *arguments)
        finally:
            stage.mode = "replay"


@fault("CAPTURE", "vllm#57785", "bits_graphs", "equivalence", devices=("cuda",), needs=(SPLIT,))
def side_stream_not_joined(plant: Plant) -> None:
    """An eager op between graphs runs on a stream of its own, and the next graph does not wait for it."""

    import torch  # only in the process that builds

    plant.follow_calls()
    stream = torch.cuda.Stream()

    def change(forward: Any) -> Any:
        def aside(*arguments: Any) -> Any:
            if plant.mode != "replay":
                return forward(*arguments)
            plant.note()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)  # about 10 ms: the next graph has long been and gone
                return forward(*arguments)

        return aside

    plant.on_eager_code(change)
