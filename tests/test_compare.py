"""What the comparison sees and what it leaves alone: each signal has a case that trips it, and a clean twin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_piecewise.bitwise import bit_comparison, exact_comparison
from pytest_piecewise.compare import (
    Reference,
    Scale,
    answer_comparison,
    budget_comparison,
    gain_comparison,
    scale_of,
)
from pytest_piecewise.engines.lifted import row_change
from pytest_piecewise.engines.prepare import UNIT_ROUNDOFF
from pytest_piecewise.records import Call, Comparison

CALL = Call(index=3, phase="reverse", size=512, padded_size=512, seed=4)
ROWS, COLUMNS = 512, 64
NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads that spin between tiny operations would make this file ten times slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Sample:
    """One output in float64, as eager has it, and as a correct variant has it that adds up in another order."""

    reference: Reference
    eager: Tensor
    found: Tensor
    scale: Scale
    unit: float


def sample(dtype: torch.dtype, seed: int = 0) -> Sample:
    """A matrix product, in which low precision really loses something."""
    generator = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((ROWS, 96), (96, COLUMNS)))
    value = x.double() @ weight.double()
    eager = x @ weight
    halves = (x[:, part].float() @ weight[part].float() for part in (slice(0, 48), slice(48, 96)))
    found = (next(halves) + next(halves)).to(dtype)
    reference = Reference(value, torch.zeros(ROWS, 1, dtype=torch.float64))
    return Sample(reference, eager, found, scale_of([reference], [eager]), UNIT_ROUNDOFF[dtype])


def compare(data: Sample, found: Tensor, **changes: Any) -> Comparison:
    """`found` in place of the sample's own; `changes` replace other parts of the sample."""
    reference, eager = changes.get("reference", data.reference), changes.get("eager", data.eager)
    return budget_comparison("full", CALL, "logits", reference, eager, found, data.scale, data.unit)


DTYPES = [torch.float32, torch.bfloat16, torch.float16]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


@dtypes
@pytest.mark.parametrize("seed", range(3))
def test_another_order_of_summation_is_within_budget(dtype: torch.dtype, seed: int) -> None:
    data = sample(dtype, seed)
    assert not torch.equal(data.found, data.eager)  # or nothing would be shown
    made = compare(data, data.found)
    assert made.ok, made
    assert (made.reason, made.wrong) == ("", 0)
    assert 0 < made.ratio <= 1
    assert 0 < made.row_ratio <= 1
    gain = gain_comparison("full", "logits", [data.reference], [data.found], data.scale, data.unit)
    assert gain.ok, gain


@dtypes
def test_eager_is_within_its_own_budget(dtype: torch.dtype) -> None:
    data = sample(dtype)
    assert compare(data, data.eager).ok


@dtypes
def test_one_wrong_element_of_many_fails_and_is_named(dtype: torch.dtype) -> None:
    data = sample(dtype)
    found = data.found.clone()
    found[317, 5] += 2.0
    made = compare(data, found)
    assert not made.ok
    assert (made.index, made.wrong, made.reason) == ((317, 5), 1, "beyond the budget")
    assert made.error == pytest.approx(2.0, rel=0.2)
    assert made.ratio == pytest.approx(made.error / made.budget)
    assert float(made.found) == pytest.approx(float(found[317, 5]))
    assert float(made.expected) == pytest.approx(float(data.reference.value[317, 5]))
    assert float(made.eager) == pytest.approx(float(data.eager[317, 5]))


def test_index_is_that_of_the_tensor_however_many_dimensions_it_has() -> None:
    data = sample(torch.float32)
    shape = (8, 64, COLUMNS)
    found = data.found.clone().reshape(shape)
    found[4, 61, 5] += 2.0
    reference = Reference(data.reference.value.reshape(shape), torch.zeros(8, 64, 1, dtype=torch.float64))
    made = compare(data, found, reference=reference, eager=data.eager.reshape(shape))
    assert made.index == (4, 61, 5)


