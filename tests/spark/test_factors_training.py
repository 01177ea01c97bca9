"""Factorizations by workers that rotate items: what they find, and that it is what one process finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from factors_training import (
    COLUMNS,
    ITEMS,
    LONG,
    OPTIONS,
    USERS,
    Ratings,
    frame_of,
    ratings,
    replayed,
    rmse_of,
    surveyed,
    trained,
)

from ps2.algorithms.factors.dealing import Deal, deal_ratings
from ps2.algorithms.factors.ratings import survey_ratings
from ps2.algorithms.factors.trainer import train
from ps2.errors import ConfigError, InputError, PS2Error

HELD = replace(COLUMNS, validation="held")


@pytest.mark.parametrize(
    ("options", "columns", "groups"),
    [
        (OPTIONS, COLUMNS, 1),
        (replace(OPTIONS, biases=True), replace(COLUMNS, weight="weight"), 1),
        (replace(OPTIONS, rank=20, nonnegative=True, save_interval=0), HELD, 2),
        (OPTIONS, replace(COLUMNS, rating=None), 3),
    ],
    ids=["plain", "biases and weights", "not negative, held-out rows", "all ratings 1"],
)
def test_vectors_when_seed_is_fixed_then_match_serial_bitwise(ps, spark, options, columns, groups):
    given = ratings()
    if options.nonnegative:
        given = replace(given, values=np.abs(given.values))
    found = trained(ps, spark, options, columns, groups=groups, given=given)
    users, items, losses = replayed(options, columns, groups=groups, given=given)
    np.testing.assert_array_equal(found.user_factors, users[0])
    np.testing.assert_array_equal(found.item_factors, items[0])
    if options.biases:
        np.testing.assert_array_equal(found.user_bias, users[1])
        np.testing.assert_array_equal(found.item_bias, items[1])
    np.testing.assert_allclose(found.history.objective, losses)


@pytest.mark.parametrize("biases", [False, True])
def test_planted_vectors_when_trained_then_predict_held_out_rows(ps, spark, biases):
    given, steps = ratings(), []
    found = trained(ps, spark, replace(LONG, biases=biases), HELD, on_step=steps.append)
    assert len(found.users) == len(np.unique(given.users[~given.held])) < USERS
    assert len(found.items) == ITEMS
    spread = given.values[given.held].std()
    assert rmse_of(found, given, given.held) < 0.15 * spread
    assert found.history.validation[-1] == pytest.approx(rmse_of(found, given, given.held), rel=1e-4)
    assert len(steps) == found.history.steps == len(found.history.validation) == LONG.iterations
    assert steps[-1].metrics["ratings_per_s"] > 0


def test_training_when_validation_is_stuck_then_best_stays(ps, spark):
    options = replace(OPTIONS, iterations=200, patience=2, reg=0.0, rank=12, step_size=0.3, seed=1)
    found = trained(ps, spark, options, HELD)
    best, losses = found.history.best, found.history.validation
    assert best < found.history.steps < 200
    assert losses[best - 1] == min(losses)
    assert found.history.reason.endswith(f"for 2 iterations; the vectors are those of iteration {best}")
    users, items, _ = replayed(replace(options, iterations=best), HELD)
    np.testing.assert_array_equal(found.user_factors, users[0])
    np.testing.assert_array_equal(found.item_factors, items[0])


def test_training_when_model_is_given_then_its_vectors_continue(ps, spark):
    given = ratings()
    first = trained(ps, spark, LONG, given=replace(given, **{n: getattr(given, n)[given.users < 90] for n in FIELDS}))
    more = trained(ps, spark, replace(OPTIONS, iterations=3), start=first)
    assert len(first.users) < len(more.users) == len(np.unique(given.users))
    assert more.history.objective[0] < 0.5 * trained(ps, spark, replace(OPTIONS, iterations=1)).history.objective[0]
    users, _, _ = replayed(replace(OPTIONS, iterations=3), start=first)
    np.testing.assert_array_equal(more.user_factors, users[0])


def test_training_when_there_is_one_item_then_it_has_a_vector(ps, spark):
    given = Ratings(np.array([0, 1]), np.array([0, 0]), np.array([2.0, 3.0]), np.ones(2), np.zeros(2, bool))
    found = trained(ps, spark, replace(OPTIONS, iterations=300), given=given)
    assert (len(found.users), len(found.items)) == (2, 1)
    np.testing.assert_allclose(found.user_factors @ found.item_factors[0], [2.0, 3.0], atol=0.1)


def test_training_when_model_has_other_rank_then_is_refused(ps, spark):
    model = trained(ps, spark, replace(OPTIONS, iterations=1))
    with pytest.raises(ConfigError, match="rank: the model to go on from has rank 5, and the training 6"):
        trained(ps, spark, replace(OPTIONS, rank=6), start=model)


def test_training_when_it_diverges_then_error_says_so(ps, spark):
    with pytest.raises(PS2Error, match=r"iteration 1: .*the training has diverged, also with a step of 1/1024"):
        trained(ps, spark, replace(OPTIONS, step_size=1e30))


def test_training_when_step_is_too_large_then_it_is_halved(ps, spark):
    found = trained(ps, spark, replace(OPTIONS, step_size=3.0))
    assert found.step_size == 3.0 / 2**found.halvings < 3.0
    users, _, losses = replayed(replace(OPTIONS, step_size=found.step_size))
    np.testing.assert_array_equal(found.user_factors, users[0])
    np.testing.assert_allclose(found.history.objective, losses)


def test_ratings_when_ids_were_missing_at_first_then_are_told(ps, spark):
    frame, survey = frame_of(spark, ratings()), surveyed(ratings(seed=1, share=0.1), OPTIONS)
    survey = replace(survey, chunks=survey_ratings(frame, COLUMNS, OPTIONS).chunks)
    deal = Deal.of(survey, 2, 1, 36)
    with pytest.raises(InputError, match="rows have ids that were missing at the first reading: persist"):
        train(ps, deal_ratings(frame, survey, deal, OPTIONS), survey, OPTIONS)


def cached(spark):
    """Numbers of the RDDs in Spark's cache; Spark itself drops those that nobody refers to any more."""
    return set(spark.sparkContext._jsc.getPersistentRDDs().keySet())


def test_cache_when_training_is_over_then_holds_no_ratings(ps, spark, until):
    frame = frame_of(spark, ratings(seed=9))  # Spark's cache takes the same steps on equal rows for one
    frame.count()
    before = cached(spark)
    survey = survey_ratings(frame, COLUMNS, OPTIONS)
    assert len(cached(spark) - before) == 1
    train(ps, deal_ratings(frame, survey, Deal.of(survey, 2, 1, 36), OPTIONS), survey, replace(OPTIONS, iterations=1))
    until(lambda: cached(spark) <= before, "the ratings of the survey are gone")
    with pytest.raises(InputError, match="negative"):
        survey_ratings(frame, COLUMNS, replace(OPTIONS, nonnegative=True))
    until(lambda: cached(spark) <= before, "the ratings of a survey that failed are gone")


FIELDS = ("users", "items", "values", "weights", "held")


def test_turns_when_they_end_by_time_then_training_still_learns(ps, spark):
    found = trained(ps, spark, replace(LONG, budget_s=0.01))
    assert found.history.objective[-1] < 0.5 * found.history.objective[0]
