"""Ratings are surveyed chunk by chunk, and dealt to workers by user."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from factors_training import COLUMNS, PLAN, chunk_of, ratings, surveyed

from ps2.algorithms.factors.chunks import CHUNKS, Chunk, join_batches
from ps2.algorithms.factors.dealing import Assignment, murmur3, pack_chunk, partition_keys
from ps2.algorithms.factors.grid import read_grid
from ps2.algorithms.factors.plan import FittedFactors
from ps2.algorithms.factors.ratings import RatingColumns, _checked, surveyor_for
from ps2.algorithms.factors.rows import Scaling
from ps2.algorithms.factors.settings import FactorizationSettings
from ps2.algorithms.factors.survey_rows import merge_parts
from ps2.data.ids import Ids
from ps2.errors import InputError

ALL = RatingColumns(weight="weight", validation="held")


def survey_of(table, columns=ALL, parts=1, **values):
    """Survey the rows of a table in so many tasks."""
    settings = FactorizationSettings(rank=2, **values)
    result = []
    for part in range(parts):
        surveyor = surveyor_for(columns, settings)
        for begin in range(part * 10, table.num_rows, parts * 10):
            surveyor.add(table.slice(begin, 10))
        result.append(surveyor.to_row(part))
    return _checked(merge_parts(reversed(result)), columns, settings)


def one_row(**changed):
    row = {"user": 1, "item": "a", "rating": 1.0, "weight": 1.0, "held": False, **changed}
    types = {
        "user": pa.int64(),
        "item": pa.string(),
        "rating": pa.float64(),
        "weight": pa.float64(),
        "held": pa.bool_(),
    }
    return pa.table({name: pa.array([value], types[name]) for name, value in row.items()})


@pytest.mark.parametrize("parts", [1, 3])
def test_survey_when_rows_are_cut_then_finds_the_same(parts):
    inputs = ratings()
    survey = survey_of(inputs.table(ALL), parts=parts)
    used = ~inputs.held
    ids, counts = np.unique(inputs.users[used] * 7 - 5, return_counts=True)
    np.testing.assert_array_equal(survey.users.values.to_numpy(), ids)
    np.testing.assert_array_equal(survey.user_counts, counts)
    items, numbers = np.unique(inputs.items[used], return_inverse=True)
    assert survey.items.values.to_pylist() == [f"item {i:02}" for i in items]
    np.testing.assert_allclose(survey.item_penalties, np.bincount(numbers, inputs.weights[used]))
    mean = np.average(inputs.values[used], weights=inputs.weights[used])
    assert survey.mean == pytest.approx(mean, rel=1e-12)
    assert survey.std**2 == pytest.approx(
        np.average((inputs.values[used] - mean) ** 2, weights=inputs.weights[used]), rel=1e-12
    )
    assert (survey.rows, survey.held_out) == (used.sum(), inputs.held.sum())


def test_survey_when_feedback_is_implicit_then_counts_positive():
    table = pa.table({"user": [1, 1, 2], "item": [5, 6, 5], "rating": [2.0, 0.0, 1.0]})
    survey = survey_of(table, COLUMNS, implicitPrefs=True)
    assert survey.user_penalties.tolist() == [1.0, 1.0]
    assert survey.item_penalties.tolist() == [2.0, 0.0]
    assert survey.user_counts.tolist() == [2, 1]


def test_survey_when_ids_are_far_apart_then_are_told_apart():
    ids = [2**63 - 1, -(2**63), 0, 2**53, 2**53 + 1]
    table = pa.table({"user": ids * 2, "item": ["", "a\0", "a", "é", "a\0b"] * 2, "rating": [1.0, 2.0] * 5})
    survey = survey_of(table, COLUMNS)
    assert survey.users.values.to_pylist() == sorted(ids)
    assert survey.items.values.to_pylist() == ["", "a", "a\0", "a\0b", "é"]
    assert survey.user_counts.tolist() == [2] * 5


@pytest.mark.parametrize(
    ("changed", "values", "message"),
    [
        ({"user": None}, {}, "column 'user': expected user ids, got 1 null in 1 rows; such a row: user=None"),
        ({"item": None}, {}, "column 'item': expected item ids, got 1 null"),
        ({"rating": None}, {}, "column 'rating': expected finite ratings.*got 1 null"),
        ({"rating": float("nan")}, {}, "got 1 NaN in 1 rows; such a row: user=1, item='a', rating=nan"),
        ({"rating": float("-inf")}, {}, "got 1 infinite"),
        ({"rating": 1e30}, {}, "ratings up to 1e.18, got 1 too large"),
        ({"rating": -1.0}, {"nonnegative": True}, r"not negative \(nonnegative\), got 1 negative"),
        ({"rating": -1.0}, {"implicitPrefs": True}, r"not negative \(implicitPrefs\), got 1 negative"),
        ({"rating": 0.0}, {"implicitPrefs": True}, r"ratings above 0 \(implicitPrefs\), got zeros only"),
        ({"weight": -1.0}, {}, "column 'weight': expected finite weights.* that are not negative, got 1 negative"),
        ({"weight": float("inf")}, {}, "column 'weight'.*got 1 infinite"),
        ({"weight": 1e300}, {}, "column 'weight'.*got 1 too large"),
        ({"held": None}, {}, "column 'held': expected true or false, got 1 null"),
        ({"held": True}, {}, "all of them are held out"),
        ({"weight": 0.0}, {}, "column 'weight': expected weights of which some are above 0"),
    ],
)
def test_survey_when_row_is_faulty_then_error_shows_it(changed, values, message):
    with pytest.raises(InputError, match=message):
        survey_of(one_row(**changed), **values)


def test_survey_when_there_are_no_rows_then_is_refused():
    with pytest.raises(InputError, match="got an empty DataFrame"):
        _checked(merge_parts([]), COLUMNS, PLAN.settings)


def test_ratings_when_negative_then_are_fine_by_default():
    assert survey_of(one_row(rating=-1.0)).mean == -1.0


@pytest.mark.parametrize(("workers", "groups"), [(1, 1), (3, 1), (2, 3)])
def test_deal_when_users_have_many_ratings_then_work_is_balanced(workers, groups):
    survey = surveyed(ratings(), PLAN)
    deal = Assignment.from_counts(survey.user_counts, survey.item_counts, workers, groups, 36)
    layout = deal.layout
    assert layout.rotation.blocks == 2 * workers
    for positions, begins, counts in (
        (deal.user_positions, layout.user_begins, survey.user_counts),
        (deal.item_positions, layout.item_begins, survey.item_counts),
    ):
        np.testing.assert_array_equal(np.sort(positions), np.arange(len(counts)))
        by_place = np.empty(len(counts), np.int64)
        by_place[positions] = counts
        sums = np.add.reduceat(by_place, begins[:-1])
        assert sums.max() < 1.2 * sums.mean()
        assert begins[-1] == len(counts)


def test_deal_when_items_are_large_then_blocks_are_more():
    survey = surveyed(ratings(), PLAN)
    assert Assignment.from_counts(survey.user_counts, survey.item_counts, 2, 1, 32 << 20).layout.rotation.blocks == 40


@pytest.mark.parametrize("workers", [1, 2, 7, 64])
def test_keys_when_hashed_then_reach_their_worker(workers):
    hashed = murmur3(partition_keys(workers)).view(np.int32).astype(np.int64)
    np.testing.assert_array_equal(hashed % workers, np.arange(workers))


def test_hash_when_computed_then_is_that_of_spark():
    # SELECT hash(0), hash(1), hash(2)
    assert murmur3(np.arange(3, dtype=np.int32)).view(np.int32).tolist() == [933211791, -559580957, 1765031574]


def test_packed_rows_when_read_then_each_worker_has_its_users():
    inputs = ratings()
    table = inputs.table(ALL)
    survey = survey_of(table)
    deal, total, held = Assignment.from_counts(survey.user_counts, survey.item_counts, 2, 2, 36), 0, 0
    rows = [
        pack_chunk(through(some, n), survey.users, survey.items, deal, partition_keys(2), (0, n))
        for n, some in enumerate(cut(table))
    ]
    for rank in range(2):
        mine = [batch.slice(rank, 1) for batch in reversed(rows)]
        grid = read_grid(mine, deal.layout, rank, Scaling(survey.mean, survey.std, 0.0))
        begin, end = deal.layout.user_bounds(rank)[[0, -1]]
        assert (grid.first_user, grid.users) == (begin, end - begin)
        total += len(grid.values)
        held += len(grid.held_out.values)
        assert grid.held_out.weight > 0
        again = read_grid(mine[::-1], deal.layout, rank, Scaling(survey.mean, survey.std, 0.0))
        np.testing.assert_array_equal(grid.values, again.values)
        np.testing.assert_array_equal(grid.held_out.values, again.held_out.values)
    assert total == survey.rows
    known = np.isin(inputs.users, inputs.users[~inputs.held]) & np.isin(inputs.items, inputs.items[~inputs.held])
    assert held == (inputs.held & known).sum()


def cut(table):
    return list(join_batches(table.to_batches(max_chunksize=50), table_rows=200))


def through(table, number):
    """A table's chunk as it comes out of Spark's cache."""
    row = pa.RecordBatch.from_pylist([chunk_of(table).to_row(0, number)], CHUNKS)
    return Chunk.from_row(row.to_pylist()[0])


def test_packed_rows_when_ids_are_new_then_they_are_counted():
    survey = survey_of(one_row())
    deal = Assignment.from_counts(survey.user_counts, survey.item_counts, 1, 1, 36)
    row = pack_chunk(chunk_of(one_row(user=2)), survey.users, survey.items, deal, partition_keys(1), (0, 0))
    assert read_grid([row], deal.layout, 0, Scaling(0.0, 1.0, 0.0)).unknown_rows == 1


def test_survey_when_model_is_given_then_has_its_ids_too():
    survey = survey_of(one_row(), COLUMNS)
    ids = Ids.from_values(pa.array([0, 1])), Ids.from_values(pa.array(["b"]))
    model = FittedFactors(
        *ids, *(np.zeros((n, 2), np.float32) for n in (2, 1)), None, None,
        0.0, None,
    )  # fmt: skip
    both = survey.with_ids_of(model)
    assert both.users.values.to_pylist() == [0, 1]
    assert both.user_counts.tolist() == [0, 1]
    assert both.items.values.to_pylist() == ["a", "b"]
    with pytest.raises(InputError, match=r"items: the ids are strings, and those of the initial model are integers"):
        survey.with_ids_of(FittedFactors(model.users, model.users, *[None] * 4, 0.0, None))
