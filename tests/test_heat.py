"""Maps of where an output is wrong."""

from __future__ import annotations

import pytest
import torch

from pytest_piecewise.bitwise import bit_comparison
from pytest_piecewise.compare import Reference, budget_comparison, scale_of
from pytest_piecewise.heat import EXTENT, heat_map
from pytest_piecewise.records import Call, Comparison

CALL = Call(index=0, phase="first", size=4, padded_size=4, seed=0)


def test_small_output_has_a_cell_per_element() -> None:
    wrong = torch.zeros(2, 3, dtype=torch.bool)
    wrong[1, 2] = True
    assert heat_map(wrong) == ("...", "..9")


def test_large_output_is_binned_and_one_wrong_element_is_seen() -> None:
    wrong = torch.zeros(1000, 4096, dtype=torch.bool)
    wrong[999, 0] = True
    found = heat_map(wrong)
    assert (len(found), {len(row) for row in found}) == (EXTENT, {EXTENT})
    assert found[-1] == "0" + "." * (EXTENT - 1)
    assert set("".join(found[:-1])) == {"."}


def test_share_of_a_cell_is_told_in_tenths() -> None:
    wrong = torch.zeros(64, 32, dtype=torch.bool)
    wrong[::2] = True
    assert set("".join(heat_map(wrong))) == {"5"}


@pytest.mark.parametrize(
    ("shape", "rows"), [((), 1), ((7,), 1), ((2, 3, 5), 6), ((33, 1), 32), ((0, 4), 0), ((3, 0), 0)]
)
def test_every_shape_has_rows_along_its_last_dimension(shape: tuple[int, ...], rows: int) -> None:
    assert len(heat_map(torch.ones(shape, dtype=torch.bool))) == rows


def budget(found: torch.Tensor, value: torch.Tensor) -> Comparison:
    reference, eager = Reference(value.double(), torch.zeros(len(value), 1).double()), value.clone()
    return budget_comparison("full", CALL, "output", reference, eager, found, scale_of([reference], [eager]), 2.0**-24)


def test_comparisons_have_a_map_only_where_they_fail() -> None:
    value = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    broken = value.clone()
    broken[2, 5] += 1
    for good, bad in (
        (budget(value, value), budget(broken, value)),
        (
            bit_comparison("bits_graphs", "full", "itself", CALL, {"o": value}, {"o": value}),
            bit_comparison("bits_graphs", "full", "itself", CALL, {"o": broken}, {"o": value}),
        ),
    ):
        assert (good.ok, good.heat, good.shape) == (True, (), ())
        assert (bad.ok, bad.shape, bad.heat[2][5]) == (False, (4, 8), "9")
        assert set("".join(bad.heat[:2])) == {"."}


def test_other_places_of_nan_are_on_the_map() -> None:
    value = torch.ones(2, 3)
    broken = value.clone()
    broken[0, 1] = float("nan")
    assert budget(broken, value).heat == (".9.", "...")
