"""Models of the real xgboost as forests: the oracle of the trees' tests."""

from __future__ import annotations

import json

import numpy as np

from ps2.algorithms.trees.tree import LEAF, Forest, Tree


def rows_of_few_values(rows=400, columns=5, seed=0, missing=0.0):
    """Features of few distinct values, and labels that no two splits part equally well."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 7, size=(rows, columns)).astype(np.float32) / 2
    x[rng.random(x.shape) < missing] = np.nan
    y = np.nan_to_num(x[:, 0] * x[:, 1]) - np.nan_to_num(x[:, 2]) + rng.normal(size=rows)
    return x, y


def forest_of(booster, base):
    """Return the trees of a booster, with margins ``base`` before them (xgboost's, after its link function)."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    trees = tuple(tree_of(tree) for tree in learner["gradient_booster"]["model"]["trees"])
    return Forest(trees, np.array(base, np.float64), int(learner["learner_model_param"]["num_feature"]))


def tree_of(saved):
    """Return one tree; xgboost's rows go left below the threshold, ours at it too."""
    left = np.array(saved["left_children"], np.int32)
    leaf = left < 0
    conditions = np.array(saved["split_conditions"], np.float32)
    sets = [np.empty(0, np.bool_)] * len(left)
    for node, begin, size in zip(
        saved["categories_nodes"], saved["categories_segments"], saved["categories_sizes"], strict=True
    ):
        to_the_right = saved["categories"][begin : begin + size]
        sets[node] = ~np.isin(np.arange(max(to_the_right) + 1), to_the_right)
    categorical = np.array(saved["split_type"]) == 1
    return Tree(
        np.where(leaf, -1, saved["split_indices"]).astype(np.int32),
        np.where(leaf | categorical, 0, np.nextafter(conditions, np.float32(-np.inf))).astype(np.float64),
        np.array(saved["default_left"], np.bool_),
        left,
        np.array(saved["right_children"], np.int32),
        np.where(leaf, conditions, np.array(saved["base_weights"], np.float32)).astype(np.float64),
        np.array(saved["loss_changes"], np.float64),
        np.array(saved["sum_hessian"], np.float64),
        np.zeros(len(left), np.int64),
        np.append(0, np.cumsum([len(flags) for flags in sets])),
        np.concatenate(sets),
    )


def assert_same(ours, theirs, x):
    """Walk two trees side by side: the same features, the same rows on either side, gains and values."""
    todo = [(0, 0, np.arange(len(x)))]
    while todo:
        a, b, rows = todo.pop()
        assert ours.feature[a] == theirs.feature[b]
        np.testing.assert_allclose(ours.cover[a], theirs.cover[b], rtol=1e-5)
        if ours.feature[a] == LEAF:
            np.testing.assert_allclose(ours.value[a], theirs.value[b], rtol=1e-4, atol=1e-5)
            continue
        np.testing.assert_allclose(ours.gain[a], theirs.gain[b], rtol=1e-3, atol=1e-3)
        sides = []
        for tree, node in ((ours, a), (theirs, b)):
            values = x[rows, tree.feature[node]]
            sides.append(np.where(np.isnan(values), tree.default_left[node], values <= tree.threshold[node]))
        np.testing.assert_array_equal(*sides)
        todo += [
            (ours.left[a], theirs.left[b], rows[sides[0]]),
            (ours.right[a], theirs.right[b], rows[~sides[0]]),
        ]
