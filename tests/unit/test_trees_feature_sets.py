"""The features that nodes may be split by: by groups as in the real xgboost, and by weighted draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xgboost

from ps2.algorithms.trees.boosted_growth import FeatureSets
from ps2.algorithms.trees.tree import LEAF
from ps2.errors import OutOfRangeError
from tests import plans
from tests.unit.test_trees_growth import data, grown
from tests.unit.test_trees_ops import Case
from tests.xgboost_trees import assert_same, forest_of

GROUPS = ((0, 1), (1, 2, 3))
RECIPE = plans.boosting(maxDepth=5, stepSize=0.3, interactionConstraints=GROUPS)


def flags(words, features):
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=features).astype(bool)


@pytest.mark.parametrize(
    ("recipe", "params"),
    [
        (RECIPE, {"max_depth": 5}),
        (
            plans.changed(RECIPE, growth="leaf", maxLeaves=12),
            {"max_depth": 5, "max_leaves": 12, "grow_policy": "lossguide"},
        ),
    ],
)
def test_tree_when_features_have_groups_then_it_is_xgboosts(recipe, params):
    x, y = data()
    inputs = {"base_score": 0.0, "eta": 0.3, "interaction_constraints": "[[0, 1], [1, 2, 3]]", **params}
    inputs |= {"tree_method": "hist", "max_bin": 64, "nthread": 1}
    theirs = forest_of(xgboost.train(inputs, xgboost.DMatrix(x, y), 1), [0.0]).trees[0]
    ours = grown(x, y, recipe).tree
    assert_same(ours, theirs, x)
    free = grown(x, y, plans.changed(recipe, interactionConstraints=())).tree
    assert np.unique(ours.feature).tolist() != np.unique(free.feature).tolist()


def paths(tree, node=0, path=frozenset()):
    if tree.feature[node] == LEAF:
        return [path]
    below = path | {int(tree.feature[node])}
    return [*paths(tree, tree.left[node], below), *paths(tree, tree.right[node], below)]


def test_paths_when_features_have_groups_then_stay_within_one():
    x, y = data(seed=3)
    result = paths(grown(x, y, RECIPE).tree)
    assert max(map(len, result)) > 1
    assert all(len(path) == 1 or any(path <= set(group) for group in GROUPS) for path in result)


def test_sets_when_there_are_no_rules_then_no_words():
    assert FeatureSets(100).words([frozenset()] * 3, np.zeros(3, np.int64)).shape == (3, 0)


def test_draws_when_features_have_weights_then_follow_them():
    weights = (0.0, 1.0, 1.0, 2.0, 4.0)
    keys = np.arange(4000)
    result = flags(FeatureSets(5, weights=weights, num_sampled=1).words([frozenset()] * 4000, keys), 5)
    assert (result.sum(axis=1) == 1).all()
    np.testing.assert_allclose(result.mean(axis=0), np.array(weights) / 8, atol=0.03)
    all_of_them = flags(FeatureSets(5, weights=weights, num_sampled=5).words([frozenset()], keys[:1]), 5)
    assert all_of_them.tolist() == [[False, True, True, True, True]]


def test_samples_when_of_trees_and_levels_then_are_nested():
    keys, levels = np.arange(6), [0, 1, 1, 2, 2, 2]
    for tree in range(5):
        sets = FeatureSets(70, num_sampled=4, num_in_tree=30, num_in_level=9, seed=1, tree=tree)
        nodes = flags(sets.words([frozenset()] * 6, keys, levels), 70)
        all_of_level = flags(replace(sets, num_sampled=0).words([frozenset()] * 6, keys, levels), 70)
        assert (sets.in_tree.sum(), all_of_level.sum(axis=1).tolist()) == (30, [9] * 6)
        assert (nodes.sum(axis=1) == 4).all()
        assert (nodes <= all_of_level).all()
        assert (all_of_level <= sets.in_tree).all()
        assert len({level.tobytes() for level in all_of_level}) == 3


def test_samples_of_trees_when_features_have_weights_then_follow():
    weights = (0.0, 1.0, 1.0, 2.0, 4.0)
    in_tree = [FeatureSets(5, weights=weights, num_in_tree=1, tree=tree).in_tree for tree in range(4000)]
    np.testing.assert_allclose(np.mean(in_tree, axis=0), np.array(weights) / 8, atol=0.03)


def test_search_when_features_are_not_allowed_then_next_best():
    case = Case([(6, 0, -1), (9, 0, 2), (5, 0, -1)])
    for excluded in range(3):
        allowed = np.full((3, 1), 7 & ~(1 << excluded), np.int64)
        gains, where, _, _ = case.found(allowed=allowed, features=3)
        for node in range(3):
            kept = [f for f in range(3) if f != excluded]
            gain, feature, _ = case.expected(node, features=kept)
            assert (where[node, 0], gains[node]) == (feature, pytest.approx(gain))


def test_search_when_allowed_are_too_few_words_then_error():
    with pytest.raises(OutOfRangeError, match="allowed: expected a bit for each of 65 features, got 1 words"):
        Case([(6, 0, -1)]).found(allowed=np.zeros((3, 1), np.int64), features=65)