@dtypes
def test_one_stale_row_among_512_fails(dtype: torch.dtype) -> None:
    data = sample(dtype)
    found = data.found.clone()
    found[300] = data.found[299]
    made = compare(data, found)
    assert not made.ok
    assert made.index[0] == 300
    assert made.row_ratio > 1


@dtypes
def test_row_that_is_a_little_wrong_everywhere_fails_though_no_element_does(dtype: torch.dtype) -> None:
    data = sample(dtype)
    found = data.reference.value.clone()
    norm = data.reference.value[300].square().mean().sqrt()
    signs = torch.where(torch.arange(COLUMNS) % 2 == 0, 1.0, -1.0)
    found[300] += 3.5 * max(data.scale.peak, data.unit) * norm * signs
    # In float64: as values of the case's dtype, the error would be rounded to what the dtype can hold.
    made = compare(data, found, eager=data.eager.double())
    assert not made.ok
    assert made.wrong == 0
    assert made.ratio < 1 < made.row_ratio
    assert made.reason == "beyond the budget"


def test_gain_of_one_in_a_thousand_in_bfloat16_is_seen_though_no_element_shows_it() -> None:
    data = sample(torch.bfloat16)
    clean, wrong = data.reference.value.bfloat16(), (data.reference.value * 1.001).bfloat16()
    assert compare(data, wrong).ok  # half a unit in the last place hides it in every element and row
    made = gain_comparison("full", "logits", [data.reference], [wrong], data.scale, data.unit)
    assert not made.ok
    assert made.gain == pytest.approx(1e-3, rel=0.2)
    assert made.reason.startswith("all values are off by one factor, 1.00")
    assert gain_comparison("full", "logits", [data.reference], [clean], data.scale, data.unit).ok


def test_negative_gain_is_seen_too() -> None:
    data = sample(torch.bfloat16)
    wrong = (data.reference.value * 0.998).bfloat16()
    made = gain_comparison("full", "logits", [data.reference], [wrong], data.scale, data.unit)
    assert not made.ok
    assert made.gain == pytest.approx(-2e-3, rel=0.2)


def test_gain_is_taken_over_all_calls() -> None:
    # Half of the calls too large and half too small is no factor.
    data, other = sample(torch.bfloat16, 1), sample(torch.bfloat16, 2)
    found = [(data.reference.value * 1.002).bfloat16(), (other.reference.value * 0.998).bfloat16()]
    references = [data.reference, other.reference]
    assert gain_comparison("full", "logits", references, found, data.scale, data.unit).ok
    both = [(part.reference.value * 1.002).bfloat16() for part in (data, other)]
    assert not gain_comparison("full", "logits", references, both, data.scale, data.unit).ok


def test_gain_of_a_few_values_is_no_evidence() -> None:
    # Two roundings that happen to agree: the deviation over rows says that it means nothing.
    value = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    reference = Reference(value, torch.zeros(2, 1, dtype=torch.float64))
    found = torch.tensor([[1.004], [-2.0]])
    made = gain_comparison("full", "logits", [reference], [found], Scale(0.0, 0.0, 0.0), 2.0**-8)
    assert made.ok
    assert made.ratio == 0.0


def test_gain_ignores_what_is_not_finite() -> None:
    data = sample(torch.bfloat16)
    value, wrong = data.reference.value.clone(), (data.reference.value * 1.002).bfloat16()
    value[3, 3], wrong[3, 3] = INF, INF
    reference = Reference(value, data.reference.sensitivity)
    made = gain_comparison("full", "logits", [reference], [wrong], data.scale, data.unit)
    assert not made.ok
    assert made.gain == pytest.approx(2e-3, rel=0.2)


@dtypes
def test_sensitive_row_gets_the_room_that_its_perturbation_takes(dtype: torch.dtype) -> None:
    # A row that moves by that much under one unit of rounding of the inputs is not defined any better.
    data = sample(dtype)
    found = data.found.clone()
    found[300, 7] += 2.0
    sensitivity = torch.zeros(ROWS, 1, dtype=torch.float64)
    assert not compare(data, found, reference=Reference(data.reference.value, sensitivity)).ok
    sensitivity[300] = 1.0
    assert compare(data, found, reference=Reference(data.reference.value, sensitivity)).ok
    sensitivity[300], sensitivity[301] = 0.0, 1.0
    assert not compare(data, found, reference=Reference(data.reference.value, sensitivity)).ok


