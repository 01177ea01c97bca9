"""What a training of trees needs on the servers, and how far its counters go."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.trees.problem import Recipe
from ps2.algorithms.trees.quantiles import unit_of, whole
from ps2.algorithms.trees.trainer import check_room, open_nodes, sums_dtype
from ps2.errors import LimitError

GIB = 1 << 30


def test_room_when_features_are_too_many_then_limit_error_names_what_they_need():
    with pytest.raises(LimitError) as raised:
        check_room(10_000_000, Recipe(depth=6), 1_000_000, [(GIB, 0), (GIB, GIB // 2)])
    assert str(raised.value) == (
        "10,000,000 features: trees of depth 6 need 33 histograms of them, at least 2,640,000,000 bytes, and "
        "1,610,612,736 are left on the 2 servers; start more servers, or with a larger memory limit, or let trees be "
        "less deep"
    )


def test_room_when_features_just_fit_then_nothing_is_raised():
    check_room(10_000_000, Recipe(depth=6), 1_000_000, [(3 * GIB, GIB // 8)])


@pytest.mark.parametrize(
    ("depth", "rows", "nodes"), [(0, 9, 1), (1, 9, 1), (6, 2**31, 32), (30, 2**31, 2**29), (30, 7, 7)]
)
def test_open_nodes_when_trees_are_deep_then_none_is_without_rows(depth, rows, nodes):
    assert open_nodes(Recipe(depth=depth), rows) == nodes


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
