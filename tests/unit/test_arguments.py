"""What callers pass is checked before anything is sent: the error names it, what was expected and what came."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.client import arguments
from ps2.client.arguments import as_indices, as_rows, as_target, as_values, as_wire_values
from ps2.errors import DTypeError, LimitError, OutOfRangeError, ShapeError, UsageError
from ps2.matrix.partition import MatrixSpec

F4, F8, I4, I8 = (np.dtype(name) for name in ("float32", "float64", "int32", "int64"))


@pytest.mark.parametrize(
    "indices",
    [[3, 0, 3], (3, 0, 3), range(3, -1, -3), np.array([3, 0], np.uint8), np.array([3, 0], ">i4"), [], np.array([])],
)
def test_columns_when_whole_numbers_then_int64_in_given_order(indices):
    columns = as_indices(indices)
    assert columns.dtype == I8
    assert columns.tolist() == list(indices)


def test_columns_when_strided_then_contiguous():
    assert as_indices(np.arange(10)[::2]).flags.c_contiguous


def test_columns_when_the_largest_key_then_it_fits():
    assert as_indices([2**63 - 1]).tolist() == [2**63 - 1]


@pytest.mark.parametrize(
    ("indices", "error", "said"),
    [
        ([1.0], DTypeError, "indices: expected integers, got float64"),
        ([0, float("nan")], DTypeError, r"indices: expected integers, got NaN \(at position 1\)"),
        ([True], DTypeError, "indices: expected integers, got bool"),
        (["a"], DTypeError, "indices: expected integers"),
        ([2**64], DTypeError, "indices: expected integers"),
        ([None], DTypeError, "indices: expected integers, got object"),
        ([2**63], OutOfRangeError, r"indices: expected integers below 2\*\*63, got 9223372036854775808"),
        (3, ShapeError, r"indices: expected one dimension, got shape \(\)"),
        ([[1, 2]], ShapeError, r"indices: expected one dimension, got shape \(1, 2\)"),
        (np.empty((0, 3)), ShapeError, r"indices: expected one dimension, got shape \(0, 3\)"),
    ],
)
def test_columns_when_unusable_then_error_says_why(indices, error, said):
    with pytest.raises(error, match=said):
        as_indices(indices)


def test_columns_when_too_many_then_limit_error_names_both(monkeypatch):
    monkeypatch.setattr(arguments, "MAX_KEYS", 3)
    with pytest.raises(LimitError, match="at most 3 in one call, got 4"):
        as_indices([0, 1, 2, 3])


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        ([0, 4], OutOfRangeError, r"rows_a: row 4 \(at position 1\) is outside \[0, 4\)"),
        ([-1], OutOfRangeError, r"rows_a: row -1 \(at position 0\)"),
        ([0.5], DTypeError, "rows_a: expected integers, got float64"),
        (1, ShapeError, "rows_a: expected one dimension"),
    ],
)
def test_rows_when_they_cannot_be_used_then_the_error_names_them(rows, error, said):
    with pytest.raises(error, match=said):
        as_rows("rows_a", rows, 4)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2, 3], F4),
        ([True, False, True], F8),
        ([1, 2, 3], I8),
        ([0.5, 1e-3, 2], F4),
        (np.array([1, 2, 3], np.uint64), I8),
        ([1, 2, 3], I4),
        (np.array([1, 2, 3], np.uint64), I4),
        (np.array([1, 2, 3], np.float16), F4),
        (np.arange(6.0)[::2], F8),
        (np.array([1, 2, 3], ">f8"), F8),
    ],
)
def test_values_when_they_fit_then_contiguous_in_vector_dtype(values, dtype):
    array = as_values(values, dtype, (3,))
    assert (array.dtype, array.flags.c_contiguous) == (dtype, True)
    assert np.allclose(array, np.asarray(values, np.float64))


def test_values_when_infinite_then_they_stay():
    assert as_values([np.inf, -np.inf], F4, (2,)).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize(
    ("values", "dtype", "error", "said"),
    [
        ([1.0], I8, DTypeError, "values: expected numbers that fit int64, got float64"),
        ([1j], F8, DTypeError, "got complex128"),
        (["1"], F8, DTypeError, "values: expected numbers that fit float64"),
        ([None], F8, DTypeError, "got object"),
        (np.array([1], "m8[s]"), I8, DTypeError, "got timedelta64"),
        (np.array([2**63], np.uint64), I8, DTypeError, "got 9223372036854775808"),
        ([-1e39], F4, DTypeError, r"values: expected numbers that fit float32, got -1e\+39 \(at position 0\)"),
        ([1.0, 2.0], F8, ShapeError, r"values: expected shape \(1,\), got \(2,\)"),
        (1.0, F8, ShapeError, r"values: expected shape \(1,\), got \(\)"),
    ],
)
def test_values_when_they_cannot_be_used_then_the_error_says_why(values, dtype, error, said):
    with pytest.raises(error, match=said):
        as_values(values, dtype, (1,))


@pytest.mark.parametrize("given", [np.int64, np.uint64, np.uint32, list])
def test_values_when_all_of_int32_then_kept(given):
    values = [2**31 - 1, 0, 5] if given is not np.int64 else [2**31 - 1, -(2**31), 5]
    assert as_values(given(values), I4, (3,)).tolist() == values


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, 2**31], r"values: expected numbers that fit int32, got 2147483648 \(at position 1\)"),
        ([[0, 1], [-(2**31) - 1, 2**40]], r"got -2147483649 \(at position 2\)"),
        (np.array([7, 2**32 - 1], np.uint32), r"got 4294967295 \(at position 1\)"),
        (np.array([2**63], np.uint64), r"got 9223372036854775808 \(at position 0\)"),
    ],
)
def test_values_when_one_exceeds_int32_then_named_with_position(values, said):
    with pytest.raises(DTypeError, match=said):
        as_values(values, I4, np.shape(values))


MASKED = np.ma.array([1, 2], mask=[False, True])
each_masked = pytest.mark.parametrize("masked", [MASKED, [MASKED], (0, [np.ma.masked, 1]), np.ma.array([1, 2])])


@each_masked
def test_values_when_masked_then_usage_error_says_what_to_do(masked):
    with pytest.raises(UsageError, match=r"values: expected a plain array, got a masked array: .* \.filled\(value\)"):
        as_values(masked, F8, (2,))


@each_masked
def test_columns_when_masked_then_usage_error(masked):
    with pytest.raises(UsageError, match="indices: expected a plain array, got a masked array"):
        as_indices(masked)


def test_rows_when_masked_then_usage_error():
    with pytest.raises(UsageError, match="rows_a: expected a plain array, got a masked array"):
        as_rows("rows_a", MASKED, 9)


def test_target_when_masked_then_dtype_error():
    with pytest.raises(DTypeError, match="out: expected a numpy array, got MaskedArray"):
        as_target(MASKED, I8, (2,))


def test_values_when_too_large_for_bfloat16_then_named():
    spec, largest = MatrixSpec(2, 1, wire="bfloat16"), 255 * 2.0**120
    assert as_wire_values([largest, -largest], spec, (2,)).tolist() == [largest, -largest]
    with pytest.raises(OutOfRangeError, match=r"\(at position 1\) does not fit bfloat16, "):
        as_wire_values([0.0, -3.4e38], spec, (2,))