def test_sensitivity_is_one_number_per_row_whatever_the_shape() -> None:
    # A vector is one row: with a number per element, its RMS error would be held to the least sensitive of them.
    for shape in ((), (5,), (4, 5), (2, 4, 5), (8, 0), (0, 5)):
        value = torch.ones(shape, dtype=torch.float64)
        change = row_change(value, value + 1)
        assert change.shape == (*shape[:-1], 1) if shape else change.numel() == 1
        assert change.unique().tolist() == ([1.0] if value.numel() else [0.0] * bool(change.numel()))


def test_vector_with_one_sensitive_element_is_within_its_budget() -> None:
    value = torch.linspace(1, 2, 16, dtype=torch.float64)
    moved = value.clone()
    moved[3] += 0.5
    reference = Reference(value, row_change(value, moved))
    found = value.float()
    found[3] += 0.4
    made = budget_comparison("full", CALL, "o", reference, value.float(), found, Scale(0.0, 0.0, 0.0), 2.0**-24)
    assert made.ok, made


@dtypes
def test_row_in_which_eager_errs_gets_that_much_room_and_no_other_row(dtype: torch.dtype) -> None:
    data = sample(dtype)
    eager, found = data.eager.clone(), data.found.clone()
    eager[300, 7] += 2.0
    found[300, 9] -= 2.0
    assert compare(data, found, eager=eager).ok
    found[301, 9] -= 2.0
    made = compare(data, found, eager=eager)
    assert not made.ok
    assert made.index == (301, 9)


def test_shape_and_dtype_must_be_those_of_eager() -> None:
    data = sample(torch.float32)
    made = compare(data, data.found[:100])
    assert (made.ok, made.reason) == (False, "expected float32 (512, 64), found float32 (100, 64)")
    made = compare(data, data.found.half())
    assert (made.ok, made.reason) == (False, "expected float32 (512, 64), found float16 (512, 64)")
    made = compare(data, data.found.t())
    assert (made.ok, made.reason) == (False, "expected float32 (512, 64), found float32 (64, 512)")


def with_value(tensor: Tensor, value: float, *index: int) -> Tensor:
    changed = tensor.clone()
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    ("value", "reason"),
    [(NAN, "NaN in other places: 1 found, 0 in eager"), (INF, "infinity in other places: 1 found, 0 in eager")],
)
@dtypes
def test_nan_or_infinity_where_eager_has_none_fails(dtype: torch.dtype, value: float, reason: str) -> None:
    data = sample(dtype)
    made = compare(data, with_value(data.found, value, 17, 3))
    assert (made.ok, made.reason, made.index, made.wrong) == (False, reason, (17, 3), 1)
    assert math.isinf(made.ratio)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@dtypes
def test_nan_or_infinity_that_is_missing_fails(dtype: torch.dtype, value: float) -> None:
    data = sample(dtype)
    made = compare(data, data.found, eager=with_value(data.eager, value, 17, 3))
    assert not made.ok
    assert made.index == (17, 3)
    assert "0 found, 1 in eager" in made.reason


def test_as_many_nans_in_other_places_fail() -> None:
    data = sample(torch.float32)
    made = compare(data, with_value(data.found, NAN, 17, 3), eager=with_value(data.eager, NAN, 17, 4))
    assert not made.ok
    assert made.wrong == 2


def everywhere(data: Sample, value: float) -> tuple[Reference, Tensor, Tensor]:
    """`value` at one place of the reference, of eager and of the variant alike, as masked logits have it."""
    reference = Reference(with_value(data.reference.value, value, 17, 3), data.reference.sensitivity)
    return reference, with_value(data.eager, value, 17, 3), with_value(data.found, value, 17, 3)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@dtypes
