"""Factorizations by workers and servers: what rotation and coordinate descent find, beside what one process finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import scipy.optimize
from factors_training import (
    COLUMNS,
    ITEMS,
    LONG,
    PLAN,
    USERS,
    Ratings,
    fitted,
    plan_of,
    ratings,
    replayed,
    rmse_of,
)

from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.data.ids import UNKNOWN
from ps2.errors import ConfigError, InputError, PS2Error
from tests.in_process import training_context
from tests.plans import changed

HELD = replace(COLUMNS, validation="held")


def some(given, chosen):
    """Return those ratings, or in that order."""
    return Ratings(*(array[chosen] for array in vars(given).values()))


def positive(given):
    return replace(given, values=np.abs(given.values) + 0.01)


@pytest.mark.parametrize(
    ("plan", "columns", "groups"),
    [
        (PLAN, COLUMNS, 1),
        (changed(PLAN, biases=True), replace(COLUMNS, weight="weight"), 1),
        (changed(PLAN, rank=20, nonnegative=True, checkpointInterval=-1), HELD, 2),
        (PLAN, replace(COLUMNS, rating=None), 3),
    ],
    ids=["plain", "biases and weights", "not negative, held-out rows", "all ratings 1"],
)
def test_vectors_when_seed_is_fixed_then_match_serial_bitwise(plan, columns, groups):
    inputs = ratings()
    if plan.settings.nonnegative:
        inputs = replace(inputs, values=np.abs(inputs.values))
    result = fitted(plan, columns, groups=groups, given=inputs)
    users, items, losses = replayed(plan, columns, groups=groups, given=inputs)
    np.testing.assert_array_equal(result.user_factors, users[0])
    np.testing.assert_array_equal(result.item_factors, items[0])
    if plan.settings.nonnegative:
        assert min(result.user_factors.min(), result.item_factors.min()) >= 0
    if plan.settings.biases:
        np.testing.assert_array_equal(result.user_bias, users[1])
        np.testing.assert_array_equal(result.item_bias, items[1])
    np.testing.assert_allclose(result.history.objective, losses)


def test_vectors_when_servers_roll_back_then_match_serial():
    with training_context() as ps, mock.patch.object(CheckpointNames, "of", return_value=CheckpointNames("mine")):
        ps.rollback_seed = 1
        result = fitted(replace(PLAN, name="mine"), ps=ps)
    users, items, losses = replayed()
    np.testing.assert_array_equal(result.user_factors, users[0])
    np.testing.assert_array_equal(result.item_factors, items[0])
    np.testing.assert_allclose(result.history.objective, losses)


@pytest.mark.parametrize("biases", [False, True])
def test_planted_vectors_when_trained_then_predict_held_out_rows(biases):
    inputs, steps = ratings(), []
    result = fitted(changed(LONG, biases=biases), HELD, on_step=steps.append)
    assert len(result.users) == len(np.unique(inputs.users[~inputs.held])) < USERS
    assert len(result.items) == ITEMS
    spread = inputs.values[inputs.held].std()
    assert rmse_of(result, inputs, inputs.held) < 0.15 * spread
    assert result.history.validation[-1] == pytest.approx(rmse_of(result, inputs, inputs.held), rel=1e-4)
    assert len(steps) == result.history.steps == len(result.history.validation) == LONG.settings.maxIter
    assert steps[-1].metrics["ratings_per_s"] > 0


def test_training_when_validation_is_stuck_then_best_stays():
    plan = changed(PLAN, maxIter=200, patience=2, regParam=0.0, rank=12, stepSize=0.3, seed=1)
    result = fitted(plan, HELD)
    best, losses = result.history.best, result.history.validation
    assert best < result.history.steps < 200
    assert losses[best - 1] == min(losses)
    assert result.history.reason.endswith(f"for 2 iterations; the vectors are those of iteration {best}")
    users, items, _ = replayed(changed(plan, maxIter=best), HELD)
    np.testing.assert_array_equal(result.user_factors, users[0])
    np.testing.assert_array_equal(result.item_factors, items[0])


@pytest.mark.parametrize("columns", [COLUMNS, HELD], ids=["no column", "no row is marked"])
def test_patience_when_no_rows_are_held_out_then_never_stops(columns):
    inputs = ratings()
    result = fitted(changed(PLAN, patience=1), columns, given=replace(inputs, held=np.zeros_like(inputs.held)))
    assert result.history.steps == PLAN.settings.maxIter


def test_training_when_model_is_given_then_its_vectors_continue():
    inputs = ratings()
    first = fitted(LONG, given=some(inputs, inputs.users < 90))
    more = fitted(changed(PLAN, maxIter=3), start=first)
    assert len(first.users) < len(more.users) == len(np.unique(inputs.users))
    assert more.history.objective[0] < 0.5 * fitted(changed(PLAN, maxIter=1)).history.objective[0]
    users, _, _ = replayed(changed(PLAN, maxIter=3), start=first)
    np.testing.assert_array_equal(more.user_factors, users[0])


def few(users, items, values, held=False):
    n = len(users)
    return Ratings(np.array(users), np.array(items), np.array(values, float), np.ones(n), np.full(n, held))


@pytest.mark.parametrize("items", [[0, 0], [0]])
@pytest.mark.parametrize("solver", ["sgd", "ccd"])
def test_training_when_there_are_few_ratings_then_learns_them(items, solver):
    inputs = few(range(len(items)), items, [2.0, 3.0][: len(items)])
    step = {"stepSize": 0.3} if solver == "sgd" else {}
    result = fitted(plan_of(rank=5, maxIter=80, regParam=0.001, solver=solver, seed=3, **step), given=inputs)
    assert (len(result.users), len(result.items)) == (len(items), 1)
    np.testing.assert_allclose(result.user_factors @ result.item_factors[0], inputs.values, atol=0.1)


def test_training_when_an_item_is_only_held_out_then_is_unknown():
    inputs = ratings()
    result = fitted(changed(PLAN, maxIter=1), HELD, given=replace(inputs, held=inputs.items == 7))
    assert len(result.items) == ITEMS - 1
    assert result.items.find(pa.array(["item 07"])).tolist() == [UNKNOWN]


def test_training_when_a_weight_is_0_then_rating_does_not_count():
    inputs = ratings()
    n = len(inputs.users)
    doubled = some(inputs, np.arange(2 * n) % n)
    values, weights = (np.append(inputs.values, inputs.values + 100)), np.repeat([1.0, 0.0], n)
    doubled = replace(doubled, values=values, weights=weights)
    result = fitted(LONG, replace(COLUMNS, weight="weight"), given=doubled)
    assert rmse_of(result, inputs, np.full(n, True)) < 0.2


@pytest.mark.parametrize("solver", ["sgd", "ccd"])
def test_training_when_a_users_weights_are_0_then_vector_is_0(solver):
    users, items = np.divmod(np.arange(40), 8)
    plan = plan_of(rank=3, maxIter=3, regParam=0.1, solver=solver, seed=1)
    rated = few(users, items, users + items + 1.0)
    rated = replace(rated, weights=np.where(users == 2, 0.0, 1.0))
    result = fitted(plan, replace(COLUMNS, weight="weight"), given=rated)
    np.testing.assert_array_equal(~result.user_factors.any(axis=1), np.arange(5) == 2)
    assert result.item_factors.any(axis=1).all()


def test_descent_when_feedback_is_implicit_then_liked_items_lead():
    pairs = [(u, i) for u in range(20) for i in range(20) if u % 2 == i % 2 and (u + i) % 8]
    plan = plan_of(rank=2, maxIter=10, regParam=0.1, solver="ccd", implicitPrefs=True, alpha=10.0, seed=1)
    result = fitted(plan, replace(COLUMNS, rating=None), given=few(*zip(*pairs, strict=True), np.ones(len(pairs))))
    leading = np.argsort(-result.user_factors @ result.item_factors.T, axis=1)[:, :5]
    np.testing.assert_array_equal(leading % 2, np.repeat(np.arange(20)[:, None] % 2, 5, axis=1))


def test_training_when_model_has_other_rank_then_is_refused():
    model = fitted(changed(PLAN, maxIter=1))
    with pytest.raises(ConfigError, match="rank: the initial model has rank 5, and the training 6"):
        fitted(changed(PLAN, rank=6), start=model)


def test_training_when_it_diverges_then_error_says_so():
    with pytest.raises(PS2Error, match=r"iteration 1: .*the training has diverged, also with a step of 1/1024"):
        fitted(changed(PLAN, stepSize=1e30))


def test_training_when_step_is_too_large_then_it_is_halved():
    result = fitted(changed(PLAN, stepSize=3.0))
    assert result.step_size == 3.0 / 2**result.halvings < 3.0
    users, _, losses = replayed(changed(PLAN, stepSize=result.step_size))
    np.testing.assert_array_equal(result.user_factors, users[0])
    np.testing.assert_allclose(result.history.objective, losses)


def test_ratings_when_ids_were_missing_at_first_then_are_told():
    with pytest.raises(InputError, match="rows have ids that were missing at the first reading: persist"):
        fitted(surveyed_ratings=ratings(seed=1, share=0.1))


def test_turns_when_they_end_by_time_then_training_still_learns():
    result = fitted(changed(LONG, budgetS=0.01))
    assert result.history.objective[-1] < 0.5 * result.history.objective[0]


DESCENT = changed(PLAN, rank=4, maxIter=3, regParam=0.05, solver="ccd", stepSize=None, seed=1)
KINDS = [{}, {"implicitPrefs": True, "alpha": 2.0}, {"nonnegative": True}]


def dense(given, plan):
    """Return the targets of all cells and their weights in the objective; and how many ratings users and items have."""
    users, items = (np.unique(ids, return_inverse=True)[1] for ids in (given.users, given.items))
    targets, weights = np.zeros((2, users.max() + 1, items.max() + 1))
    targets[users, items], weights[users, items] = given.values, 1
    counts = weights.sum(axis=1), weights.sum(axis=0)
    if plan.settings.implicitPrefs:
        targets, weights = weights, 1 + plan.settings.alpha * targets
    return targets, weights, *counts


def objective(given, plan, p, q):
    """Return the objective of pyspark.ml's ALS."""
    targets, weights, users, items = dense(given, plan)
    penalty = plan.settings.regParam * (users @ (p**2).sum(axis=1) + items @ (q**2).sum(axis=1))
    return (weights * (targets - p.astype(float) @ q.T) ** 2).sum() + penalty


