"""A fault at work in one process: what it has replaced, and how often its changed path ran and changed something."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pytest_piecewise.records import Call

if TYPE_CHECKING:
    import torch

    from pytest_piecewise.engines import Request

Replacement = Callable[..., Any]


class Plant:
    """What a fault is given: the request of the build, and ways to change what the process does. Undone by `close`."""

    def __init__(self, request: Request | None = None) -> None:
        self._request = request
        self._undo = ExitStack()
        self.effects = 0
        """How often the fault changed something. 0 after a whole build: it was not planted."""
        self.call: Call | None = None
        """The call under way, and `mode` how a piecewise build runs it, where the fault follows them."""
        self.mode = ""

    @property
    def request(self) -> Request:
        """What is being built."""
        assert self._request is not None
        return self._request

    @property
    def on_cuda(self) -> bool:
        """Whether the build is on a GPU, where a captured piece runs its Python at capture only."""
        return self.request.device.type == "cuda"

    def note(self, changed: bool = True) -> None:
        """Says that something was changed."""
        self.effects += changed

    def wrap(self, path: str) -> Callable[[Replacement], Replacement]:
        """Decorator: the function below it stands in for `path`, and is given the original before its own arguments.

        `path` is `module.name` or `module.Class.name` within this package, or starts with `torch.`.
        """

        def decorate(replacement: Replacement) -> Replacement:
            owner, name = _locate(path)
            original = getattr(owner, name)
            _demand_fitting(path, original, replacement)

            @functools.wraps(original)
            def replaced(*args: Any, **kwargs: Any) -> Any:
                return replacement(original, *args, **kwargs)

            self._undo.callback(setattr, owner, name, original)
            setattr(owner, name, replaced)
            return replacement

        return decorate

    def set(self, path: str, value: Any) -> None:
        """Sets `path`, as in `wrap`, to a value."""
        owner, name = _locate(path)
        self._undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def on_close(self, undo: Callable[..., Any], *arguments: Any) -> None:
        """What `close` has to do besides."""
        self._undo.callback(undo, *arguments)

    def close(self) -> None:
        """Puts back everything that was replaced."""
        self._undo.close()

    # Places where many faults act

    def on_build(self, change: Callable[[Any], None]) -> None:
        """Every build that any engine makes is given to `change` before it is prepared."""

        @self.wrap("hooks.find_engine")
        def find_engine(original: Replacement, name: str) -> Any:
            engine = copy.copy(original(name))
            build = engine.build

            def changed(request: Request) -> Any:
                made = build(request)
                change(made)
                return made

            engine.build = changed
            return engine

    def on_outputs(self, change: Callable[[torch.Tensor, Call], torch.Tensor]) -> None:
        """Every floating-point output of every call goes through `change(output, call)`, which must not write into it."""

        def on_build(build: Any) -> None:
            run = build.run

            def running(call: Call, *, graphs: bool = True) -> dict[str, torch.Tensor]:
                outputs: dict[str, torch.Tensor] = run(call, graphs=graphs)
                return {name: self._changed(tensor, change, call) for name, tensor in outputs.items()}

            build.run = running

        self.on_build(on_build)

    def on_compiled(self, change: Callable[[torch.Tensor, Sequence[Any]], torch.Tensor]) -> None:
        """Every floating-point tensor that compiled code returns goes through `change(tensor, arguments)`, within graphs
        as well. On a GPU it is captured with the piece, so it must not look at values."""

        @self.wrap("engines.pieces.compile_counted")
        def compile_counted(original: Replacement, evidence: Any, compile_: Any) -> Any:
            compiled = original(evidence, compile_)

            def call(*arguments: Any) -> Any:
                outputs = compiled(*arguments)
                if not isinstance(outputs, (tuple, list)):
                    return self._changed(outputs, change, arguments)
                return type(outputs)(self._changed(output, change, arguments) for output in outputs)

            return call

    def on_eager_code(self, change: Callable[[Replacement], Replacement]) -> None:
        """What runs eagerly between pieces is replaced by `change(it)`, segment by segment."""

        @self.wrap("engines.pieces.split_graph")
        def split_graph(original: Replacement, graph_module: Any, splitting_ops: Any) -> Any:
            split = original(graph_module, splitting_ops)
            for segment in split.segments:
                if not segment.is_piece:
                    module = getattr(split.module, segment.name)
                    getattr(
                        module, "real_recompile", lambda: None
                    )()  # torch generates the code of some when first called
                    module.forward = change(module.forward)
            return split

    def follow_calls(self) -> None:
        """Keeps `call` and `mode` up to date in a piecewise build of the native engine."""

        @self.wrap("engines.builds.PiecewiseBuild._call")
        def _call(original: Replacement, build: Any, call: Call, arguments: Any, mode: str, mark: bool = False) -> Any:
            self.call, self.mode = call, mode
            return original(build, call, arguments, mode, mark)

    def _changed(self, tensor: Any, change: Callable[..., Any], *more: Any) -> Any:
        if not hasattr(tensor, "is_floating_point") or not tensor.is_floating_point():
            return tensor
        after = change(tensor, *more)
        self.note(after is not tensor and self.differs(tensor, after))
        return after

    def differs(self, before: torch.Tensor, after: torch.Tensor) -> bool:
        """Whether two tensors differ. Within a capture on a GPU values cannot be looked at: then they are taken to."""
        import torch  # only in the process that builds

        if before.shape != after.shape or before.dtype != after.dtype:
            return True
        if self.on_cuda and torch.cuda.is_current_stream_capturing():
            return True
        if not torch.equal(before.isnan(), after.isnan()):
            return True
        first, second = (tensor.masked_fill(tensor.isnan(), 0) for tensor in (before, after))
        return not torch.equal(first, second)


def _demand_fitting(path: str, original: Replacement, replacement: Replacement) -> None:
    """A replacement that cannot be called as what it replaces would end the build, and seem to have had no effect."""
    try:
        taken = inspect.signature(original).parameters.values()
    except ValueError:  # code that is not Python
        return
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [item for item in taken if item.default is inspect.Parameter.empty and item.kind not in several]
    named = [item.name for item in needed if item.kind is inspect.Parameter.KEYWORD_ONLY]
    given = [item.name for item in needed if item.name not in named]
    try:
        inspect.signature(replacement).bind(None, *given, **dict.fromkeys(named))
    except TypeError as error:
        expected = f"the original and {', '.join([*given, *named]) or 'nothing'}"
        raise TypeError(f"the fault's replacement of {path} has to take {expected}: {error}") from None


def _locate(path: str) -> tuple[Any, str]:
    """The module or class that holds the last name of `path`, and that name."""
    full = path if path.startswith("torch.") else f"{__package__.partition('.')[0]}.{path}"
    parts = full.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:-1]:
            owner = getattr(owner, part)
        return owner, parts[-1]
    raise AssertionError(f"no module for {path}")
