"""Trees out of the kernels are xgboost's, split by split, where no value is rounded."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import xgboost

from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.tree import Forest
from tests.tree_training import Recipe, train
from tests.xgboost_trees import assert_same, forest_of, rows_of_few_values


def xgboosts(x, y, recipe, **params):
    objective = {"squared": "reg:squarederror", "logistic": "binary:logistic", "softmax": "multi:softprob"}
    inputs = {
        "tree_method": "exact",
        "objective": objective[recipe.loss],
        "max_depth": recipe.depth,
        "eta": recipe.rate,
        "lambda": recipe.reg_lambda,
        "alpha": recipe.reg_alpha,
        "min_child_weight": recipe.min_child_weight,
        "base_score": 0.5 if recipe.loss == "logistic" else 0.0,
        "nthread": 1,
    }
    weights = params.pop("weight", None)
    booster = xgboost.train(inputs | params, xgboost.DMatrix(x, y, weight=weights), recipe.rounds)
    return forest_of(booster, recipe.base).trees


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(rounds=3, depth=5),
        Recipe(rounds=3, depth=4, reg_lambda=0.0, min_child_weight=10.0),
        Recipe(rounds=3, depth=4, reg_alpha=2.5),
        Recipe("logistic", rounds=3, depth=4, rate=1.0),
        Recipe("softmax", rounds=2, depth=3, base=(0.0, 0.0, 0.0)),
    ],
)
def test_trees_when_values_are_few_then_match_xgboost_splits(recipe, missing):
    x, y = rows_of_few_values(missing=missing)
    if recipe.loss != "squared":
        y = np.digitize(y, np.quantile(y, [0.5] if recipe.loss == "logistic" else [0.3, 0.6])).astype(float)
    classes = {"num_class": 3} if recipe.loss == "softmax" else {}
    forest, margins = train(x, y, recipe)
    theirs = xgboosts(x, y, recipe, **classes)
    assert len(forest.trees) == len(theirs)
    for ours, other in zip(forest.trees, theirs, strict=True):
        assert_same(ours, other, x)
    np.testing.assert_allclose(Predictor(forest).margins(x), margins, rtol=1e-12, atol=1e-12)


def test_trees_when_rows_have_weights_then_match_xgboost_splits():
    x, y = rows_of_few_values()
    weights = np.random.default_rng(1).integers(0, 4, len(y)).astype(float)
    recipe = Recipe(rounds=2, depth=4)
    kept = weights > 0
    forest, _ = train(x, y, recipe, weights)
    for ours, theirs in zip(forest.trees, xgboosts(x, y, recipe, weight=weights), strict=True):
        assert_same(ours, theirs, x[kept])


def test_trees_when_monotone_then_match_xgboost_and_ascend():
    x, y = rows_of_few_values()
    recipe = Recipe(rounds=3, depth=4, monotone=(1, -1, 0, 1, 0))
    forest, _ = train(x, y, recipe)
    for ours, theirs in zip(forest.trees, xgboosts(x, y, recipe, monotone_constraints="(1,-1,0,1,0)"), strict=True):
        assert_same(ours, theirs, x)
    for feature, sign in ((0, 1), (1, -1), (3, 1)):
        grid = np.repeat(x[:50, None], 7, axis=1)
        grid[:, :, feature] = np.arange(7) / 2
        margins = Predictor(forest).margins(grid.reshape(-1, 5)).reshape(50, 7)
        assert (sign * np.diff(margins, axis=1) >= -1e-7).all()


def test_trees_when_siblings_are_subtracted_then_match_built():
    x, y = rows_of_few_values(missing=0.2)
    forests = [train(x, y, Recipe(rounds=2, depth=5, subtract=s))[0] for s in (True, False)]
    assert forests[0].to_debug_string("") == forests[1].to_debug_string("")


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_trees_when_features_are_in_blocks_then_are_the_same(form):
    x, y = rows_of_few_values()
    forests = [train(form(x), y, Recipe(rounds=2, depth=5, block=block))[0] for block in (0, 7, 10)]
    assert len({forest.to_debug_string("") for forest in forests}) == 1


@pytest.mark.parametrize("absent", ["zero", "missing"])
def test_trees_when_rows_are_sparse_then_match_dense_ones(absent):
    x, y = rows_of_few_values()
    x[np.random.default_rng(2).random(x.shape) < 0.6] = 0 if absent == "zero" else np.nan
    held = x != 0 if absent == "zero" else ~np.isnan(x)
    sparse = sp.csr_array((x[held], np.nonzero(held)[1], np.append(0, np.cumsum(held.sum(axis=1)))), shape=x.shape)
    dense_forest, margins = train(x, y, Recipe(rounds=2, depth=5, absent=absent))
    forest, same = train(sparse, y, Recipe(rounds=2, depth=5, absent=absent))
    np.testing.assert_array_equal(same, margins)
    for ours, other in zip(forest.trees, dense_forest.trees, strict=True):
        np.testing.assert_array_equal(ours.feature, other.feature)
        np.testing.assert_array_equal(ours.threshold, other.threshold)
    np.testing.assert_allclose(Predictor(forest).margins(sparse), margins, rtol=1e-12, atol=1e-12)
    if absent == "zero":
        # As xgboost, which takes what is absent for missing, would read the saved model.
        others = replace(forest, absent="missing")
        np.testing.assert_array_equal(Predictor(others).leaves(sparse), Predictor(forest).leaves(sparse))


def test_trees_when_feature_is_categorical_then_finds_best_set():
    rng = np.random.default_rng(3)
    x = rng.integers(0, 70, size=(3000, 2)).astype(float)
    good = rng.random(70) < 0.5
    y = np.where(good[x[:, 0].astype(int)], 2.0, -1.0) + 0.01 * rng.normal(size=3000)
    x[:50, 0] = np.nan
    forest, margins = train(x, y, Recipe(depth=1, rate=1.0, reg_lambda=0.0, categories={0: 80}))
    (tree,) = forest.trees
    assert tree.feature[0] == 0
    side = tree.set_of(0)
    assert len(side) == 80
    np.testing.assert_array_equal(side[:70], good)
    assert set(side[70:]) == {tree.default_left[0]}
    np.testing.assert_allclose(Predictor(forest).margins(x), margins)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_trees_when_4095_categories_and_missing_then_finds_best(form):
    count = 4095
    rng = np.random.default_rng(3)
    x = np.column_stack([np.append(np.arange(count), np.full(9, np.nan)), np.zeros(count + 9)])
    good = rng.random(count) < 0.5
    y = np.append(np.where(good, 2.0, -1.0), np.full(9, 5.0))
    recipe = Recipe(depth=1, rate=1.0, reg_lambda=0.0, min_child_weight=0.0, categories={0: count})
    forest, margins = train(form(x), y, recipe)
    (tree,) = forest.trees
    np.testing.assert_array_equal(tree.set_of(0), good)
    assert tree.default_left[0]
    np.testing.assert_allclose(Predictor(forest).margins(form(x)), margins)


def of_all_sizes(name, rows=4000):
    """Return a loss, labels, weights and margins before the tree, of sums over many orders of magnitude."""
    rng = np.random.default_rng(8)
    y, weights, base = rng.random(rows) * 10, np.ones(rows), 0.0
    if name == "one huge label":
        y[7] = 1e9
    elif name == "heavy tails":
        y = rng.pareto(0.5, rows)
    elif name == "weights":
        weights = 10.0 ** rng.integers(-9, 1, rows)
    elif name == "counts":
        return "poisson", np.floor(10.0 ** (6 * rng.random(rows))), weights, 3.0
    elif name == "certain":
        return "logistic", (y < 1).astype(float), weights, -25.0
    return "squared", y, weights, base


@pytest.mark.parametrize("name", ["one huge label", "heavy tails", "weights", "counts", "certain"])
def test_leaves_when_row_scales_vary_then_match_own_sums(name):
    loss, y, weights, base = of_all_sizes(name)
    x = np.random.default_rng(9).integers(0, 6, size=(len(y), 4)).astype(float)
    recipe = Recipe(loss, depth=4, rate=1.0, reg_lambda=0.0, min_child_weight=0.0, min_gain=0.0, base=(base,))
    (tree,) = train(x, y, recipe, weights)[0].trees
    (pairs,), _ = Objective(loss).gradients(np.full((len(y), 1), base), y, weights)
    leaves = Predictor(Forest((tree,), np.zeros(1), 4)).leaves(x)[:, 0]
    assert len(tree.leaves) > 8
    for leaf in tree.leaves:
        h, g = (math.fsum(column) for column in pairs[leaves == leaf].T)
        np.testing.assert_allclose(tree.value[leaf], -g / h, rtol=1e-7)


def test_trees_when_they_may_not_be_split_then_they_are_a_leaf():
    x, y = rows_of_few_values(rows=60)
    forest, margins = train(x, y, Recipe(depth=0, reg_lambda=0.0, rate=1.0))
    assert len(forest.trees[0]) == 1
    np.testing.assert_allclose(margins, np.mean(y), rtol=1e-6)


def test_trees_when_grown_to_single_rows_then_match_xgboost():
    x, y = rows_of_few_values(rows=60)
    recipe = Recipe(depth=12, min_child_weight=0.0)
    assert_same(train(x, y, recipe)[0].trees[0], xgboosts(x, y, recipe)[0], x)


@pytest.mark.parametrize("rows", [1, 2, 50])
@pytest.mark.parametrize("sparse", [False, True])
def test_trees_when_columns_are_odd_then_prediction_is_margin(rows, sparse):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(rows, 6))
    x[:, 0], x[:, 1] = 3.0, np.nan
    x[:, 2] = rng.choice([-np.inf, 0.0, np.inf], rows)
    x[:, 3] = rng.choice([-1e30, 1e-40, 1e38, 1e300], rows)
    x[:, 4] = np.where(rng.random(rows) < 0.5, np.nan, 1.0)
    y = rng.normal(size=rows) + 2 * (x[:, 2] > 0) - np.isnan(x[:, 4])
    inputs = sp.csr_array(x) if sparse else x
    with np.errstate(over="ignore"):
        forest, margins = train(inputs, y, Recipe(rounds=3, depth=4, min_child_weight=0.0, rate=1.0))
    np.testing.assert_allclose(Predictor(forest).margins(inputs), margins, rtol=1e-12, atol=1e-12)
    assert np.isfinite(margins).all()


def test_trees_when_labels_are_of_one_class_then_they_are_leaves():
    x, y = rows_of_few_values(rows=50)
    forest, _ = train(x, np.ones_like(y), Recipe("logistic", rounds=2, depth=3, base=(20.0,), min_child_weight=0.0))
    assert [len(tree) for tree in forest.trees] == [1, 1]
