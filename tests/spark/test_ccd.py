"""Factorizations by coordinate descent on a fleet, against pyspark.ml's ALS on the same ratings."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from pyspark.ml.recommendation import ALS

from ps2.algorithms.factors.dealing import Deal, deal_ratings
from ps2.algorithms.factors.options import FactorOptions
from ps2.algorithms.factors.ratings import RatingColumns, survey_ratings
from ps2.algorithms.factors.trainer import train

USERS, ITEMS, RANK = 120, 50, 4


@pytest.fixture(scope="module")
def rows():
    """Ratings of a third of all cells: users, items and ratings, planted vectors with noise."""
    rng = np.random.default_rng(0)
    p, q = rng.normal(size=(USERS, RANK)), rng.normal(size=(ITEMS, RANK))
    users, items = np.nonzero(rng.random((USERS, ITEMS)) < 0.33)
    ratings = 3 + np.sum(p[users] * q[items], axis=1) + 0.1 * rng.normal(size=len(users))
    return users, items, np.round(ratings, 2)


def frame_of(spark, rows, **more):
    users, items, ratings = rows
    columns = {"user": users, "item": items, "rating": ratings, **more}
    return spark.createDataFrame(
        [tuple(row) for row in zip(*(column.tolist() for column in columns.values()), strict=True)], list(columns)
    )


def options_of(**given):
    return FactorOptions(**{"rank": RANK, "iterations": 30, "reg": 0.05, "solver": "ccd", "seed": 1, **given})


def fit(ps, frame, options, workers=2, start=None, **columns):
    names = RatingColumns(**columns)
    survey = survey_ratings(frame, names, options).together_with(start)
    dealt = deal_ratings(frame, survey, Deal.of(survey, workers, 1, 4 * options.rank), options)
    return train(ps, dealt, survey, options, start)


def objective(rows, options, p, q):
    """Return the objective of ALS; vectors of shape (users, rank) and (items, rank)."""
    users, items, r = rows
    counts = np.bincount(users, minlength=USERS), np.bincount(items, minlength=ITEMS)
    x = p.astype(np.float64) @ q.T.astype(np.float64)
    penalty = options.reg * (counts[0] @ np.sum(p**2, axis=1) + counts[1] @ np.sum(q**2, axis=1))
    if not options.implicit:
        return np.sum((r - x[users, items]) ** 2) + penalty
    confidence, preference = np.ones_like(x), np.zeros_like(x)
    confidence[users, items], preference[users, items] = 1 + options.alpha * r, 1
    return np.sum(confidence * (preference - x) ** 2) + penalty


def als(spark, rows, options):
    model = ALS(
        rank=options.rank,
        maxIter=8,
        numUserBlocks=2,
        numItemBlocks=2,
        regParam=options.reg,
        implicitPrefs=options.implicit,
        alpha=options.alpha,
        nonnegative=options.nonnegative,
        seed=1,
    ).fit(frame_of(spark, rows))
    tables = (model.userFactors, USERS), (model.itemFactors, ITEMS)
    found = []
    for table, count in tables:
        vectors = np.zeros((count, options.rank))
        for row in table.collect():
            vectors[row.id] = row.features
        found.append(vectors)
    return found


KINDS = [{}, {"implicit": True, "alpha": 2.0}, {"nonnegative": True}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_objective_when_fitted_then_as_pysparks(ps, spark, rows, kind):
    options = options_of(**kind)
    users, items, ratings = rows
    rows = users, items, np.abs(ratings) + 0.01
    found = fit(ps, frame_of(spark, rows), options)
    ours = objective(rows, options, found.user_factors, found.item_factors)
    theirs = objective(rows, options, *als(spark, rows, options))
    assert ours <= 1.02 * theirs


def test_vectors_when_one_worker_then_alike(ps, spark, rows):
    options = options_of(iterations=3)
    frame = frame_of(spark, rows)
    expected, found = fit(ps, frame, options, 2), fit(ps, frame, options, 1)
    np.testing.assert_allclose(found.item_factors, expected.item_factors, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS[:2], ids=str)
def test_vectors_when_fitted_again_then_same_bits(ps, spark, rows, kind):
    options = options_of(iterations=3, **kind)
    users, items, ratings = rows
    frame = frame_of(spark, (users, items, np.abs(ratings) + 0.01))
    first, second = (fit(ps, one, options) for one in (frame, frame.repartition(5)))
    assert first.user_factors.tobytes() == second.user_factors.tobytes()
    assert first.item_factors.tobytes() == second.item_factors.tobytes()


def test_biases_when_fitted_then_lower_objective(ps, spark, rows):
    found = fit(ps, frame_of(spark, rows), options_of(biases=True))
    objectives = found.history.metrics["objective"]
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(objectives))
    users, items, ratings = rows
    x = found.mean + found.user_bias[users] + found.item_bias[items]
    x = x + np.sum(found.user_factors[users] * found.item_factors[items], axis=1)
    assert np.sqrt(np.mean((ratings - x) ** 2)) == pytest.approx(found.history.objective[-1], rel=1e-4)


def test_weights_when_two_then_as_two_ratings(ps, spark, rows):
    twice = np.arange(len(rows[0])) % 3 == 0
    weighted = frame_of(spark, rows, weight=1.0 + twice)
    repeated = frame_of(spark, [np.append(column, column[twice]) for column in rows])
    options = options_of(iterations=3)
    one, other = fit(ps, weighted, options, weight="weight"), fit(ps, repeated, options)
    np.testing.assert_allclose(one.item_factors, other.item_factors, rtol=1e-3, atol=1e-4)


def test_fit_when_patience_ends_then_best_stays(ps, spark, rows):
    rng = np.random.default_rng(5)
    frame = frame_of(spark, rows, held=rng.random(len(rows[0])) < 0.2)
    options = options_of(iterations=60, patience=2, reg=0.0, rank=12)
    found = fit(ps, frame, options, validation="held")
    best, losses = found.history.best, found.history.validation
    assert best < found.history.steps == len(losses) < 60
    assert losses[best - 1] == min(losses)
    expected = fit(ps, frame, replace(options, iterations=best, patience=0), validation="held")
    assert found.user_factors.tobytes() == expected.user_factors.tobytes()
    assert found.item_factors.tobytes() == expected.item_factors.tobytes()


def test_fit_when_started_from_model_then_goes_on(ps, spark, rows):
    frame = frame_of(spark, rows)
    whole = fit(ps, frame, options_of(iterations=6))
    half = fit(ps, frame, options_of(iterations=3))
    rest = fit(ps, frame, options_of(iterations=3), start=half)
    np.testing.assert_allclose(rest.item_factors, whole.item_factors, rtol=1e-3, atol=1e-4)


def test_new_user_when_started_from_model_then_vector(ps, spark, rows):
    known = rows[0] != 7
    half = fit(ps, frame_of(spark, [column[known] for column in rows]), options_of(iterations=3))
    found = fit(ps, frame_of(spark, rows), options_of(iterations=1), start=half)
    assert found.user_factors[7].any()
