"""Imports go downwards only, what pytest loads stays light, and torch's private names stay where they are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import pytest_piecewise

PACKAGE = "pytest_piecewise"
LAYERS: tuple[tuple[str, ...], ...] = (
    ("located",),
    ("records", "errors"),
    ("models", "__init__"),
    (
        "baselines",
        "benchmarks",
        "bitwise",
        "capture",
        "changes",
        "compare",
        "evidence",
        "exits",
        "expected",
        "findings",
        "heat",
        "history",
        "hooks",
        "huggingface",
        "judge",
        "leases",
        "machine_lock",
        "measure",
        "nvml",
        "origin",
        "outcome",
        "protocol",
        "ratios",
        "reports",
        "selection",
        "split",
        "structure",
        "ties",
        "vacuity",
    ),
    ("alerts", "ci", "doctor", "engines"),
    ("faults",),
    ("child", "localize", "server", "settings"),
    ("workers",),
    ("costs", "runner"),
    ("canary",),
    ("commands", "session", "plugin"),
    ("cli",),
)
"""From the lowest to the highest. A package counts with all of its modules."""

UPWARDS = {("hooks", "engines.native"), ("hooks", "engines.vllm"), ("models", "huggingface")}
"""The built-in engines: imported within the hook that is asked for them, as a plugin's would be. And what resolves the
references of a scheme."""

MAY_USE_PRIVATE_TORCH = ("engines", "capture", "faults", "measure", "split", "server")
MAY_USE_PYTEST = ("plugin", "session")


@dataclass(frozen=True)
class Import:
    """`module` imports `target`, both relative to the package. `deferred`: within a function."""

    module: str
    target: str
    line: int
    deferred: bool


def sources() -> dict[str, str]:
    """The package's modules by name: `records`, `engines.native`, `engines` and, for the package itself, `__init__`."""
    root = Path(pytest_piecewise.__file__).parent
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path.read_text()
    return found


