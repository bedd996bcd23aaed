"""`Model`: what a user declares about the thing to be built; and how a child process finds it again. No torch here."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_piecewise.errors import ModelError
from pytest_piecewise.records import CHECKS, DTYPES, Call

DYNAMIC_SHAPES = ("backed_size_oblivious", "backed", "unbacked")
SCHEMES = ("hf", "hf-thin", "hf-tiny")
"""References of the form `scheme:...` are no `module:attribute`; `huggingface` resolves them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """What is built three ways. Only `name`, `build` and `inputs` are needed; the rest has a meaning when left out.

    The *size* is the number of tokens, or the batch size: the dimension that varies from call to call.
    """

    name: str
    """Names the case, its baseline file and its reports: letters, digits, `.`, `_` and `-`."""
    build: Callable[..., Any]
    """Makes the `nn.Module`, on the CPU in float32. The tool seeds, casts and moves it; keep it free of randomness of
    its own. It is called once per build, each in a process of its own: without arguments, but by the engine `vllm` with
    the `VllmConfig` of the variant, to return a module decorated with `@support_torch_compile`. For the engine `vllm-llm`
    see `llm_model`."""
    inputs: Callable[[int, Any], tuple[Any, ...]]
    """`(size, torch.Generator) -> tuple of CPU tensors`: the arguments of one call, the same for the same generator
    state. Floating-point inputs are cast to the case's dtype."""
    splitting_ops: tuple[str, ...] = ()
    """`"namespace::op"` or `"namespace::op.overload"`: ops that stay eager, and between which the graph is split."""
    capture_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Sizes that get a graph, ascending. Other sizes are padded up to the next one."""
    max_size: int | None = None
    """The largest size ever called; default: the largest of `capture_sizes`. Beyond the latter no graph is used."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    """Data types in which the model is to be checked."""
    dynamic: Mapping[int, int] | None = None
    """Which arguments carry the size, as `{argument index: dimension}`. Found by itself where it is the leading one."""
    dynamic_shapes: str = "backed_size_oblivious"
    """How the size is made symbolic: `backed_size_oblivious` (0 and 1 are sizes like others), `backed` (size 1 is
    compiled apart, which is then expected and not a recompile), or `unbacked`. vLLM's names."""
    context: Callable[[Call], AbstractContextManager[Any]] | None = None
    """Called round every call with its `Call`: sets metadata that splitting ops read, such as an attention context.
    Derive what it sets from `call.size` (real rows) and `call.seed`, so that replays see other metadata."""
    state: tuple[str, ...] = ()
    """Names of buffers that a call may change, as `fnmatch` patterns. They are compared like outputs."""
    inductor_config: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)
    """`torch._inductor.config` patches for the compiled variants, custom graph passes included."""
    exact_outputs: tuple[str, ...] = ()
    """Floating-point outputs that must be equal in every variant, bit for bit. Integers and booleans always are."""
    ties: Mapping[str, str] = field(default_factory=dict)
    """`{"ids": "scores"}`: integer output `ids` was selected from float output `scores` by argmax or top-k along the
    last dimension. Where the float64 reference shows a near tie another choice is no error."""
    answer: Callable[..., Any] | None = None
    """`(*inputs) -> outputs` computed by hand, without the module: then eager is checked as well."""
    reference: str = "float64"
    """Precision of the reference, `float64` or, for a model too large for it, `float32` (not for float32 cases)."""
    watches: tuple[str, ...] = ()
    """Paths whose change can change what is found on this model, relative to the root of the project: files, directories
    with all below them, or globs; `!` excludes. With `--piecewise-changed-files` a test is left out if nothing of it has
    changed, nor the files of model and test. Where nothing is declared, anything may matter."""
    allow: Mapping[str, str] = field(default_factory=dict)
    """Checks switched off, by name, each with the reason that reports will show."""

    def __post_init__(self) -> None:
        problem = _problem_with(self)
        if problem:
            raise ModelError(f"Model {self.name!r}: {problem}")

    @property
    def largest(self) -> int:
        """The largest size of any call."""
        return self.max_size if self.max_size is not None else self.capture_sizes[-1]

    def padded(self, size: int) -> int:
        """The captured size at which `size` rows are run; 0 if it is larger than all of them."""
        return next((captured for captured in self.capture_sizes if captured >= size), 0)


