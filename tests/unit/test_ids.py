"""Ids have numbers in their order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from ps2.data.ids import UNKNOWN, Ids
from ps2.errors import InputError

INTEGERS = [7, -3, 2**62, 0, -(2**62)]
CONSECUTIVE = [5, 3, 4, 7, 6]
STRINGS = ["b", "", "é", "z", "B", "10", "9", "\U0001f600", "￿"]


@pytest.mark.parametrize("ids", [INTEGERS, CONSECUTIVE, [4]], ids=["gaps", "none", "one"])
def test_integers_when_they_are_numbered_then_it_is_by_size(ids):
    numbered = Ids.from_values(pa.array(ids, pa.int64()))
    np.testing.assert_array_equal(numbered.numbers(pa.array(ids)), np.argsort(np.argsort(ids)))
    assert numbered.named(np.arange(len(ids))).to_pylist() == sorted(ids)


def test_strings_when_numbered_then_are_ordered_by_bytes():
    numbered = Ids.from_values(pa.array(STRINGS))
    expected = sorted(STRINGS, key=lambda text: text.encode())
    assert numbered.named(np.arange(len(STRINGS))).to_pylist() == expected
    assert numbered.numbers(pa.array(STRINGS)).tolist() == [expected.index(text) for text in STRINGS]


@pytest.mark.parametrize(
    ("ids", "other"), [(INTEGERS, 1), (INTEGERS, 2**62 + 1), (CONSECUTIVE, 2), (CONSECUTIVE, 8), (STRINGS, "a")]
)
def test_numbers_when_an_id_was_not_there_then_it_is_told(ids, other):
    with pytest.raises(InputError, match="persist"):
        Ids.from_values(pa.array(ids)).numbers(pa.array([ids[0], other]))


@pytest.mark.parametrize(
    ("ids", "asked", "found"),
    [
        (INTEGERS, [7, 1, -(2**62), 2**63 - 1], [3, UNKNOWN, 0, UNKNOWN]),
        (CONSECUTIVE, [2, 3, 7, 8, -(2**63)], [UNKNOWN, 0, 4, UNKNOWN, UNKNOWN]),
        (["a", "b"], ["b", "c", "a\0"], [1, UNKNOWN, UNKNOWN]),
    ],
)
def test_find_when_an_id_is_not_there_then_it_is_unknown(ids, asked, found):
    np.testing.assert_array_equal(Ids.from_values(pa.array(ids)).find(pa.array(asked)), found)


def test_find_when_there_are_no_ids_then_all_are_unknown():
    assert Ids(pa.array([], pa.int64())).find(pa.array([1, 2])).tolist() == [UNKNOWN, UNKNOWN]
