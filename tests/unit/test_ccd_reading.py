"""A worker's packed ratings, as coordinate descent reads them."""

import numpy as np
import pyarrow as pa
import pytest
from factors_training import plan_of

from ps2.algorithms.factors.ccd_descent import read_ratings
from ps2.algorithms.factors.dealing import PACKED

PLAN = plan_of(rank=2, solver="ccd")
PLACES = (10, 13), (0, 3)


def batch(users, items, ratings=None, weights=None, held=None, unknown_rows=0, by_item=False):
    inputs = {
        "user": np.int32(users),
        "item": np.int32(items),
        "rating": None if ratings is None else np.float32(ratings),
        "weight": None if weights is None else np.float32(weights),
        "held": None if held is None else np.uint8(held),
    }
    cells = {name: [None if values is None else values.tobytes()] for name, values in inputs.items()}
    return pa.RecordBatch.from_pydict(
        {"key": [0], "part": [0], "number": [0], "unknown_rows": [unknown_rows], "by_item": [by_item], **cells}, PACKED
    )


def test_ratings_when_read_then_by_user_and_item():
    result = read_ratings([batch([12, 10], [1, 0], [4, 5]), batch([12], [0], [3])], *PLACES, PLAN).users
    assert result.ends.tolist() == [0, 1, 1, 3]
    assert result.other_positions.tolist() == [0, 0, 1]
    assert result.targets.tolist() == [5, 3, 4]


def test_ratings_when_no_column_then_ones():
    assert read_ratings([batch([10, 11], [0, 0])], *PLACES, PLAN).users.targets.tolist() == [1, 1]


def test_ratings_when_weighted_then_curvatures():
    result = read_ratings([batch([10, 11], [0, 0], [2, 3], [2, 0.5])], *PLACES, PLAN).users
    assert result.curvatures.tolist() == [2, 0.5]
    assert result.targets.tolist() == [4, 1.5]
    assert result.weight == pytest.approx(2.5)


def test_ratings_when_dealt_by_item_then_of_items():
    result = read_ratings([batch([12, 40], [2, 0], [4, 5], by_item=True)], *PLACES, PLAN)
    assert (len(result.users), result.items.ends.tolist()) == (0, [0, 1, 1, 2])
    assert (result.items.other_positions.tolist(), result.items.targets.tolist()) == ([40, 12], [5, 4])


def test_ratings_when_held_out_then_apart():
    rows = [10, 11, 12], [0, 1, 2], [1, 2, 3]
    batches = [batch(*rows, held=[0, 1, 0]), batch(*rows, held=[0, 1, 0], by_item=True)]
    result = read_ratings(batches, *PLACES, PLAN)
    assert result.users.targets.tolist() == result.items.targets.tolist() == [1, 3]
    assert result.held_out.targets.tolist() == [2]
    assert result.held_out.ends.tolist() == [0, 0, 1, 1]


def test_ratings_when_none_then_empty():
    result = read_ratings([batch([], [], [])], *PLACES, PLAN)
    assert len(result.users) == 0
    assert result.held_out is None


def test_rows_when_strange_then_counted():
    batches = [batch([10], [0], [1], unknown_rows=2), batch([10], [1], [1], unknown_rows=1)]
    assert read_ratings(batches, *PLACES, PLAN).unknown_rows == 3