def alternating_least_squares(given, plan):
    """Minimize the objective by turns of users and items, each of them exactly."""
    targets, weights, users, items = dense(given, plan)
    reg, rank, nonnegative = plan.settings.regParam, plan.settings.rank, plan.settings.nonnegative
    q = np.abs(np.random.default_rng(1).normal(size=(len(items), rank)))

    def solved(others, targets, weights, counts):
        rows = []
        for target, weight, count in zip(targets, weights, counts, strict=True):
            a = np.vstack([np.sqrt(weight)[:, None] * others, np.sqrt(reg * count) * np.eye(rank)])
            b = np.append(np.sqrt(weight) * target, np.zeros(rank))
            rows.append(scipy.optimize.nnls(a, b)[0] if nonnegative else np.linalg.lstsq(a, b, rcond=None)[0])
        return np.array(rows)

    for _ in range(8):
        p = solved(q, targets, weights, users)
        q = solved(p, targets.T, weights.T, items)
    return p, q


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_descent_when_done_then_objective_is_that_of_als(kind):
    inputs, plan = positive(ratings()), changed(DESCENT, maxIter=30, **kind)
    result = fitted(plan, given=inputs)
    expected = objective(inputs, plan, *alternating_least_squares(inputs, plan))
    assert objective(inputs, plan, result.user_factors, result.item_factors) <= 1.02 * expected


