"""`Model` refuses what cannot work, and says what was expected, what was found and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pytest_piecewise import Model, ModelError
from pytest_piecewise.models import find_model, locate
from pytest_piecewise.records import CHECKS


def build() -> torch.nn.Module:
    return torch.nn.Linear(2, 2)


def inputs(size: int, generator: torch.Generator) -> tuple[torch.Tensor]:
    return (torch.randn(size, 2, generator=generator),)


def model(**changes: Any) -> Model:
    return Model(**({"name": "tiny", "build": build, "inputs": inputs} | changes))


HERE = model(name="here")


class Family:
    SMALL = HERE


NOT_A_MODEL = 3
CHECK_NAMES = ", ".join(CHECKS)

REFUSALS: list[tuple[dict[str, Any], str]] = [
    (
        {"name": "a/b"},
        "Model 'a/b': expected a name of letters, digits, '.', '_' and '-', since files are named after it; rename it",
    ),
    (
        {"name": ""},
        "Model '': expected a name of letters, digits, '.', '_' and '-', since files are named after it; rename it",
    ),
    ({"build": 3}, "Model 'tiny': expected `build` to be callable, found 3; pass a function"),
    ({"inputs": None}, "Model 'tiny': expected `inputs` to be callable, found None; pass a function"),
    (
        {"splitting_ops": "toy::attention"},
        "Model 'tiny': expected a tuple of names in splitting_ops, found the string 'toy::attention'; "
        "write ('toy::attention',)",
    ),
    (
        {"splitting_ops": ("toy.attention",)},
        "Model 'tiny': expected splitting ops as 'namespace::op' or 'namespace::op.overload', found 'toy.attention'",
    ),
    (
        {"splitting_ops": ("toy::a", "toy::b.c.d")},
        "Model 'tiny': expected splitting ops as 'namespace::op' or 'namespace::op.overload', found 'toy::b.c.d'",
    ),
    (
        {"capture_sizes": ()},
        "Model 'tiny': expected at least one capture size, found none; give the sizes that are to be captured",
    ),
    (
        {"capture_sizes": (0, 1)},
        "Model 'tiny': expected positive capture sizes, found (0, 1); remove what is not a positive integer",
    ),
    (
        {"capture_sizes": (1, 2.5)},
        "Model 'tiny': expected positive capture sizes, found (1, 2.5); remove what is not a positive integer",
    ),
    (
        {"capture_sizes": (4, 1, 4)},
        "Model 'tiny': expected capture sizes in ascending order without repeats, found (4, 1, 4); use (1, 4)",
    ),
    (
        {"capture_sizes": (1, 8), "max_size": 4},
        "Model 'tiny': expected no capture size above max_size=4, found 8; raise max_size or drop the larger sizes",
    ),
    ({"dtypes": ()}, "Model 'tiny': expected dtypes out of float32, bfloat16, float16, found ()"),
    ({"dtypes": "float32"}, "Model 'tiny': expected dtypes out of float32, bfloat16, float16, found 'float32'"),
    (
        {"dtypes": ("float32", "int8")},
        "Model 'tiny': expected dtypes out of float32, bfloat16, float16, found ('float32', 'int8')",
    ),
    (
        {"dynamic_shapes": "auto"},
        "Model 'tiny': expected dynamic_shapes out of backed_size_oblivious, backed, unbacked, found 'auto'",
    ),
    ({"reference": "float16"}, "Model 'tiny': expected reference 'float64' or 'float32', found 'float16'"),
    (
        {"reference": "float32"},
        "Model 'tiny': a float32 reference cannot judge float32; use reference='float64' or take float32 out of dtypes",
    ),
    (
        {"allow": {"bits": "why"}},
        f"Model 'tiny': allow names 'bits', which is no check; expected one of {CHECK_NAMES}",
    ),
    (
        {"allow": {"bits_full": "  "}},
        "Model 'tiny': allow['bits_full'] needs a reason, which reports will show; found an empty one",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSALS, ids=[repr(changes) for changes, _ in REFUSALS])
def test_unusable_declaration_is_refused_with_its_remedy(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as refusal:
        model(**changes)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"capture_sizes": 8}, "8"),
        ({"splitting_ops": (torch.ops.aten.mm,)}, "aten.mm"),
        ({"allow": ("bits_full",)}, "bits_full"),
    ],
    ids=lambda value: str(value),
)
def test_wrong_type_is_refused_by_name_too(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ModelError, match=r"Model 'tiny': .*expected") as refusal:
        model(**changes)
    assert found in str(refusal.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Meta-Llama-3.1_8B"},
        {"splitting_ops": ("toy::attention", "toy::attention.out")},
        {"capture_sizes": (3,), "max_size": 3},
        {"dtypes": ("bfloat16",), "reference": "float32"},
        {"dynamic_shapes": "unbacked"},
        {"allow": dict.fromkeys(CHECKS, "known")},
    ],
)
def test_usable_declaration_is_accepted(changes: dict[str, Any]) -> None:
    assert model(**changes).build is build


@pytest.mark.parametrize(("size", "padded"), [(1, 2), (2, 2), (3, 8), (8, 8), (9, 0)])
def test_sizes_are_padded_up_to_the_next_captured_one(size: int, padded: int) -> None:
    assert model(capture_sizes=(2, 8)).padded(size) == padded


def test_largest_size_is_the_largest_captured_one_unless_declared() -> None:
    assert model(capture_sizes=(2, 8)).largest == 8
    assert model(capture_sizes=(2, 8), max_size=100).largest == 100


def test_model_is_found_by_its_reference() -> None:
    assert find_model(f"{__name__}:HERE") is HERE
    assert find_model(f"{__name__}:Family.SMALL") is HERE


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "mypkg.models",
            "expected a model as 'module:attribute' or with a scheme out of hf, hf-thin, hf-tiny, found 'mypkg.models'; "
            "for example mypkg.models:LLAMA, or hf-tiny:DIRECTORY with a config.json in it",
        ),
        (
            "no_such_module_at_all:X",
            "expected an importable module 'no_such_module_at_all', found ModuleNotFoundError: No module named "
            "'no_such_module_at_all'; install it, or run from the directory that holds it with PYTHONPATH=.",
        ),
        ("json:X", "expected a Model named 'X' in module 'json', found no Model there; check the spelling"),
        (
            f"{__name__}:HEER",
            f"expected a Model named 'HEER' in module '{__name__}', found the models HERE; check the spelling",
        ),
        (
            f"{__name__}:NOT_A_MODEL",
            f"expected {__name__}:NOT_A_MODEL to be a pytest_piecewise.Model, found int; name a Model",
        ),
    ],
)
def test_reference_that_leads_nowhere_is_refused(reference: str, message: str) -> None:
    with pytest.raises(ModelError) as refusal:
        find_model(reference)
    assert str(refusal.value) == message


@pytest.mark.parametrize("reference", [":X", ".models:X"])
def test_reference_without_a_module_is_refused(reference: str) -> None:
    with pytest.raises(ModelError, match="expected"):
        find_model(reference)


@pytest.fixture
def module_file(tmp_path: Path) -> Iterator[Path]:
    """A module that can be imported from its file only."""
    before = dict(sys.modules)
    yield tmp_path / "only_from_file.py"
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


SOURCE = """
from pytest_piecewise import Model
X = Model(name={name!r}, build=dict, inputs=lambda size, generator: ())
"""


def test_module_that_is_not_importable_is_loaded_from_its_file(module_file: Path) -> None:
    module_file.write_text(SOURCE.format(name="from-file"))
    found = find_model("only_from_file:X", str(module_file))
    assert found.name == "from-file"
    assert find_model("only_from_file:X", str(module_file)) is found  # loaded once: ops register themselves on import


def test_another_module_of_the_same_name_is_not_taken_for_it(
    module_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two test files of one basename, as pytest allows with importmode=importlib.
    other = ModuleType("only_from_file")
    other.__file__ = "/elsewhere/only_from_file.py"
    other.X = model(name="elsewhere")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_from_file", other)
    module_file.write_text(SOURCE.format(name="from-file"))
    assert find_model("only_from_file:X", str(module_file)).name == "from-file"


def test_module_that_fails_on_import_says_so_every_time(module_file: Path) -> None:
    module_file.write_text("raise RuntimeError('no such GPU')\n" + SOURCE.format(name="x"))
    for _ in range(2):  # a half-imported module must not stay behind and be called empty
        with pytest.raises(Exception, match="no such GPU"):
            find_model("only_from_file:X", str(module_file))


def test_locate_gives_the_reference_under_which_the_model_is_found_again() -> None:
    reference, file = locate(HERE, sys.modules[__name__])
    assert reference == f"{__name__}:HERE"
    assert Path(file) == Path(__file__)
    assert find_model(reference, file) is HERE


def test_locate_searches_all_modules() -> None:
    assert locate(HERE) == (f"{__name__}:HERE", __file__)


def test_locate_prefers_the_module_that_uses_the_model() -> None:
    user = ModuleType("user_of_here")
    user.MINE = HERE  # type: ignore[attr-defined]
    assert locate(HERE, user) == ("user_of_here:MINE", "")


def test_locate_refuses_a_model_that_no_child_could_find() -> None:
    hidden = model(name="hidden")
    with pytest.raises(ModelError) as refusal:
        locate(hidden, sys.modules[__name__])
    assert str(refusal.value) == (
        "Model 'hidden': expected it at the top level of an importable module, so that a child process can find it; "
        "found it nowhere. Assign it to a module-level name, as in TINY = Model(...)"
    )


def test_locate_does_not_count_main(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = model(name="in-main")
    monkeypatch.setattr(sys.modules["__main__"], "IN_MAIN", hidden, raising=False)
    with pytest.raises(ModelError, match="found it nowhere"):
        locate(hidden)
