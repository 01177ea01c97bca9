"""Trees grow by level and by leaf as if one node was split after the other, however many a clock looks into."""

from __future__ import annotations

from dataclasses import fields
from heapq import heappop, heappush

import numpy as np
import pytest
import xgboost

from ps2.algorithms.trees import boosted_growth as growth
from ps2.algorithms.trees.gradients import Objective, exponent_counts, integer_scales, quantise_pairs, sum_bounds
from ps2.algorithms.trees.growth import Node, SplitOrder
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.tree import LEAF, Forest
from ps2.errors import ConfigError
from tests import plans, tree_training
from tests.tree_growth import grow
from tests.xgboost_trees import assert_same, forest_of

LEAFWISE = plans.boosting(maxDepth=12, growth="leaf", maxLeaves=24, stepSize=0.3)
RECIPES = {
    "plain": LEAFWISE,
    "shallow": plans.changed(LEAFWISE, maxDepth=5),
    "monotone and heavy": plans.changed(LEAFWISE, monotoneConstraints=(1, -1, 0, 1, 0), minChildWeight=5.0),
    "features drawn": plans.changed(LEAFWISE, node_features=2, seed=3),
    "by level": plans.changed(LEAFWISE, growth="level"),
}
each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())


def data(rows=400, seed=0):
    """Few distinct values, and labels that no two splits part equally well."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 7, size=(rows, 5)).astype(np.float32) / 2
    return x, x[:, 0] * x[:, 1] - x[:, 2] + rng.normal(size=rows)


def grown(x, y, recipe, batch=growth.BATCH, share=growth.BATCH_DIVISOR):
    """Grow the first tree for squared losses."""
    pairs, _ = Objective("squared").gradients(np.zeros((len(y), 1)), y)
    scales = integer_scales(*sum_bounds(exponent_counts(pairs, np.empty(0)))[:2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "BATCH", batch)
        patch.setattr(growth, "BATCH_DIVISOR", share)
        rows = tree_training.binned(x, tree_training.Recipe())
        return grow(rows, quantise_pairs(pairs[0], np.arange(len(y)), 0, scales), scales, recipe)


def one_by_one(x, y, recipe, batch=1):
    return grown(x, y, recipe, batch, share=recipe.max_leaves)


def assert_equal(one, other):
    for field in fields(one):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


@each_recipe
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_trees_when_clocks_expand_many_nodes_then_same_as_one(recipe, seed):
    x, y = data(seed=seed)
    one = one_by_one(x, y, recipe)
    for batch in (2, 5, 16, 100):
        many = one_by_one(x, y, recipe, batch)
        assert_equal(many.tree, one.tree)
        np.testing.assert_array_equal(many.margins, one.margins)
        assert many.clocks <= one.clocks
    assert_equal(grown(x, y, recipe).tree, one.tree)


@each_recipe
def test_trees_when_leaves_are_limited_then_are_first_splits(recipe):
    x, y = data()
    limited, whole = (grown(x, y, plans.changed(recipe, maxLeaves=leaves)).tree for leaves in (12, 0))
    line, left = [(0.0, 0, 0, 0)], 11  # what comes first; the number in the limited tree; that in the whole one
    numbers = 1
    while line:
        _, number, _, node = heappop(line)
        if not left or whole.feature[node] == LEAF:
            assert limited.feature[number] == LEAF
            continue
        left -= 1
        for name in ("feature", "threshold", "gain", "count", "cover"):
            assert getattr(limited, name)[number] == getattr(whole, name)[node]
        assert (limited.left[number], limited.right[number]) == (numbers, numbers + 1)
        for child in (whole.left[node], whole.right[node]):
            gain = whole.gain[child] if recipe.settings.growth == "leaf" else 0.0
            heappush(line, (-gain, numbers, child, child))
            numbers += 1
    assert len(limited) == numbers


@each_recipe
def test_trees_when_finished_then_margins_are_predictions(recipe):
    x, y = data()
    created = grown(x, y, recipe)
    forest = Forest((created.tree,), np.zeros(1), x.shape[1])
    np.testing.assert_array_equal(Predictor(forest).margins(x)[:, 0], created.margins)
    assert created.tree.count[created.tree.leaves].sum() == len(y)
    assert len(created.tree.leaves) <= recipe.settings.maxLeaves


@pytest.mark.parametrize("growing", ["leaf", "level"])
@pytest.mark.parametrize(("leaves", "depth"), [(2, 6), (20, 0), (20, 6), (0, 5)])
def test_trees_when_values_are_few_then_match_xgboost_splits(growing, leaves, depth):
    x, y = data(rows=800)
    recipe = plans.boosting(maxDepth=depth or 30, growth=growing, maxLeaves=leaves, stepSize=0.3)
    inputs = {
        "tree_method": "hist",
        "max_bin": 64,
        "grow_policy": {"leaf": "lossguide", "level": "depthwise"}[growing],
        "max_leaves": leaves,
        "max_depth": depth,
        "eta": recipe.settings.stepSize,
        "base_score": 0.0,
        "nthread": 1,
    }
    booster = xgboost.train(inputs, xgboost.DMatrix(x, y), 1)
    created = grown(x, y, recipe)
    assert_same(created.tree, forest_of(booster, (0.0,)).trees[0], x)
    assert len(created.tree.leaves) == leaves or not leaves


def test_trees_when_255_leaves_then_clocks_and_rows_are_few():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 40, (5000, 5)).astype(np.float32)
    y = np.sin(x[:, 0] / 5) * x[:, 1] + x[:, 2] * x[:, 3] / 40 + rng.normal(size=5000)
    created = grown(x, y, plans.changed(LEAFWISE, maxLeaves=255, maxDepth=30))
    assert len(created.tree.leaves) == 255
    assert created.clocks <= created.tree.depth + 6
    assert created.parted < 1.25 * 254
    # The layout, half of the leaves, and the other children of those that a clock looks into.
    assert created.room <= 1 + 128 + 254 // growth.BATCH_DIVISOR + 1


def node(gain, *children):
    """A node with a best split, whose children are known."""
    created = Node(0, np.zeros(3, np.int64), np.zeros(2), may_split=True, gain=gain, is_known=True)
    created.children = children or (leaf(), leaf())
    return created


def leaf():
    return Node(0, np.zeros(3, np.int64), np.zeros(2), may_split=False)


def test_order_when_gains_are_equal_then_oldest_node_is_first():
    left, right = node(2.0, node(2.0), node(3.0)), node(2.0)
    order = SplitOrder(10, by_gain=True)
    order.begin(node(1.0, left, right))
    order.choose()
    assert [chosen.gain for chosen in order.chosen] == [1.0, 2.0, 3.0, 2.0, 2.0]
    assert order.chosen[3:] == [right, left.children[0]]
    assert order.nodes_to_explore() == []


def test_order_when_node_is_too_far_back_then_is_not_expanded():
    known, unknown, far = node(3.0), node(4.0), node(1.0)
    unknown.is_known = far.is_known = False
    for splits, chosen, ahead in ((6, 2, [unknown, far]), (5, 2, [unknown]), (4, 2, [unknown]), (3, 3, [])):
        order = SplitOrder(splits, by_gain=True)
        order.begin(node(1.0, node(9.0, known, far), unknown))
        order.choose()
        assert order.nodes_to_explore() == ahead
        assert len(order.chosen) == chosen


@pytest.mark.parametrize("wrong", [{"growth": "wide"}, {"maxLeaves": -1}])
def test_recipe_when_invalid_then_error_says_so(wrong):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: expected"):
        plans.boosting(**wrong)