@dataclass(frozen=True, kw_only=True)
class Llm:
    """What `Model.build` is for a whole serving engine: a Hugging Face config, and prompts drawn by size and seed."""

    config: str | Mapping[str, Any]
    """A directory with a config.json, or its content; `model_type` and `architectures` say which classes are built."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `vllm.LLM`, the same in every variant. `compilation_config` is a mapping here, of what the
    variants do not decide, such as `custom_ops`."""
    prompt_tokens: tuple[int, int] = (2, 40)
    """The shortest and the longest prompt."""
    new_tokens: int = 6
    """How many tokens follow each prompt."""

    def __call__(self) -> Llm:
        """Itself: there is no module before the engine makes one."""
        return self

    @property
    def values(self) -> Mapping[str, Any]:
        """The content of the config."""
        if isinstance(self.config, str):
            return dict(json.loads((Path(self.config) / "config.json").read_text()))
        return self.config

    def inputs(self, size: int, generator: Any) -> tuple[Any, Any]:
        """Token ids of `size` sequences, prompt and continuation, and the lengths of their prompts."""
        import torch  # noqa: PLC0415 - only in the processes that build

        shortest, longest = self.prompt_tokens
        lengths = torch.randint(shortest, longest + 1, (size,), generator=generator)
        shape = (size, longest + self.new_tokens)
        return torch.randint(0, self.values["vocab_size"], shape, generator=generator), lengths


def llm_model(
    *,
    name: str,
    config: str | Mapping[str, Any],
    arguments: Mapping[str, Any] | None = None,
    prompt_tokens: tuple[int, int] = (2, 40),
    new_tokens: int = 6,
    **declared: Any,
) -> Model:
    """A `Model` for `engine="vllm-llm"`: vLLM's class for a Hugging Face config, with seeded weights of a sensible scale.

    The *size* is the number of sequences in a batch. `declared` are further fields of `Model`, such as `capture_sizes`.
    """
    made = Llm(config=config, arguments=arguments or {}, prompt_tokens=prompt_tokens, new_tokens=new_tokens)
    defaults = {"dtypes": ("float32",), "dynamic_shapes": "backed", "capture_sizes": (1, 2, 4, 8)}
    return Model(name=name, build=made, inputs=made.inputs, **(defaults | declared))


def _problem_with(model: Model) -> str:
    """The first thing wrong with the declaration: expected, found, what to do. Empty if nothing is."""
    for problem in (
        _naming_problem(model),
        _size_problem(model),
        _choice_problem(model),
        _allow_problem(model),
    ):
        if problem:
            return problem
    return ""


def _naming_problem(model: Model) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", str(model.name)):
        return "expected a name of letters, digits, '.', '_' and '-', since files are named after it; rename it"
    for attribute in ("build", "inputs"):
        if not callable(getattr(model, attribute)):
            return f"expected `{attribute}` to be callable, found {getattr(model, attribute)!r}; pass a function"
    for attribute in ("splitting_ops", "state", "exact_outputs", "watches"):
        value = getattr(model, attribute)
        if isinstance(value, str):
            return f"expected a tuple of names in {attribute}, found the string {value!r}; write ({value!r},)"
    for op in model.splitting_ops:
        if not isinstance(op, str) or not re.fullmatch(r"\w+::\w+(\.\w+)?", op):
            return f"expected splitting ops as 'namespace::op' or 'namespace::op.overload', found {op!r}"
    return ""


def _size_problem(model: Model) -> str:
    if not isinstance(model.capture_sizes, (tuple, list)):
        return f"expected a tuple of capture sizes, found {model.capture_sizes!r}; write ({model.capture_sizes!r},)"
    sizes = tuple(model.capture_sizes)
    if not sizes:
        return "expected at least one capture size, found none; give the sizes that are to be captured"
    if any(not isinstance(size, int) or size < 1 for size in sizes):
        return f"expected positive capture sizes, found {sizes}; remove what is not a positive integer"
    if list(sizes) != sorted(set(sizes)):
        return (
            f"expected capture sizes in ascending order without repeats, found {sizes}; use {tuple(sorted(set(sizes)))}"
        )
    if model.max_size is not None and model.max_size < sizes[-1]:
        return (
            f"expected no capture size above max_size={model.max_size}, found {sizes[-1]}; "
            "raise max_size or drop the larger sizes"
        )
    return ""


def _choice_problem(model: Model) -> str:
    if not model.dtypes or any(dtype not in DTYPES for dtype in model.dtypes):
        return f"expected dtypes out of {', '.join(DTYPES)}, found {model.dtypes!r}"
    if model.dynamic_shapes not in DYNAMIC_SHAPES:
        return f"expected dynamic_shapes out of {', '.join(DYNAMIC_SHAPES)}, found {model.dynamic_shapes!r}"
    if model.reference not in ("float64", "float32"):
        return f"expected reference 'float64' or 'float32', found {model.reference!r}"
    if model.reference == "float32" and "float32" in model.dtypes:
        return "a float32 reference cannot judge float32; use reference='float64' or take float32 out of dtypes"
    return ""


