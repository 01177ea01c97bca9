"""What a driver has heard, kept for another one: numbers there and back, and what is done a second time."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.training.diary import Diary, _differing, as_arrays, as_numbers

ARRAYS = [
    np.array([[1.5, -np.inf], [np.nan, 0.0]]),
    np.array([-7, 2**62]),
    np.empty((0, 3), np.int64),
    np.arange(24).reshape(2, 3, 4),
]


@pytest.mark.parametrize("arrays", [ARRAYS, []])
def test_arrays_when_kept_as_numbers_then_come_back_as_they_were(arrays):
    again = as_arrays(as_numbers(arrays))
    assert [array.dtype for array in again] == [array.dtype for array in arrays]
    for one, other in zip(again, arrays, strict=True):
        np.testing.assert_array_equal(one, other)


def test_diary_when_a_driver_before_has_heard_a_clock_then_nobody_is_asked_in_it_once():
    diary, asked = Diary(None, {4: [np.array([2]), *ARRAYS[:2], np.array([1]), ARRAYS[3]]}), []

    def ask():
        asked.append(1)
        return [ARRAYS[0]]

    with diary.page(4):
        assert diary.is_read
        assert [len(diary.hear(ask)), len(diary.hear(ask))] == [2, 1]
    assert not asked
    with diary.page(4):  # the fleet has gone back
        assert not diary.is_read
        assert diary.hear(ask) == [ARRAYS[0]]
    assert asked


def test_settings_when_they_differ_then_those_that_do_are_named():
    begun, wanted = {"depth": 5, "seed": 1, "rows": 10}, {"depth": 6, "seed": 1, "rows": 10, "leaves": 31}
    assert _differing(begun, wanted) == "depth was 5, and is 6; leaves was None, and is 31"
    assert _differing(begun, dict(begun)) == ""