def test_nan_or_infinity_in_the_same_places_is_no_difference(dtype: torch.dtype, value: float) -> None:
    data = sample(dtype)
    reference, eager, found = everywhere(data, value)
    assert compare(data, found, reference=reference, eager=eager).ok


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@dtypes
def test_row_with_nan_or_infinity_in_it_is_judged_all_the_same(dtype: torch.dtype, value: float) -> None:
    data = sample(dtype)
    reference, eager, found = everywhere(data, value)
    found[17, 40] += 2.0
    made = compare(data, found, reference=reference, eager=eager)
    assert not made.ok
    assert made.index == (17, 40)


@dtypes
def test_infinity_of_the_other_sign_fails(dtype: torch.dtype) -> None:
    data = sample(dtype)
    reference, eager, found = everywhere(data, INF)
    found[17, 3] = -INF
    assert not compare(data, found, reference=reference, eager=eager).ok


def test_overflow_of_eager_does_not_hide_its_row() -> None:
    # float16 ends at 65504: eager and the variant overflow alike, the float64 reference does not.
    data = sample(torch.float16)
    reference = Reference(with_value(data.reference.value, 70000.0, 17, 3), data.reference.sensitivity)
    eager, found = (with_value(tensor, INF, 17, 3) for tensor in (data.eager, data.found))
    assert compare(data, found, reference=reference, eager=eager).ok
    wrong = with_value(found, -INF, 17, 3)
    assert not compare(data, wrong, reference=reference, eager=eager).ok
    found[17, 40] = 60000.0
    made = compare(data, found, reference=reference, eager=eager)
    assert not made.ok
    assert made.index == (17, 40)


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (3, 0), (1,), (1, 1)])
def test_scalars_vectors_and_empty_outputs(shape: tuple[int, ...]) -> None:
    value = torch.ones(shape, dtype=torch.float64)
    reference = Reference(value, torch.zeros(()))
    made = budget_comparison("full", CALL, "o", reference, value.float(), value.float(), Scale(0.0, 0.0, 0.0), 2.0**-24)
    assert made.ok
    assert made.elements == value.numel()
    if value.numel():
        wrong = value.float() * 1.5
        made = budget_comparison("full", CALL, "o", reference, value.float(), wrong, Scale(0.0, 0.0, 0.0), 2.0**-24)
        assert not made.ok
        assert made.wrong == 1
        assert made.index == (0,) * len(shape)


def test_row_of_zeros_must_be_zero() -> None:
    value = torch.zeros(4, 8, dtype=torch.float64)
    reference = Reference(value, torch.zeros(4, 1, dtype=torch.float64))
    zeros = torch.zeros(4, 8)
    assert budget_comparison("full", CALL, "o", reference, zeros, zeros, Scale(1e-7, 1e-7, 0.0), 2.0**-24).ok
    wrong = with_value(zeros, 1e-12, 2, 2)
    assert not budget_comparison("full", CALL, "o", reference, zeros, wrong, Scale(1e-7, 1e-7, 0.0), 2.0**-24).ok


def test_scale_is_what_is_typical_for_eager() -> None:
    data = sample(torch.bfloat16)
    error = (data.eager.double() - data.reference.value) / data.reference.value.square().mean(-1, keepdim=True).sqrt()
    assert data.scale.peak == pytest.approx(float(error.abs().amax(-1).quantile(0.9)))
    assert data.scale.rms == pytest.approx(float(error.square().mean(-1).sqrt().quantile(0.9)))
    assert abs(data.scale.gain) < 1e-3
    doubled = scale_of([data.reference], [data.reference.value * 1.01])
    assert doubled.gain == pytest.approx(0.01)


def test_scale_leaves_out_rows_that_are_not_finite() -> None:
    data = sample(torch.float32)
    broken = scale_of([data.reference], [with_value(data.eager, NAN, 3, 3)])
    assert broken.peak == pytest.approx(data.scale.peak, rel=0.05)
    nothing = scale_of([data.reference], [torch.full_like(data.eager, NAN)])
    assert nothing == Scale(0.0, 0.0, 0.0)


def bits(first: Tensor, second: Tensor) -> Comparison:
    return bit_comparison("padding", "piecewise", "zero padding", CALL, {"o": first}, {"o": second})