@pytest.mark.parametrize("kind", KINDS[:2], ids=str)
def test_descent_when_rows_are_in_other_order_then_same_bits(kind):
    inputs, plan = positive(ratings()), changed(DESCENT, **kind)
    order = np.random.default_rng(0).permutation(len(inputs.users))
    first, second = (fitted(plan, given=one) for one in (inputs, some(inputs, order)))
    assert first.user_factors.tobytes() == second.user_factors.tobytes()
    assert first.item_factors.tobytes() == second.item_factors.tobytes()


def test_descent_when_one_worker_then_vectors_are_alike():
    expected, result = fitted(DESCENT), fitted(DESCENT, workers=1)
    np.testing.assert_allclose(result.item_factors, expected.item_factors, rtol=1e-3, atol=1e-4)


def test_descent_when_it_has_biases_then_objective_falls():
    inputs = ratings()
    result = fitted(changed(DESCENT, maxIter=30, biases=True))
    assert result.mean == pytest.approx(inputs.values.mean(), rel=1e-5)
    objectives = result.history.metrics["objective"]
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(objectives))
    assert rmse_of(result, inputs, np.full(len(inputs.users), True)) == pytest.approx(
        result.history.objective[-1], rel=1e-4
    )


def test_descent_when_weight_is_two_then_as_two_ratings():
    inputs = ratings()
    one = fitted(DESCENT, replace(COLUMNS, weight="weight"))
    other = fitted(DESCENT, given=some(inputs, np.repeat(np.arange(len(inputs.users)), inputs.weights.astype(int))))
    np.testing.assert_allclose(one.item_factors, other.item_factors, rtol=1e-3, atol=1e-4)


def test_descent_when_patience_ends_then_best_stays():
    plan = changed(DESCENT, maxIter=60, patience=2, regParam=0.0, rank=12)
    result = fitted(plan, HELD)
    best, losses = result.history.best, result.history.validation
    assert best < result.history.steps == len(losses) < 60
    assert losses[best - 1] == min(losses)
    expected = fitted(changed(plan, maxIter=best, patience=0), HELD)
    assert result.user_factors.tobytes() == expected.user_factors.tobytes()
    assert result.item_factors.tobytes() == expected.item_factors.tobytes()


def test_descent_when_started_from_model_then_goes_on():
    rest = fitted(DESCENT, start=fitted(DESCENT))
    expected = fitted(changed(DESCENT, maxIter=6))
    np.testing.assert_allclose(rest.item_factors, expected.item_factors, rtol=1e-3, atol=1e-4)


def test_descent_when_a_user_is_new_then_it_gets_a_vector():
    inputs = ratings()
    known = fitted(DESCENT, given=some(inputs, inputs.users != 8))
    result = fitted(changed(DESCENT, maxIter=1), start=known)
    assert result.user_factors[np.flatnonzero(np.unique(inputs.users) == 8)[0]].any()