def _allow_problem(model: Model) -> str:
    if not isinstance(model.allow, Mapping):
        return f"expected allow as {{check: reason}}, found {model.allow!r}"
    for check, reason in model.allow.items():
        if check not in CHECKS:
            return f"allow names {check!r}, which is no check; expected one of {', '.join(CHECKS)}"
        if not str(reason).strip():
            return f"allow[{check!r}] needs a reason, which reports will show; found an empty one"
    return ""


def find_model(reference: str, file: str = "") -> Model:
    """The `Model` at `module:attribute`, or of a reference with one of `SCHEMES`. `file` is where the module came from, if
    it is not importable by its name."""
    module_name, _, attribute = reference.partition(":")
    if module_name in SCHEMES:
        from pytest_piecewise import huggingface  # noqa: PLC0415 - it lies above, and few runs need it

        return huggingface.find(reference)
    if not attribute or not module_name or module_name.startswith("."):
        raise ModelError(
            f"expected a model as 'module:attribute' or with a scheme out of {', '.join(SCHEMES)}, found {reference!r}; "
            "for example mypkg.models:LLAMA, or hf-tiny:DIRECTORY with a config.json in it"
        )
    module = _import(module_name, file)
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            known = sorted(name for name, item in vars(module).items() if isinstance(item, Model))
            raise ModelError(
                f"expected a Model named {attribute!r} in module {module_name!r}, found "
                f"{'the models ' + ', '.join(known) if known else 'no Model there'}; check the spelling"
            )
        value = getattr(value, part)
    if not isinstance(value, Model):
        raise ModelError(
            f"expected {reference} to be a pytest_piecewise.Model, found {type(value).__name__}; name a Model"
        )
    return value


def model_for(models: Mapping[str, Model | str], device: str) -> Model | str:
    """The model, or the reference to one, for a device, out of those for each kind of device."""
    kind = device.partition(":")[0]
    if kind not in models:
        raise ModelError(
            f"expected a model for device {kind}, found some for {', '.join(map(str, models)) or 'none'}; add one"
        )
    return models[kind]


def needed_module(reference: str) -> str:
    """The module that a process needs for building the model of a reference; worth importing before others are forked."""
    from pytest_piecewise import huggingface  # noqa: PLC0415

    module_name = reference.partition(":")[0]
    return huggingface.BUILDER if module_name in SCHEMES else module_name


def _import(name: str, file: str) -> ModuleType:
    loaded = sys.modules.get(name)
    if loaded is not None and (not file or _same_file(loaded, file)):
        return loaded
    try:
        module = importlib.import_module(name)
        if not file or _same_file(module, file):
            return module
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        if not file:
            raise ModelError(
                f"expected an importable module {name!r}, found {type(error).__name__}: {error}; "
                "install it, or run from the directory that holds it with PYTHONPATH=."
            ) from error
    # A test module that only pytest can import (importmode=importlib, a duplicate basename): load it from its file.
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ModelError(
            f"expected module {name!r} to be importable from {file!r}; move the model to a module of its own"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # or the next look-up would find half a module
        raise
    return module


def _same_file(module: ModuleType, file: str) -> bool:
    found = getattr(module, "__file__", None)
    return found is not None and Path(found).resolve() == Path(file).resolve()


def locate(model: Model, near: ModuleType | None = None) -> tuple[str, str]:
    """`("module:attribute", file)` under which another process finds `model`; `near` is searched first."""
    modules = [near] if near is not None else []
    modules += [module for module in list(sys.modules.values()) if module is not near]
    for module in modules:
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is model and module is not None and module.__name__ != "__main__":
                return f"{module.__name__}:{attribute}", getattr(module, "__file__", None) or ""
    raise ModelError(
        f"Model {model.name!r}: expected it at the top level of an importable module, so that a child process can find it; "
        "found it nowhere. Assign it to a module-level name, as in TINY = Model(...)"
    )


def files_of(model: Model, root: Path) -> set[Path]:
    """The files below `root` of the loaded modules that hold `model`, or define its `build` or `inputs`."""
    functions = (getattr(function, "func", function) for function in (model.build, model.inputs))  # of a partial
    names = {getattr(function, "__module__", "") for function in functions}
    found = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or not Path(file).is_relative_to(root):
            continue
        if name in names or any(value is model for value in list(vars(module).values())):
            found.add(Path(file))
    return found
