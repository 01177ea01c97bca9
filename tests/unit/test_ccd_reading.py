"""A worker's packed ratings, as coordinate descent reads them."""

import numpy as np
import pyarrow as pa
import pytest
from factors_training import plan_of

from ps2.algorithms.factors.ccd_ratings import read_ratings
from ps2.algorithms.factors.dealing import PACKED

PLAN = plan_of(rank=2, solver="ccd")
PLACES = (10, 13), (0, 3)


def batch(users, items, ratings=None, weights=None, held=None, strange=0, by_item=False):
    given = {
        "user": np.int32(users),
        "item": np.int32(items),
        "rating": None if ratings is None else np.float32(ratings),
        "weight": None if weights is None else np.float32(weights),
        "held": None if held is None else np.uint8(held),
    }
    cells = {name: [None if values is None else values.tobytes()] for name, values in given.items()}
    return pa.RecordBatch.from_pydict(
        {"key": [0], "part": [0], "number": [0], "strange": [strange], "by_item": [by_item], **cells}, PACKED
    )


def test_ratings_when_read_then_by_user_and_item():
    found = read_ratings([batch([12, 10], [1, 0], [4, 5]), batch([12], [0], [3])], *PLACES, PLAN).users
    assert found.ends.tolist() == [0, 1, 1, 3]
    assert found.others.tolist() == [0, 0, 1]
    assert found.targets.tolist() == [5, 3, 4]


def test_ratings_when_no_column_then_ones():
    assert read_ratings([batch([10, 11], [0, 0])], *PLACES, PLAN).users.targets.tolist() == [1, 1]


def test_ratings_when_weighted_then_curvatures():
    found = read_ratings([batch([10, 11], [0, 0], [2, 3], [2, 0.5])], *PLACES, PLAN).users
    assert found.curvatures.tolist() == [2, 0.5]
    assert found.targets.tolist() == [4, 1.5]
    assert found.weight == pytest.approx(2.5)


def test_ratings_when_dealt_by_item_then_of_items():
    found = read_ratings([batch([12, 40], [2, 0], [4, 5], by_item=True)], *PLACES, PLAN)
    assert (len(found.users), found.items.ends.tolist()) == (0, [0, 1, 1, 2])
    assert (found.items.others.tolist(), found.items.targets.tolist()) == ([40, 12], [5, 4])


def test_ratings_when_held_out_then_apart():
    rows = [10, 11, 12], [0, 1, 2], [1, 2, 3]
    batches = [batch(*rows, held=[0, 1, 0]), batch(*rows, held=[0, 1, 0], by_item=True)]
    found = read_ratings(batches, *PLACES, PLAN)
    assert found.users.targets.tolist() == found.items.targets.tolist() == [1, 3]
    assert found.held_out.targets.tolist() == [2]
    assert found.held_out.ends.tolist() == [0, 0, 1, 1]


def test_ratings_when_none_then_empty():
    found = read_ratings([batch([], [], [])], *PLACES, PLAN)
    assert len(found.users) == 0
    assert found.held_out is None


def test_rows_when_strange_then_counted():
    batches = [batch([10], [0], [1], strange=2), batch([10], [1], [1], strange=1)]
    assert read_ratings(batches, *PLACES, PLAN).strange == 3
