"""The network of `tests.planted`, decorated for vLLM. vLLM is imported where it is built."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..planted import models as plain
from ..planted import ops


@torch.library.custom_op("planted::shift_into", mutates_args=("out",))
def shift_into(x: Tensor, out: Tensor) -> None:
    """Reads per-call metadata, and must therefore be a splitting op."""
    out.copy_(x + ops.METADATA["shift"])


@shift_into.register_fake
def _(x: Tensor, out: Tensor) -> None:
    return None


def shift_and_mix(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.ops.planted.shift_into(x, out)
    return plain.mix_in_place(out * 2)


def network(mix: Callable[[Tensor], Tensor], vllm_config: Any) -> nn.Module:
    from vllm.compilation.decorators import support_torch_compile

    @support_torch_compile(dynamic_arg_dims={"x": 0})
    class Decorated(plain.Network):
        pass

    return Decorated(mix=mix)


class Scaled(plain.Network):
    """What it computes hangs on a number that vLLM's caches do not look at, though Dynamo takes it for a constant."""

    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def scaled(scale: float, vllm_config: Any) -> nn.Module:
    from vllm.compilation.decorators import support_torch_compile

    made = support_torch_compile(dynamic_arg_dims={"x": 0})(Scaled)()
    made.scale = scale
    return made


model = partial(plain.model, build=partial(network, plain.mix_in_place))

CLEAN = model(name="clean", dtypes=("float32", "bfloat16"))
PLAIN = model(name="plain", build=lambda vllm_config: plain.Network())
MISSING_OP = model(name="missing-op", build=partial(network, shift_and_mix))
LISTED_OP = model(
    name="listed-op",
    build=partial(network, shift_and_mix),
    splitting_ops=("planted::mix_into", "planted::shift_into"),
)
NOTHING_SPLIT = model(name="nothing-split", splitting_ops=())
FRESH = model(name="fresh", build=partial(network, torch.ops.planted.mix_fresh), splitting_ops=("planted::mix_fresh",))
SCALED = model(name="scaled", build=partial(scaled, 1.0))
CHANGED_CONSTANT = model(
    name="changed-constant", inductor_config={"post_grad_custom_post_pass": plain.ChangedConstant()}
)
