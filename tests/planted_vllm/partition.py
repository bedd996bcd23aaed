"""A partition as Inductor would hand it to vLLM's wrapper, since on a CPU it makes none. Prints what was seen of it."""

from __future__ import annotations

import json
from contextlib import ExitStack

import torch
from torch import Tensor
from torch._inductor.utils import CUDAGraphWrapperMetadata, _unstable_customized_partition_wrapper
from vllm.compilation.decorators import maybe_use_cudagraph_partition_wrapper
from vllm.config import CUDAGraphMode
from vllm.forward_context import BatchDescriptor, set_forward_context

from pytest_piecewise.capture import GraphPool
from pytest_piecewise.engines import Request
from pytest_piecewise.engines.pieces import Evidence, Stage
from pytest_piecewise.engines.vllm_builds import make_config
from pytest_piecewise.engines.vllm_watch import observed
from pytest_piecewise.measure import Meter

from .models import CLEAN


def doubled(inputs: list[Tensor]) -> Tensor:
    return inputs[0] * 2


def main() -> None:
    device = torch.device("cpu")
    request = Request(model=CLEAN, variant="piecewise", dtype=torch.float32, device=device, seed=0, meter=Meter())
    config, evidence = make_config(request, partition=True), Evidence()
    stage = Stage(pool=GraphPool(device), frozen=ExitStack)
    with observed(evidence, stage, frozenset()), maybe_use_cudagraph_partition_wrapper(config):
        wrapper = _unstable_customized_partition_wrapper.wrapper
        assert wrapper is not None
        partition = wrapper(doubled, CUDAGraphWrapperMetadata(num_partitions=2, partition_index=1))

    def call(value: Tensor, mode: CUDAGraphMode) -> Tensor:
        batch = BatchDescriptor(num_tokens=4)
        with set_forward_context(None, config, num_tokens=4, cudagraph_runtime_mode=mode, batch_descriptor=batch):
            return partition([value])

    value = torch.ones(4)
    for mode in (CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.PIECEWISE):
        call(value, mode)
    stale = call(torch.zeros(4), CUDAGraphMode.PIECEWISE)
    seen = {name: getattr(evidence, name) for name in ("partitions", "compiled_calls", "replays")}
    seen |= {"sizes": sorted(evidence.captured_sizes), "moved": list(evidence.moved_inputs), "stale": stale.tolist()}
    print("SEEN", json.dumps(seen))
