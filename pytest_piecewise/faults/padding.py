"""PAD: rows that are no rows of the call reach those that are."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any

from pytest_piecewise.faults.catalogue import CONTEXT, PADDED, STATE, fault
from pytest_piecewise.faults.plant import Plant


def leaking(plant: Plant, leak: Any) -> None:
    """Adds `leak(padding rows of the output)`, summed over rows, to every row that compiled code returns.

    How many rows are real is read from the device, as kernels do: a captured graph sees it change from call to call.
    """
    import torch  # only in the process that builds

    rows = torch.zeros((), dtype=torch.int64, device=plant.request.device)

    @plant.wrap("engines.builds.PiecewiseBuild._call")
    def _call(original: Any, build: Any, call: Any, arguments: Any, mode: str, mark: bool = False) -> Any:
        rows.fill_(call.size)
        return original(build, call, arguments, mode, mark)

    def change(tensor: torch.Tensor, arguments: Any) -> torch.Tensor:
        if tensor.dim() < 2:
            return tensor
        number = torch.arange(tensor.shape[0], device=tensor.device).view(-1, *[1] * (tensor.dim() - 1))
        padding = torch.where(number >= rows, leak(tensor), 0).sum(0)
        return torch.where(number < rows, tensor + padding.to(tensor.dtype), tensor)

    plant.on_compiled(change)


@fault("PAD", "vllm#40047", "padding", needs=(PADDED,))
def nan_leaks(plant: Plant) -> None:
    """A reduction takes padding rows in with weight zero: harmless, until one of them is NaN."""
    leaking(plant, lambda tensor: tensor * 0)


@fault("PAD", "PrimeIntellect-ai/prime-rl#2506", "padding", "equivalence", needs=(PADDED,))
def stale_rows_leak(plant: Plant) -> None:
    """Finite values that earlier calls left in the padding rows are added to the real ones."""
    leaking(plant, lambda tensor: tensor.nan_to_num(0, 0, 0) * 2**-4)


@fault("PAD", "vllm#41841", "padding", "equivalence", needs=(CONTEXT, PADDED))
def padding_taken_for_real(plant: Plant) -> None:
    """Metadata counts the rows of the graph instead of those of the call: ops between pieces mix padding in."""

    @plant.wrap("engines.builds.call_context")
    def call_context(original: Any, model: Any, call: Any) -> Any:
        plant.note(call.index >= 0 and call.padded_size > call.size)
        return original(model, dataclasses.replace(call, size=call.padded_size or call.size))


@fault("PAD", "vllm#37728", "equivalence", "bits_graphs", needs=(STATE,))
def dummy_runs_advance_state(plant: Plant) -> None:
    """Warm-up and capture leave their mark in the model's state."""

    @plant.wrap("engines.builds.preserved_state")
    def preserved_state(original: Any, model: Any, module: Any) -> Any:
        plant.note()
        return nullcontext()


@fault("PAD", "vllm#37442", "equivalence", needs=(PADDED,), engines=("native", "vllm"))
def last_row_lost(plant: Plant) -> None:
    """With a single row of padding the last real row is taken for padding too, and left unwritten."""

    def change(tensor: Any, call: Any) -> Any:
        if call.padded_size != call.size + 1 or not tensor.dim() or tensor.shape[0] != call.size:
            return tensor
        changed = tensor.clone()
        changed[-1] = 0
        return changed

    plant.on_outputs(change)


@fault("PAD", "vllm#56922", "padding", "equivalence", needs=(PADDED,))
def rows_by_graph_size(plant: Plant) -> None:
    """A mean over rows is divided by the rows of the graph, not of the call: wrong for every padded call."""
    import torch  # only in the process that builds

    rows = torch.ones((), dtype=torch.float32, device=plant.request.device)

    @plant.wrap("engines.builds.PiecewiseBuild._call")
    def _call(original: Any, build: Any, call: Any, arguments: Any, mode: str, mark: bool = False) -> Any:
        rows.fill_(call.size / (call.padded_size or call.size))
        return original(build, call, arguments, mode, mark)

    plant.on_compiled(lambda tensor, arguments: tensor * rows.to(tensor.dtype) if tensor.dim() > 1 else tensor)
