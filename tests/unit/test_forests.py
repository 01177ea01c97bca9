"""Trees of random forests are those of an exhaustive search; draws do not depend on where rows lie."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.trees import ops, search_kernels, warm
from ps2.algorithms.trees.forests import (
    forest_kernels,
    impurity_kernels,
    random_forest,
)
from ps2.algorithms.trees.forests.plan import MAX_DRAWS, node_features_of
from ps2.algorithms.trees.settings import ForestSettings
from ps2.data.rows import LocalRows
from tests import plans

ONE_TREE = plans.forest("gini", 3, 200, numTrees=1, maxDepth=3, maxBins=64, bootstrap=False)


def rows_of(classes, weighted=False, empty=0):
    rng = np.random.default_rng(5)
    x = rng.integers(0, 9, (200, 4)).astype(float)
    x = np.column_stack([x, np.zeros((200, empty))])
    y = x[:, 0] * x[:, 1] + x[:, 2] + rng.normal(size=200)
    y = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes)).astype(float) if classes else y
    return LocalRows(np.arange(4 + empty), sp.csr_array(x), y, rng.random(200) if weighted else None)


def impurity(y, w, kind):
    if kind == "variance":
        return np.average((y - np.average(y, weights=w)) ** 2, weights=w)
    p = np.bincount(y.astype(int), w) / w.sum()
    return 1 - (p**2).sum() if kind == "gini" else -(p[p > 0] * np.log2(p[p > 0])).sum()


def leaves_of(x, y, w, kind, depth):
    """Return the mean, or the shares of three classes, of each row's leaf."""
    best = 0.0, None
    for f in range(x.shape[1]):
        for cut in np.unique(x[:, f])[:-1]:
            left = x[:, f] <= cut
            parts = sum(w[side].sum() * impurity(y[side], w[side], kind) for side in (left, ~left))
            gain = w.sum() * impurity(y, w, kind) - parts
            if depth and gain > best[0] + 1e-9:
                best = gain, left
    if best[1] is None:
        message = [np.average(y, weights=w)] if kind == "variance" else np.bincount(y.astype(int), w, 3) / w.sum()
        return np.tile(message, (len(y), 1))
    out = np.empty((len(y), 1 if kind == "variance" else 3))
    for side in (best[1], ~best[1]):
        out[side] = leaves_of(x[side], y[side], w[side], kind, depth - 1)
    return out


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["gini", "entropy", "variance"])
def test_tree_when_all_features_then_best_of_all_splits(kind, weighted):
    rows = rows_of(0 if kind == "variance" else 3, weighted)
    recipe = plans.changed(ONE_TREE, impurity=kind, classes=0 if kind == "variance" else 3, is_weighted=weighted)
    forest, _ = warm.forest_in_process(rows, recipe)
    weights = rows.weights if weighted else np.ones(200)
    expected = leaves_of(rows.x.toarray(), rows.y, weights, kind, 3)
    assert np.allclose(forest.margins(rows.x), expected, rtol=0, atol=1e-9)


def test_forest_when_rows_move_then_same_trees():
    rows = rows_of(3, empty=20)
    recipe = plans.changed(ONE_TREE, numTrees=4, maxDepth=8, bootstrap=True, node_features=2)
    order = np.random.default_rng(0).permutation(200)
    moved = LocalRows(rows.keys, sp.csr_array(rows.x[order]), rows.y[order])
    one, other = (warm.forest_in_process(some, recipe)[0].margins(rows.x) for some in (rows, moved))
    assert np.array_equal(one, other)


@pytest.mark.parametrize("classes", [0, 3])
def test_votes_when_trees_do_not_count_then_those_of_the_rest(classes):
    rows, kind = rows_of(classes), {"classes": classes, "impurity": "gini" if classes else "variance"}
    forest, _ = warm.forest_in_process(rows, plans.changed(ONE_TREE, numTrees=3, bootstrap=True, **kind))
    counts = np.random.default_rng(0).random((200, 3)) < 0.5
    votes, trees = forest.votes(rows.x, counts)
    parts = [forest.part(tree).margins(rows.x) * counts[:, [tree]] for tree in range(3)]
    assert np.array_equal(votes, sum(parts))
    assert np.array_equal(trees, counts.sum(axis=1))


def test_forest_when_it_has_grown_then_importances_sum_to_1():
    forest, _ = warm.forest_in_process(rows_of(3), plans.changed(ONE_TREE, numTrees=5, bootstrap=True, node_features=2))
    assert forest.importances().sum() == pytest.approx(1)
    assert (forest.importances() > 0).all()


def test_draws_when_bootstrap_then_poisson():
    options = plans.changed(ONE_TREE, bootstrap=True, subsamplingRate=0.8)
    draws = np.empty(200_000, np.uint8)
    forest_kernels.count_draws(np.arange(len(draws)), options.keys(0)[0], options.draw_probabilities, draws)
    assert draws.max() < MAX_DRAWS
    assert (draws.mean(), draws.var()) == (pytest.approx(0.8, abs=0.01), pytest.approx(0.8, abs=0.01))


def test_features_when_drawn_by_turns_then_each_once():
    usable, out, result = np.arange(3, 14), np.empty(11, np.int64), []
    for turn in range(4):
        result += out[: forest_kernels.sample_features(usable, 7, 5, turn, 4, out)].tolist()
    assert result[:4] == sorted(result[:4])
    assert sorted(result) == usable.tolist()


def test_strategy_when_auto_then_that_of_pyspark():
    cases = [("auto", 1, 2, 0), ("auto", 2, 2, 4), ("AUTO", 2, 0, 6), ("log2", 1, 2, 4)]
    for strategy, trees, classes, expected in cases:
        settings = ForestSettings(featureSubsetStrategy=strategy, numTrees=trees)
        assert node_features_of(settings, 16, classes) == expected


def test_forest_when_warm_then_compiles_nothing():
    modules = forest_kernels, impurity_kernels, random_forest, ops, search_kernels
    warm.warm_forests()

    def compiled():
        named = [(module, name, one) for module in modules for name, one in inspect.getmembers(module)]
        return {
            (module.__name__, name): len(one.signatures) for module, name, one in named if hasattr(one, "signatures")
        }

    before = compiled()
    for classes in (0, 3):
        for weighted in (False, True):
            kind = {"impurity": "entropy" if classes else "variance", "classes": classes, "is_weighted": weighted}
            for empty in (0, 20):
                rows = rows_of(classes, weighted, empty)
                forest = warm.forest_in_process(rows, plans.changed(ONE_TREE, node_features=2, **kind))[0]
                forest.margins(rows.x)
                forest.votes(rows.x, np.ones((200, 1), np.bool_))
    warm.warm_whole_forest_trees()
    assert compiled() == before
