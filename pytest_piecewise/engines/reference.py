"""The float64 reference: the eager module with every operation lifted, in-model casts and opaque ops included.

`module.double()` would not do: a `.float()` inside an RMSNorm brings it back to float32, silently.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from pytest_piecewise.engines.choices import Choices
from pytest_piecewise.engines.prepare import UNIT_ROUNDOFF
from pytest_piecewise.split import is_builtin


class LiftedPrecision(TorchDispatchMode):
    """Runs everything inside in `target`: tensors, dtype arguments, and the Python inside custom ops.

    An op without a kernel for `target` runs in its own dtype and its results are lifted; `fallbacks` names those.
    With `perturb`, every low-precision tensor that enters (weights, inputs, buffers) is changed by up to one unit of
    rounding of its dtype, at random: how far the result then moves is how well the model's answer is defined at all.
    `choices` decides what a `topk` gives.
    """

    def __init__(
        self, target: torch.dtype = torch.float64, perturb: int | None = None, choices: Choices | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._target, self._choices = target, choices
        self._low = {torch.float16, torch.bfloat16, torch.float32} - {target}
        self._perturb = perturb
        self._draws = 0
        self._inside: list[Any] = []
        self.fallbacks: dict[str, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = _written_arguments(func, args, kwargs or {})
        low = [(tensor, self._lift(tensor)) for tensor in written if self._is_low(tensor)]
        lifted = {id(tensor): high for tensor, high in low}

        def raise_precision(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return lifted[id(value)] if id(value) in lifted else self._lift(value)
            return self._target if isinstance(value, torch.dtype) and value in self._low else value

        high_args, high_kwargs = tree_map(raise_precision, (args, kwargs or {}))
        try:
            result = self._call(func, high_args, high_kwargs)
        except (NotImplementedError, RuntimeError) as error:
            if not _lacks_kernel(error):
                raise
            self.fallbacks[str(func)] = str(error).splitlines()[0][:120]
            return self._call_low(func, high_args, high_kwargs)
        if self._choices is not None and func is torch.ops.aten.topk.default:
            result = self._choices.decide(result, high_args[0], *_where_and_which(*high_args[2:], **high_kwargs))
        for tensor, high in low:
            tensor.copy_(high)
        # A factory without a dtype argument makes the default dtype; a later view of that would be of a lifted copy.
        return result if _tensors((args, kwargs or {})) else tree_map(self._lift, result)

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs `func`; the Python of a custom op runs under this mode too, or its own casts would lose precision."""
        if is_builtin(func._schema.name) or func in self._inside:
            return func(*args, **kwargs)
        device = next((a.device.type for a in _tensors((args, kwargs))), "cpu")
        key = torch._C.DispatchKey.CUDA if device == "cuda" else torch._C.DispatchKey.CPU
        self._inside.append(func)
        try:
            with self:
                return func.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)
        finally:
            self._inside.pop()

    def _call_low(self, func: Any, args: Any, kwargs: Any) -> Any:
        native = torch.float32

        def lower(value: Any) -> Any:
            is_high = isinstance(value, torch.Tensor) and value.dtype == self._target
            return value.to(native) if is_high else (native if value is self._target else value)

        lowered = {id(t): lower(t) for t in _tensors((args, kwargs))}
        low_args, low_kwargs = tree_map(
            lambda v: lowered[id(v)] if isinstance(v, torch.Tensor) else lower(v), (args, kwargs)
        )
        result = func(*low_args, **low_kwargs)
        for tensor in _written_arguments(func, args, kwargs):
            tensor.copy_(lowered[id(tensor)])
        return tree_map(self._lift, result)

    def _is_low(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype in self._low

    def _lift(self, value: Any) -> Any:
        if not self._is_low(value):
            return value
        high = value.to(self._target)
        if self._perturb is None:
            return high
        self._draws += 1
        generator = torch.Generator(value.device).manual_seed(self._perturb * 1_000_003 + self._draws)
        noise = torch.rand(value.shape, generator=generator, device=value.device, dtype=self._target)
        return high * (1 + UNIT_ROUNDOFF[value.dtype] * (2 * noise - 1))


def _where_and_which(dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[int, bool]:
    """Of a `topk`'s arguments after the first two, those that matter for what is chosen."""
    return dim, largest


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map(lambda value: found.append(value) if isinstance(value, torch.Tensor) else None, tree)
    return found


def _written_arguments(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    written = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            written += _tensors(value)
    return written


def _lacks_kernel(error: Exception) -> bool:
    text = str(error).lower()
    return any(phrase in text for phrase in ("not implemented for", "dtype", "could not run", "expected scalar type"))
