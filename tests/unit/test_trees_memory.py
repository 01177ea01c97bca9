"""The memory that trees need on the servers, and the range of their counters."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.trees.cut_points import integer_weights, unit_of
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.tree_matrices import check_memory
from ps2.errors import LimitError
from tests import plans

GIB = 1 << 30
ROWS = 20_000_000


def problem(**given):
    return TreeProblem(Objective("logistic"), 10_000_000, (0.0,), **given)


@pytest.mark.parametrize(
    ("given", "bins", "needed"),
    [({}, 0, 240_000_000), ({"absent": "missing"}, 20_000_000, 240_000_000 + 20_000_000 * 10 * 16)],
    ids=["any values", "missing values"],
)
def test_room_when_features_are_too_many_then_names_memory_need(given, bins, needed):
    check_memory(problem(**given), plans.boosting(maxDepth=4), ROWS, [(needed // 2, 0), (GIB, GIB - needed // 2)])
    with pytest.raises(LimitError) as raised:
        check_memory(
            problem(**given), plans.boosting(maxDepth=4), ROWS, [(needed // 2, 0), (GIB, GIB - needed // 2 + 1)]
        )
    for part in (
        "10,000,000 features: ",
        "9 histograms of trees of depth 4",
        f"of at least {bins:,} bins, take at least {needed:,} bytes",
        f"{needed - 1:,} are left on the 2 servers, whose limits are {GIB + needed // 2:,} together; start more",
    ):
        assert part in str(raised.value)


def test_room_when_features_have_categories_then_counts_as_bins():
    of_categories = problem(categories={0: 1, 5: 4000, 6: 2})
    with pytest.raises(LimitError, match="of at least 4,002 bins"):
        check_memory(of_categories, plans.boosting(), ROWS, [(GIB, GIB)])


@pytest.mark.parametrize("mean", [1.0, 0.5, 0.3, 3e-200, 7e100])
def test_weights_when_made_integers_then_ignore_rounding_of_mean(mean):
    unit = unit_of(mean, 8)
    assert unit == unit_of(np.nextafter(mean, 0), 8) == unit_of(np.nextafter(mean, np.inf), 8)
    weights = integer_weights(np.array([mean, mean / 2, mean / 1e9]), unit)
    assert 255 <= weights[0] < 512
    assert abs(weights[0] - 2 * weights[1]) <= 1
    assert weights[2] == 1
