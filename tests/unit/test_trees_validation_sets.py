"""Several validation sets: each has a metric by round, the last one decides when to stop, trees are the same."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms import GBTRanker, GBTRegressor
from tests.rankings import mean_ndcg, queries
from tests.tree_estimators import data, fit, same_trees

X, Y = data()
# The number of each row's set; 0: a row to train on.
SETS = np.resize(np.array([0, 0, 1, 0, 2], np.int8), len(Y))
PARAMS = {"maxIter": 6, "maxDepth": 3, "stepSize": 0.5, "validationIndicatorCol": "held", "evalMetric": "rmse"}
FLEETS = [{"via": "local"}, {"via": "servers"}, {"via": "servers", "numWorkers": 3}]


def fit_with_sets(**params):
    return fit(GBTRegressor(**{**PARAMS, **params}), X, Y, held=SETS, validation_sets=("far", "near"))


@pytest.fixture(scope="module")
def models():
    return [fit_with_sets(earlyStoppingRounds=20, **fleet) for fleet in FLEETS]


def test_metrics_when_there_are_sets_then_each_has_its_own(models):
    for model in models:
        metrics = model.summary.history.metrics
        best = model.getNumTrees
        for number, name in enumerate(("far", "near"), 1):
            rows = number == SETS
            rmse = [np.sqrt(np.mean((model.fitted.predict(X[rows], t) - Y[rows]) ** 2)) for t in range(1, best + 1)]
            np.testing.assert_allclose(metrics[f"validation {name}"][:best], rmse)


def test_trees_when_there_are_sets_then_same_on_any_fleet(models):
    assert same_trees(*models)


def test_stopping_when_there_are_sets_then_last_decides(models):
    model = models[0]
    assert model.summary.validationHistory == list(model.summary.history.metrics["validation near"])
    alone = fit(GBTRegressor(**PARAMS, earlyStoppingRounds=20), X[SETS != 1], Y[SETS != 1], held=SETS[SETS != 1] == 2)
    assert same_trees(model, alone)


def test_metrics_when_ranking_then_each_set_has_its_groups():
    x, y, query = queries()
    sets = np.array([0, 1, 2], np.int8)[query % 3]
    params = {
        "groupCol": "query",
        "numWorkers": 1,
        "maxIter": 3,
        "maxDepth": 3,
        "validationIndicatorCol": "held",
        "evalMetric": "ndcg@10",
    }
    model = fit(GBTRanker(**params), x, y, query=query, held=sets, validation_sets=("1", "2"))
    margins, last = model.fitted.margins(x)[:, 0], model.getNumTrees - 1
    for number in (1, 2):
        rows = sets == number
        expected = mean_ndcg(margins[rows], y[rows], query[rows])
        assert model.summary.history.metrics[f"validation {number}"][last] == pytest.approx(expected)
