"""Rows of keys and values."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.data.key_rows import KeyRows
from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops.distinct import find_distinct

RAGGED = KeyRows(
    np.array([0, 2, 2, 5]), np.array([7, 3, 7, 9, 7]), np.arange(5, dtype=np.float32), np.arange(5, dtype=np.int32)
)


@pytest.mark.parametrize("count", [0, 1, 1000, 20_000])
@pytest.mark.parametrize("span", [10, 2**63 - 1])
def test_positions_when_any_keys_then_numpys(count, span):
    keys = np.random.default_rng(1).integers(0, span, count)
    distinct, inverse = find_distinct(keys)
    expected = np.unique(keys, return_inverse=True)
    np.testing.assert_array_equal(distinct, expected[0])
    np.testing.assert_array_equal(inverse, expected[1])
    assert inverse.dtype == np.int64


def test_distinct_when_many_keys_grow_the_table_then_right():
    keys = np.random.default_rng(2).permutation(np.repeat(np.arange(30_000) << 40, 2))
    distinct, inverse = find_distinct(keys)
    np.testing.assert_array_equal(distinct[inverse], keys)
    assert len(distinct) == 30_000


def test_take_when_some_rows_then_their_pairs():
    some = RAGGED.take(1, 3)
    assert len(some) == 2
    np.testing.assert_array_equal(some.indptr, [0, 0, 3])
    np.testing.assert_array_equal(some.keys, [7, 9, 7])


def test_take_when_no_such_rows_then_error():
    with pytest.raises(OutOfRangeError, match=r"expected an interval of \[0, 3\), got \[2, 4\)"):
        RAGGED.take(2, 4)


def test_joined_when_parts_then_rows_in_order():
    both = KeyRows.concatenate([RAGGED.take(0, 1), RAGGED.take(1, 1), RAGGED.take(1, 3)])
    np.testing.assert_array_equal(both.indptr, RAGGED.indptr)
    np.testing.assert_array_equal(both.keys, RAGGED.keys)


def test_of_when_negative_key_then_error():
    with pytest.raises(OutOfRangeError, match=r"expected keys in \[0, 2\*\*63\), got -1"):
        KeyRows.from_keys([[1, -1]])


def test_of_when_one_dimension_then_error():
    with pytest.raises(ShapeError, match=r"shape \(n, width\)"):
        KeyRows.from_keys([1, 2])