EQUAL: list[tuple[str, Tensor, Tensor]] = [
    ("float", torch.tensor([1.0, -0.0]), torch.tensor([1.0, -0.0])),
    ("nan", torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0])),
    ("nan payload", torch.tensor([NAN]), torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)),
    ("nan in bfloat16", torch.tensor([NAN, 1.0]).bfloat16(), torch.tensor([NAN, 1.0]).bfloat16()),
    ("infinity", torch.tensor([INF, -INF]), torch.tensor([INF, -INF])),
    ("bool", torch.tensor([True, False]), torch.tensor([True, False])),
    ("integer", torch.tensor([2**62 + 1]), torch.tensor([2**62 + 1])),
    ("other layout", torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3).t().contiguous().t()),
    ("empty", torch.zeros(0, 3), torch.zeros(0, 3)),
    ("scalar", torch.tensor(1.5), torch.tensor(1.5)),
    ("complex", torch.tensor([1 + 2j, complex(NAN, 0)]), torch.tensor([1 + 2j, complex(NAN, 0)])),
]


@pytest.mark.parametrize(("first", "second"), [pytest.param(a, b, id=name) for name, a, b in EQUAL])
def test_equal_bits(first: Tensor, second: Tensor) -> None:
    made = bits(first, second)
    assert made.ok, made
    assert made.elements == first.numel()


DIFFERENT: list[tuple[str, Tensor, Tensor, tuple[int, ...], str, str]] = [
    ("sign of zero", torch.tensor([1.0, -0.0]), torch.tensor([1.0, 0.0]), (1,), "-0", "0"),
    ("one ulp", torch.tensor([1.0]), torch.tensor([1.0]).nextafter(torch.tensor(2.0)), (0,), "1", "1.00000012"),
    ("nan", torch.tensor([1.0, NAN]), torch.tensor([1.0, 2.0]), (1,), "nan", "2"),
    ("sign of infinity", torch.tensor([INF]), torch.tensor([-INF]), (0,), "inf", "-inf"),
    ("bool", torch.tensor([True, False]), torch.tensor([True, True]), (1,), "0", "1"),
    ("integer", torch.tensor([3, 4]), torch.tensor([3, 5]), (1,), "4", "5"),
    ("half", torch.tensor([[1.0, 2.0]]).half(), torch.tensor([[1.0, 3.0]]).half(), (0, 1), "2", "3"),
    ("double", torch.tensor([1.0]).double(), torch.tensor([1.0]).double() + 2.0**-52, (0,), "1", "1"),
]


@pytest.mark.parametrize(
    ("first", "second", "index", "found", "expected"), [pytest.param(*case, id=name) for name, *case in DIFFERENT]
)
def test_different_bits_are_shown(
    first: Tensor, second: Tensor, index: tuple[int, ...], found: str, expected: str
) -> None:
    made = bits(first, second)
    assert (made.ok, made.reason, made.wrong, made.index) == (False, "bits differ", 1, index)
    assert (made.found, made.expected) == (found, expected)


@pytest.mark.filterwarnings("error")
def test_different_imaginary_part_is_an_error_of_its_own_size() -> None:
    made = bits(torch.tensor([1 + 2j]), torch.tensor([1 + 5j]))
    assert not made.ok
    assert made.error == pytest.approx(3.0)


def test_error_is_that_of_the_values_that_are_numbers() -> None:
    # NaN that both have is no error, and would otherwise make every error infinite.
    made = bits(torch.tensor([NAN, 1.0, INF]), torch.tensor([NAN, 1.5, INF]))
    assert made.error == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (torch.zeros(2, 2), "expected float32 (2, 2), found float32 (2, 3)"),
        (torch.zeros(2, 3).double(), "expected float64 (2, 3), found float32 (2, 3)"),
        (torch.zeros(3, 2), "expected float32 (3, 2), found float32 (2, 3)"),
    ],
)
def test_layouts_must_agree_bit_for_bit(second: Tensor, reason: str) -> None:
    made = bits(torch.zeros(2, 3), second)
    assert (made.ok, made.reason) == (False, reason)


