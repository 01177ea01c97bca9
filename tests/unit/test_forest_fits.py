"""Trainings of random forests: the same on servers as in the only worker's process; what their params do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms import RandomForestClassifier, RandomForestRegressor
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.trees.forests import program
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.problem import TreeProblem
from ps2.errors import ConfigError, InputError
from tests import plans
from tests.boosting import CATEGORIES, FEATURES, digest, facts_of, table
from tests.in_process import ArrayTable, training_context
from tests.tree_estimators import fit

LABELS = {0: "squared", 2: "logistic", 3: "softmax"}
RECIPE = plans.forest(numTrees=5, maxDepth=6, maxBins=16, impurity="gini", classes=2, rows=300, node_features=6)
NUMBERS = plans.changed(RECIPE, impurity="variance", classes=0, node_features=11)
# How trees are grown, and whether rows are sparse, and weighted.
KINDS = {
    "gini": (RECIPE, False, False),
    "entropy of three classes, weighted": (plans.changed(RECIPE, impurity="entropy", classes=3), True, True),
    "gini of three classes, all features": (
        plans.changed(RECIPE, classes=3, node_features=0, bootstrap=False),
        True,
        False,
    ),
    "numbers, weighted": (
        plans.changed(NUMBERS, minInstancesPerNode=5, min_node_weight=1.0, subsamplingRate=0.7),
        False,
        True,
    ),
    "numbers, drawn once": (
        plans.changed(NUMBERS, bootstrap=False, subsamplingRate=0.6, minInfoGain=0.001),
        True,
        False,
    ),
}
X = np.random.default_rng(0).normal(size=(400, 4))
Y = (X[:, 0] > 0) + 2.0 * (X[:, 1] * X[:, 2] > 0)


@pytest.mark.parametrize("kind", KINDS)
def test_forest_when_it_has_grown_then_same_in_one_process(kind):
    recipe, sparse, weighted = KINDS[kind]
    x, y = table()
    y = y + (x[:, 4] > 0) if recipe.classes == 3 else y if recipe.classes else y + x[:, 0].astype(float)
    weights = np.random.default_rng(1).integers(0, 4, len(y)) / 4 if weighted else np.ones(len(y))
    facts = facts_of(y if recipe.classes else np.zeros(len(y)))
    facts = replace(facts, weight=weights.sum(), weight_squared=(weights**2).sum())
    objective = Objective(LABELS[recipe.classes], 3 if recipe.classes == 3 else 1)
    problem = TreeProblem(objective, FEATURES, (0.0 if recipe.classes else 0.4,), categories=CATEGORIES)
    columns = ColumnNames(weight="w" if weighted else None)
    with training_context() as ps:
        grown = [
            program.grow(
                ps,
                ArrayTable.of(sp.csr_array(x) if sparse else x, y, workers, columns, w=weights),
                problem,
                plans.changed(recipe, via=via, is_weighted=weighted),
                facts,
            )
            for via, workers in (("local", 1), ("servers", 2))
        ]
    local, on_servers = (
        (digest(one.model.forest), [share.tobytes() for share in one.model.shares], one.history.objective)
        for one in grown
    )
    assert local == on_servers
    assert grown[0].model.forest.nodes > 5 * 7


def test_classifier_when_asked_then_tells_what_pyspark_does():
    model = fit(RandomForestClassifier(numTrees=3, maxDepth=3), X, Y)
    votes = sum(tree.predictProbability(X[0]).toArray() for tree in model.trees)
    assert np.allclose(model.predictRaw(X[0]).toArray(), votes)
    assert model.featureImportances.toArray().sum() == pytest.approx(1)
    assert (model.treeWeights, model.totalNumNodes) == ([1.0] * 3, sum(tree.numNodes for tree in model.trees))
    assert model.toDebugString.count("Tree ") == 3
    assert model.summary.history.reason == "all trees have grown"
    assert model.summary.oobScore is None


def test_regressor_when_fitted_then_mean_of_its_trees():
    model = fit(RandomForestRegressor(numTrees=4, seed=3), X, Y)
    assert model.predict(X[0]) == pytest.approx(np.mean([tree.predict(X[0]) for tree in model.trees]))


def test_classifier_when_there_is_one_class_then_leaves():
    model = fit(RandomForestClassifier(numTrees=2), X, np.zeros(400))
    assert model.totalNumNodes == 2
    assert model.predictProbability(X[0]).toArray().tolist() == [1, 0]


def test_regressor_when_labels_are_huge_then_means_are_right():
    huge = Y * 1e9 + 1e9
    model = fit(RandomForestRegressor(numTrees=1, bootstrap=False, maxDepth=0), X, huge)
    assert model.predict(X[0]) == pytest.approx(huge.mean(), rel=1e-15)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"numTrees": 0}, "numTrees: expected a number in"),
        ({"featureSubsetStrategy": "x"}, "featureSubsetStrategy: expected one of"),
        ({"impurity": "variance"}, "impurity: expected one of gini, entropy, got 'variance'"),
        ({"subsamplingRate": 0.0}, "subsamplingRate: expected"),
        ({"oobScore": True, "bootstrap": False}, "oobScore: expected trees that leave rows out"),
        ({"via": "local", "numWorkers": 2}, "via: expected 'servers' or 'auto' for 2 workers"),
    ],
)
def test_classifier_when_params_are_wrong_then_config_error(params, message):
    with pytest.raises(ConfigError, match=message):
        fit(RandomForestClassifier(**params), X, Y)


@pytest.mark.parametrize("via", ["local", "servers"])
def test_forest_when_no_row_is_drawn_then_error_says_so(via):
    with pytest.raises(InputError, match="subsamplingRate=1e-06 of 400 rows: none of the 3 trees has drawn a row"):
        fit(RandomForestClassifier(numTrees=3, subsamplingRate=1e-6, via=via), X, Y)


@pytest.mark.parametrize("estimator", [RandomForestClassifier, RandomForestRegressor])
def test_importances_when_of_forest_then_sums_over_splits(estimator):
    model = fit(estimator(numTrees=3, maxDepth=3, seed=1), X, Y)
    for kind in ("split", "totalGain", "totalCover"):
        expected = np.zeros(4)
        for tree in model.fitted.forest.trees:
            inner = tree.feature >= 0
            weights = {"split": np.ones(len(tree)), "totalGain": tree.gain, "totalCover": tree.cover}[kind]
            expected += np.bincount(tree.feature[inner], weights[inner], 4)
        np.testing.assert_allclose(model.getFeatureImportances(kind).toArray(), expected)