def imports_of(name: str, source: str, modules: Mapping[str, str]) -> Iterator[Import]:
    """Every import of a module of the package; those for type checkers alone are left out."""
    tree = ast.parse(source)
    for_types = {
        child for node in ast.walk(tree) if is_type_checking(node) for part in node.body for child in ast.walk(part)
    }
    functions = [
        node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    ]
    deferred = {child for function in functions for child in ast.walk(function)}
    for node in ast.walk(tree):
        if node not in for_types:
            for target in targets_of(name, node, modules):
                yield Import(name, target, getattr(node, "lineno", 0), node in deferred)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def targets_of(name: str, node: ast.AST, modules: Mapping[str, str]) -> list[str]:
    """The modules that one statement imports, or that one string names for `import_module`."""
    if isinstance(node, ast.Import):
        return [inside(alias.name) for alias in node.names if is_ours(alias.name)]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = [PACKAGE, *name.split(".")][: -node.level]
            base = ".".join([*parents, *filter(None, [node.module])])
        if not is_ours(base):
            return []
        names = [f"{base}.{alias.name}" for alias in node.names]
        return [inside(full) if inside(full) in modules else inside(base) for full in names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{PACKAGE}."):
        return [inside(node.value)] if inside(node.value) in modules else []
    return []


def is_ours(dotted: str) -> bool:
    return dotted == PACKAGE or dotted.startswith(f"{PACKAGE}.")


def inside(dotted: str) -> str:
    return dotted.removeprefix(PACKAGE).removeprefix(".") or "__init__"


def layer_of(name: str) -> int | None:
    return next((index for index, layer in enumerate(LAYERS) if name.split(".")[0] in layer), None)


def upward_imports(modules: Mapping[str, str]) -> list[str]:
    """What is wrong with the layers, one line each."""
    found = [f"{name}: in no layer; add it to LAYERS" for name in modules if layer_of(name) is None]
    for name, source in modules.items():
        for item in imports_of(name, source, modules):
            here, there = layer_of(item.module), layer_of(item.target)
            allowed = (item.module, item.target) in UPWARDS and item.deferred
            if here is not None and there is not None and here < there and not allowed:
                found.append(f"{item.module}:{item.line} imports {item.target}, which lies above it")
    return found


def cycles(modules: Mapping[str, str]) -> list[str]:
    """Modules that import each other in a circle."""
    edges: dict[str, set[str]] = {}
    for name, source in modules.items():
        targets = {item.target for item in imports_of(name, source, modules)} - {name}
        edges[name] = {target for target in targets if (name, target) not in UPWARDS}
    removed = True
    while removed:  # what imports nothing that is left cannot be part of a circle
        removed = False
        for name in [name for name, targets in edges.items() if not targets & edges.keys()]:
            del edges[name]
            removed = True
    return sorted(edges)


def private_torch(source: str) -> list[str]:
    """The private names of torch that a module uses, as attributes, imports or strings."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if re.fullmatch(r"torch(\.\w+)+", node.value) else []
        found += [name for name in names if re.match(r"torch\.(\w+\.)*_(?!_)\w+", name)]
    return found


def users_of_pytest(modules: Mapping[str, str]) -> list[str]:
    found = []
    for name, source in modules.items():
        for node in ast.walk(ast.parse(source)):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found += [name for module in imported if module.split(".")[0] in ("pytest", "_pytest")]
    return found


def test_imports_go_downwards() -> None:
    assert upward_imports(sources()) == []


def test_no_modules_import_each_other() -> None:
    assert cycles(sources()) == []


def test_every_layer_names_modules_that_exist() -> None:
    known = {name.split(".")[0] for name in sources()}
    assert {name for layer in LAYERS for name in layer} <= known


def test_upward_exceptions_are_still_needed() -> None:
    modules = sources()
    found = {(item.module, item.target) for name in modules for item in imports_of(name, modules[name], modules)}
    assert found >= UPWARDS


@pytest.mark.parametrize(
    "statement",
    [
        "import pytest_piecewise.runner",
        "import pytest_piecewise.runner as r",
        "from pytest_piecewise import runner",
        "from pytest_piecewise.runner import run_case",
        "from . import runner",
        "from .runner import run_case",
        "def f():\n    from pytest_piecewise import runner",
        "import importlib\nimportlib.import_module('pytest_piecewise.runner')",
        "if True:\n    import pytest_piecewise.runner",
    ],
)
def test_planted_upward_import_is_caught(statement: str) -> None:
    modules = sources()
    planted = modules | {"compare": modules["compare"] + f"\n{statement}\n"}
    assert [text.partition(" ")[2] for text in upward_imports(planted)] == ["imports runner, which lies above it"]


def test_planted_import_for_type_checkers_is_none() -> None:
    modules = sources()
    text = "\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pytest_piecewise import runner\n"
    assert upward_imports(modules | {"compare": modules["compare"] + text}) == []


def test_exception_holds_within_a_function_only() -> None:
    modules = sources()
    planted = modules | {"hooks": modules["hooks"] + "\nfrom pytest_piecewise.engines.native import NativeEngine\n"}
    assert [text.partition(" ")[2] for text in upward_imports(planted)] == [
        "imports engines.native, which lies above it"
    ]


def test_planted_circle_is_caught() -> None:
    modules = sources()
    planted = modules | {"findings": modules["findings"] + "\nfrom pytest_piecewise import judge\n"}
    assert {"findings", "judge"} <= set(cycles(planted))


def test_planted_module_without_a_layer_is_caught() -> None:
    assert upward_imports(sources() | {"utils": ""}) == ["utils: in no layer; add it to LAYERS"]


def test_private_names_of_torch_stay_where_they_are() -> None:
    found = {name: private_torch(source) for name, source in sources().items()}
    assert {
        name: names for name, names in found.items() if names and name.split(".")[0] not in MAY_USE_PRIVATE_TORCH
    } == {}
    assert found["engines.pieces"], "nothing was found where there is something"


@pytest.mark.parametrize(
    "statement",
    [
        "torch._dynamo.reset()",
        "import torch._inductor.config",
        "from torch._dynamo import exc",
        "from torch import _C",
        "from torch.fx.experimental import _config as symbolic",
        "import importlib\nimportlib.import_module('torch._dynamo.utils')",
        "x = torch.fx.experimental._config",
    ],
)
def test_planted_private_name_is_caught(statement: str) -> None:
    assert private_torch(f"import torch\n{statement}\n")


@pytest.mark.parametrize("statement", ["torch.__version__", "torch.compile", "x._private", "from torch import nn"])
def test_public_names_are_none(statement: str) -> None:
    assert private_torch(f"import torch\n{statement}\n") == []


def test_pytest_is_imported_by_the_glue_alone() -> None:
    modules = sources()
    assert {name.partition(".")[0] for name in users_of_pytest(modules)} == set(MAY_USE_PYTEST)
    assert users_of_pytest({"compare": "import pytest"}) == ["compare"]


def heavy_after(module: str) -> set[str]:
    """Which heavy modules importing one of ours brings into a fresh interpreter."""
    code = f"import sys, {module}; print(*({{'torch', 'numpy', 'scipy', 'ruptures', 'pytest'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        PACKAGE,
        *(
            f"{PACKAGE}.{name}"
            for name in ("faults", "hooks", "runner", "settings", "engines.native", "engines.vllm", "reports.terminal")
        ),
    ],
)
def test_package_and_parent_side_import_neither_torch_nor_pytest(module: str) -> None:
    assert heavy_after(module) == set()


@pytest.mark.parametrize("module", [f"{PACKAGE}.plugin", f"{PACKAGE}.session.session"])
def test_plugin_imports_neither_torch_nor_numpy(module: str) -> None:
    assert heavy_after(module) == {"pytest"}


def test_end_of_a_session_imports_what_finds_steps_only_where_there_are_enough_points() -> None:
    assert heavy_after(f"{PACKAGE}.alerts.trends") == {"numpy"}


def test_heavy_import_would_be_seen() -> None:
    assert "torch" in heavy_after(f"{PACKAGE}.compare")


def test_plugin_alone_loads_nothing_of_the_rest() -> None:
    # An ordinary pytest run pays for what plugin.py imports, and for nothing else.
    code = f"import sys, {PACKAGE}.plugin; print(*(name for name in sys.modules if name.startswith('{PACKAGE}')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = {inside(name) for name in done.stdout.split()}
    assert names == {"__init__", "plugin"}