def test_first_output_that_differs_is_named_and_all_elements_are_counted() -> None:
    first = {"a": torch.zeros(3), "b": torch.zeros(4), "c": torch.zeros(5)}
    second = first | {"b": torch.ones(4), "c": torch.ones(5)}
    made = bit_comparison("padding", "piecewise", "zero padding", CALL, first, second)
    assert (made.output, made.wrong, made.elements) == ("b", 4, 12)
    assert (made.check, made.axis, made.call, made.phase, made.size) == ("padding", "bits", 3, "reverse", 512)


def test_outputs_must_have_the_same_names() -> None:
    made = bit_comparison("padding", "piecewise", "x", CALL, {"a": torch.zeros(3)}, {"b": torch.zeros(3)})
    assert (made.ok, made.reason) == (False, "outputs ['a'] against ['b']")


def test_exact_comparison_names_output_and_values() -> None:
    made = exact_comparison("full", CALL, "ids", torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert (made.check, made.ok, made.output, made.against) == ("exact", False, "ids", "eager")
    assert (made.found, made.expected) == ("2", "3")
    assert exact_comparison("full", CALL, "ids", torch.tensor([1, 2]), torch.tensor([1, 2])).ok


def answer(found: Tensor | None, expected: Tensor, *, exact: bool = False, unit: float = 2.0**-24) -> Comparison:
    return answer_comparison("eager", CALL, "output", found, expected, exact=exact, unit=unit)


def test_answer_within_a_few_units_of_rounding() -> None:
    expected = torch.linspace(1, 2, 9).reshape(3, 3)
    assert answer(expected * (1 + 2.0**-23), expected).ok
    made = answer(with_value(expected, 1.6, 1, 1), expected)
    assert (made.ok, made.index, made.wrong, made.reason) == (False, (1, 1), 1, "another answer")
    assert (made.found, made.expected) == ("1.60000002", "1.5")
    thirds = expected / 3
    assert answer(thirds.bfloat16(), thirds, unit=2.0**-8).ok
    assert not answer(thirds.bfloat16(), thirds).ok


def test_answer_that_is_not_a_number_is_wrong() -> None:
    made = answer(torch.tensor([[1.0, NAN]]), torch.tensor([[1.0, 2.0]]))
    assert not made.ok
    assert made.wrong == 1
    assert made.index == (0, 1)


EXACT_ANSWERS: list[tuple[str, Callable[[], Comparison]]] = [
    ("exact", lambda: answer(torch.tensor([1, 2]), torch.tensor([1, 3]), exact=True)),
    ("float", lambda: answer(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]), exact=True)),
]


@pytest.mark.parametrize("made", [pytest.param(made, id=name) for name, made in EXACT_ANSWERS])
def test_exact_answer_tells_what_was_found_from_what_was_expected(made: Callable[[], Comparison]) -> None:
    found = made()
    assert (found.check, found.ok, found.against) == ("answer", False, "the answer by hand")
    assert (found.found, found.expected) == ("2", "3")


def test_answer_of_another_shape_or_none_at_all() -> None:
    made = answer(torch.zeros(2, 3), torch.zeros(2, 2))
    assert (made.ok, made.reason) == (False, "expected float32 (2, 2), found float32 (2, 3)")
    made = answer(None, torch.zeros(2))
    assert not made.ok
    assert made.output == "output"


def test_sum_of_a_few_values_may_be_taken_in_another_order() -> None:
    # One number in all calls: that eager hits it exactly says nothing of what it typically does.
    value = torch.tensor([2.0], dtype=torch.float64)
    few = scale_of([Reference(value, torch.full((1,), 1e-7, dtype=torch.float64))] * 9, [value.float()] * 9)
    assert few.rms == 0
    assert few.moved == 2.0**-22
    moving = scale_of([Reference(value, torch.full((1,), 1e-3, dtype=torch.float64))] * 9, [value.float()] * 9)
    assert moving.moved == pytest.approx(2.5e-4)
    many = sample(torch.float32)
    assert many.scale.moved == 0
