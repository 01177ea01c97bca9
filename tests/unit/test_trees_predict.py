"""The predictor agrees with the real xgboost, and with a walk in plain Python."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xgboost

from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.tree import LEAF, Forest
from ps2.errors import DTypeError, ShapeError
from tests.tree_builder import TreeBuilder
from tests.xgboost_trees import forest_of

ROWS, FEATURES = 1001, 7


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    y = np.nan_to_num(x[:, 0]) ** 2 + np.nan_to_num(x[:, 1] * x[:, 2]) + rng.normal(size=ROWS)
    return x, y


def grown(x, y, rounds=5, **params):
    """Return a real booster and its trees; margins before them are 0."""
    params = {"nthread": 1, "base_score": 0.0, "max_depth": 5} | params
    booster = xgboost.train(params, xgboost.DMatrix(x, y), rounds)
    return booster, forest_of(booster, [0.0] * params.get("num_class", 1))


def walk(tree, row):
    node = 0
    while tree.feature[node] != LEAF:
        value, flags = np.float32(row[tree.feature[node]]), tree.set_of(node)
        if np.isnan(value):
            left = tree.default_left[node]
        elif len(flags):
            known = 0 <= value < len(flags) and value == int(value)
            left = flags[int(value)] if known else tree.default_left[node]
        else:
            left = value <= tree.threshold[node]
        node = tree.left[node] if left else tree.right[node]
    return node


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("params", [{"max_depth": 5}, {"max_depth": 0, "max_leaves": 60, "grow_policy": "lossguide"}])
def test_margins_when_rows_are_dense_then_they_are_xgboosts(dtype, params):
    x, y = data()
    booster, forest = grown(x, y, **params)
    result = Predictor(forest).margins(x.astype(dtype))
    np.testing.assert_allclose(result[:, 0], booster.predict(xgboost.DMatrix(x)), rtol=1e-5, atol=1e-5)


def test_leaves_when_rows_are_dense_then_they_are_xgboosts():
    x, y = data()
    booster, forest = grown(x, y)
    result = Predictor(forest).leaves(x)
    np.testing.assert_array_equal(result, booster.predict(xgboost.DMatrix(x), pred_leaf=True))


def test_margins_when_there_are_classes_then_each_has_its_trees():
    x, y = data()
    classes = np.digitize(y, [0, 1])
    booster, forest = grown(x, classes, objective="multi:softprob", num_class=3)
    expected = booster.predict(xgboost.DMatrix(x), output_margin=True)
    np.testing.assert_allclose(Predictor(forest).margins(x), expected, rtol=1e-5, atol=1e-5)


def test_margins_when_absent_is_missing_then_match_xgboost():
    rng = np.random.default_rng(1)
    x = sp.random_array((ROWS, 500), density=0.05, rng=rng, format="csr", dtype=np.float32)
    y = x[:, :250].sum(axis=1)
    booster, forest = grown(x, y)
    result = Predictor(replace(forest, absent="missing")).margins(x)
    np.testing.assert_allclose(result[:, 0], booster.predict(xgboost.DMatrix(x)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_margins_when_rows_are_sparse_then_absent_is_zero(index):
    x, y = data()
    x[:, 3:] = np.where(x[:, 3:] > 0.5, x[:, 3:], 0)
    forest = grown(x, y)[1]
    sparse = sp.csr_array(x)
    sparse.indptr, sparse.indices = sparse.indptr.astype(index), sparse.indices.astype(index)
    predictor = Predictor(forest)
    np.testing.assert_array_equal(predictor.margins(sparse), predictor.margins(x))
    np.testing.assert_array_equal(predictor.leaves(sparse), predictor.leaves(x))


def test_leaves_when_at_thresholds_or_in_sets_then_match_walk():
    rng = np.random.default_rng(2)
    trees = []
    for _ in range(6):
        draft, leaves = TreeBuilder(0.0, 1.0, 1), [0]
        for _ in range(25):
            node = leaves.pop(rng.integers(len(leaves)))
            test = rng.random(rng.integers(1, 5)) < 0.5 if rng.random() < 0.5 else float(rng.integers(-1, 4))
            draft.split(node, int(rng.integers(4)), test, bool(rng.integers(2)), 1.0)
            leaves += [draft.add_child(node, rng.normal(), 1.0, 1) for _ in range(2)]
        trees.append(draft.finish())
    trees.append(TreeBuilder(3.0, 1.0, 1).finish())
    values = [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 1.5, np.nan, np.inf, -np.inf]
    x = rng.choice(values, size=(300, 4))
    predictor = Predictor(Forest(tuple(trees), np.array([1.0]), 4))
    expected = np.array([[walk(tree, row) for tree in trees] for row in x])
    np.testing.assert_array_equal(predictor.leaves(x), expected)
    sums = 1.0 + sum(tree.value[expected[:, t]].astype(np.float64) for t, tree in enumerate(trees))
    np.testing.assert_allclose(predictor.margins(x)[:, 0], sums, rtol=1e-12)


def test_margins_when_doubles_round_to_threshold_then_go_left():
    draft = TreeBuilder(0.0, 1.0, 1)
    draft.split(0, 0, float(np.float32(0.1)), default_left=False, gain=1.0)
    draft.add_child(0, -1.0, 1.0, 1)
    draft.add_child(0, 1.0, 1.0, 1)
    predictor = Predictor(Forest((draft.finish(),), np.zeros(1), 1))
    assert predictor.margins(np.array([[0.1 + 1e-10], [0.1 + 1e-6]])).tolist() == [[-1.0], [1.0]]


def test_margins_when_there_are_no_trees_or_rows_then_are_base():
    forest = Forest((), np.array([1.5, 2.5]), 2)
    assert Predictor(forest).margins(np.zeros((2, 2))).tolist() == [[1.5, 2.5]] * 2
    assert Predictor(forest).leaves(np.zeros((2, 2))).shape == (2, 0)
    x, y = data()
    predictor = Predictor(grown(x, y)[1])
    assert predictor.margins(x[:0]).shape == (0, 1)
    assert predictor.margins(sp.csr_array((0, FEATURES))).shape == (0, 1)


def test_margins_when_memory_layout_differs_then_are_the_same():
    x, y = data()
    predictor = Predictor(grown(x, y)[1])
    expected = predictor.margins(x)
    np.testing.assert_array_equal(predictor.margins(np.asfortranarray(x)), expected)
    np.testing.assert_array_equal(predictor.margins(np.repeat(x, 2, axis=1)[:, ::2]), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(predictor)).margins(x), expected)
    whole = np.nan_to_num(x).astype(np.int8)
    np.testing.assert_array_equal(predictor.margins(whole), predictor.margins(whole.astype(np.float64)))


def test_margins_when_x_is_invalid_then_error_says_what_came():
    predictor = Predictor(Forest((), np.zeros(1), 3))
    with pytest.raises(ShapeError, match=r"expected shape \(n, 3\) of numbers, got \(2, 4\)"):
        predictor.margins(np.zeros((2, 4)))
    with pytest.raises(DTypeError, match="expected numbers"):
        predictor.margins(np.full((2, 3), "a"))
    with pytest.raises(ShapeError, match=r"expected shape \(n, 3\) of numbers, got a value that is not an array"):
        predictor.margins([[1.0, 2.0, 3.0], [1.0]])


def test_margins_when_rows_are_lists_or_pandas_then_are_the_same():
    x, y = data()
    _, forest = grown(x, y)
    predictor, expected = Predictor(forest), Predictor(forest).margins(x)
    np.testing.assert_array_equal(predictor.margins(x.tolist()), expected)
    np.testing.assert_array_equal(predictor.margins(pd.DataFrame(x)), expected)
    assert predictor.leaves(x[:3].tolist()).shape == (3, 5)
