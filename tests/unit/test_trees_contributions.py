"""SHAP values are those of the real xgboost, and Shapley's values by definition."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import factorial

import numpy as np
import pytest
import scipy.sparse as sp
import xgboost
from hypothesis import given
from hypothesis import strategies as st

from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.tree import LEAF, Forest
from ps2.errors import ConfigError, ShapeError
from tests.tree_builder import TreeBuilder
from tests.unit.test_trees_predict import data, grown
from tests.xgboost_trees import forest_of

FEATURES = 4
VALUES = [-1.0, 0.0, 1.0, 2.0, 3.0, 1.5, np.nan]


def random_forest(seed, splits, width=1):
    """Trees with thresholds and sets, and features that occur more than once on a path."""
    rng = np.random.default_rng(seed)
    trees = []
    for _ in range(2 * width):
        draft, leaves = TreeBuilder(0.0, 64.0, 1), [(0, 64.0)]
        for _ in range(splits):
            node, cover = leaves.pop(rng.integers(len(leaves)))
            test = rng.random(rng.integers(1, 5)) < 0.5 if rng.random() < 0.4 else float(rng.integers(-1, 3))
            draft.split(node, int(rng.integers(FEATURES)), test, bool(rng.integers(2)), 1.0)
            part = cover * rng.uniform(0.1, 0.9)
            leaves += [(draft.add_child(node, rng.normal(), c, 1), c) for c in (part, cover - part)]
        trees.append(draft.finish())
    return Forest(tuple(trees), rng.normal(size=width), FEATURES)


def expected_value(tree, row, present, node=0):
    """What a tree says on average if only some features of a row are known."""
    if tree.feature[node] == LEAF:
        return tree.value[node]
    if tree.feature[node] in present:
        at = walk_once(tree, row, node)
        return expected_value(tree, row, present, at)
    children = tree.left[node], tree.right[node]
    return sum(tree.cover[c] / tree.cover[node] * expected_value(tree, row, present, c) for c in children)


def walk_once(tree, row, node):
    value, flags = row[tree.feature[node]], tree.set_of(node)
    if np.isnan(value):
        left = tree.default_left[node]
    elif len(flags):
        known = 0 <= value < len(flags) and value == int(value)
        left = flags[int(value)] if known else tree.default_left[node]
    else:
        left = value <= tree.threshold[node]
    return tree.left[node] if left else tree.right[node]


def by_definition(tree, row):
    """Shapley's values over all sets of features, and the expected value."""
    result = np.zeros(FEATURES + 1)
    for feature in range(FEATURES):
        others = [f for f in range(FEATURES) if f != feature]
        for size in range(FEATURES):
            weight = factorial(size) * factorial(FEATURES - size - 1) / factorial(FEATURES)
            for some in combinations(others, size):
                gained = expected_value(tree, row, {*some, feature}) - expected_value(tree, row, set(some))
                result[feature] += weight * gained
    result[-1] = expected_value(tree, row, set())
    return result


@given(st.integers(0, 10**6), st.integers(0, 12), st.sampled_from([1, 2]))
def test_contributions_when_trees_are_small_then_by_definition(seed, splits, width):
    forest = random_forest(seed, splits, width)
    x = np.random.default_rng(seed).choice(VALUES, size=(3, FEATURES))
    result = GBTModel(forest).contributions(x).reshape(3, width, -1)
    for row, ours in zip(x, result, strict=True):
        for output in range(width):
            expected = sum(by_definition(tree, row) for tree in forest.trees[output::width])
            expected[-1] += forest.base[output]
            np.testing.assert_allclose(ours[output], expected, atol=1e-12)
    np.testing.assert_allclose(result.sum(axis=2), GBTModel(forest).margins(x), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("params", [{"max_depth": 6}, {"max_depth": 0, "max_leaves": 60, "grow_policy": "lossguide"}])
def test_contributions_when_values_are_missing_then_xgboosts(dtype, params):
    x, y = data()
    booster, forest = grown(x, y, rounds=20, **params)
    result = GBTModel(forest).contributions(x.astype(dtype))
    np.testing.assert_allclose(result, booster.predict(xgboost.DMatrix(x), pred_contribs=True), atol=1e-5)


def test_contributions_when_there_are_classes_then_xgboosts():
    x, y = data()
    params = {"objective": "multi:softprob", "num_class": 3}
    booster, forest = grown(x, np.digitize(y, [0, 1]), rounds=8, **params)
    expected = booster.predict(xgboost.DMatrix(x), pred_contribs=True)
    np.testing.assert_allclose(GBTModel(forest).contributions(x), expected, atol=1e-5)
    first = GBTModel(forest).contributions(x, numTrees=2)
    np.testing.assert_allclose(first.sum(axis=2), GBTModel(forest).first(2).margins(x), atol=1e-9)


def test_contributions_when_there_are_categories_then_xgboosts():
    rng = np.random.default_rng(3)
    x = np.column_stack([rng.integers(0, 12, 600), rng.normal(size=600)])
    y = np.sin(x[:, 0]) * x[:, 1] + (x[:, 0] % 3 == 1)
    rows = xgboost.DMatrix(x, y, feature_types=["c", "q"], enable_categorical=True)
    params = {"tree_method": "hist", "max_depth": 4, "base_score": 0.0, "nthread": 1, "max_cat_to_onehot": 1}
    booster = xgboost.train(params, rows, 6)
    forest = forest_of(booster, [0.0])
    assert any(len(tree.set_flags) for tree in forest.trees)
    result = GBTModel(forest).contributions(x)
    np.testing.assert_allclose(result, booster.predict(rows, pred_contribs=True), atol=1e-5)


@pytest.mark.parametrize("absent", ["zero", "missing"])
def test_contributions_when_rows_are_sparse_then_as_dense(absent):
    x, y = data()
    x = np.where(np.nan_to_num(x) > 0.5, x, 0)
    forest = replace(grown(x, y)[1], absent=absent)
    dense = np.where(x == 0, np.nan, x) if absent == "missing" else x
    model = GBTModel(forest)
    np.testing.assert_array_equal(model.contributions(sp.csr_array(x)), model.contributions(dense))


def test_contributions_when_there_are_no_splits_then_only_base():
    model = GBTModel(Forest((TreeBuilder(3.0, 1.0, 1).finish(),), np.array([1.0]), 2))
    assert model.contributions(np.zeros((2, 2))).tolist() == [[0.0, 0.0, 4.0]] * 2
    with pytest.raises(ShapeError, match="x: expected shape"):
        model.contributions(np.zeros((2, 3)))
    with pytest.raises(ConfigError, match="numTrees: expected a number from 1 to 1, got 2"):
        model.contributions(np.zeros((2, 2)), numTrees=2)
