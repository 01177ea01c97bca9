"""What a training of trees needs on the servers, and how far its counters go."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.trees.on_fleet import check_room, sums_dtype
from ps2.algorithms.trees.problem import Recipe
from ps2.algorithms.trees.quantiles import unit_of, whole
from ps2.errors import LimitError

GIB = 1 << 30


def test_room_when_features_are_too_many_then_limit_error_names_what_they_need():
    with pytest.raises(LimitError) as raised:
        check_room(10_000_000, Recipe(depth=4), 20_000_000, [(GIB // 2, 0), (GIB, GIB // 2)])
    for part in (
        "10,000,000 features: trees of depth 4",
        "9 histograms",
        "1,440,000,000 bytes",
        "1,073,741,824 are left",
    ):
        assert part in str(raised.value)


def test_room_when_features_just_fit_then_nothing_is_raised():
    check_room(10_000_000, Recipe(depth=4), 20_000_000, [(GIB, 0), (GIB, GIB // 2)])


def test_sums_when_rows_are_more_than_int32_holds_then_are_int64():
    assert [sums_dtype(rows) for rows in (1, 2**24, 2**24 + 1, 2**31)] == ["int32", "int32", "int64", "int64"]


@pytest.mark.parametrize("mean", [1.0, 0.5, 0.3, 3e-200, 7e100])
def test_weights_when_as_whole_numbers_then_the_last_digits_of_their_mean_count_nothing(mean):
    unit = unit_of(mean, 8)
    assert unit == unit_of(np.nextafter(mean, 0), 8) == unit_of(np.nextafter(mean, np.inf), 8)
    weights = whole(np.array([mean, mean / 2, mean / 1e9]), unit)
    assert 255 <= weights[0] < 512
    assert abs(weights[0] - 2 * weights[1]) <= 1
    assert weights[2] == 1
