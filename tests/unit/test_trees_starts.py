"""Trainings of trees that begin elsewhere, at margins of the rows or at a model, and those that end early."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import xgboost

from ps2.algorithms import GBTClassifier, GBTRegressor
from ps2.errors import ConfigError, InputError
from ps2.onnx import export
from tests.tree_estimators import data, fit, xgboosts

PARAMS = {"stepSize": 0.5, "maxDepth": 3}
X, Y = data()


# -- where trainings begin ---------------------------------------------------------------------------------------------


def test_training_when_rows_have_margins_then_it_is_xgboosts():
    estimator = GBTRegressor(maxIter=4, maxDepth=3, defaults="xgboost", baseMarginCol="start")
    created, start = fit(estimator, X, Y, start=X[:, 1]), X[:, 1]
    theirs = xgboosts(X, Y, 4, eta=0.3, margin=start)
    ours = created.fitted.margins(X)[:, 0] + start
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert created.summary.objectiveHistory[-1] == pytest.approx(np.mean((ours - Y) ** 2) / 2)


def test_margins_when_null_then_error():
    holed = np.where(Y > 0, 1.0, None)
    with pytest.raises(InputError, match=r"start: .* of 240 rows hold null"):
        fit(GBTRegressor(baseMarginCol="start", maxIter=1), X, Y, start=holed)


@pytest.mark.parametrize("workers", [1, 2])
def test_training_when_it_goes_on_from_model_then_as_one(workers):
    whole = fit(GBTRegressor(maxIter=5, **PARAMS), X, Y)
    first = fit(GBTRegressor(maxIter=2, **PARAMS), X, Y)
    estimator = GBTRegressor(maxIter=3, numWorkers=workers, **PARAMS)
    created = fit(estimator.setInitialModel((first, first.fitted)[workers - 1]), X, Y)
    assert created.getNumTrees == 5
    assert created.summary.objectiveHistory == pytest.approx(whole.summary.objectiveHistory[2:])
    np.testing.assert_allclose(created.fitted.predict(X), whole.fitted.predict(X), rtol=1e-9)


def test_initial_model_when_of_another_kind_then_error():
    first = fit(GBTRegressor(maxIter=1, maxDepth=1), X, Y)
    with pytest.raises(ConfigError, match=r"initialModel: expected a model of loss 'huber', .* got 'squared'"):
        fit(GBTRegressor(lossType="huber").setInitialModel(first), X, Y)
    with pytest.raises(ConfigError, match="initialModel: expected a model of boosted trees, got int"):
        GBTRegressor().setInitialModel(3)
    with pytest.raises(ConfigError, match="baseScore: expected without an initial model"):
        fit(GBTRegressor(baseScore=1.0).setInitialModel(first), X, Y)


# -- where they end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"growth": "leaf", "maxLeaves": 12, "subsamplingRate": 0.8}])
def test_validation_when_loss_stalls_then_keeps_best_trees(params):
    held = np.arange(len(Y)) % 3 == 0
    noisy = np.where(held & (np.random.default_rng(0).random(len(Y)) < 0.3), Y <= 0, Y > 0)
    validation = {"validationIndicatorCol": "held", "validationTol": 0.0}
    created = fit(GBTClassifier(maxIter=40, stepSize=0.5, **validation, **params), X, noisy, held=held)
    history = created.summary.validationHistory
    assert created.summary.totalIterations == len(history) < 40
    assert created.getNumTrees == 1 + int(np.argmin(history))
    margins = created.fitted.margins(X[held])[:, 0]
    assert np.logaddexp(0, np.where(noisy[held], -margins, margins)).mean() == pytest.approx(min(history))


def test_training_when_auc_stops_rising_then_best_is_kept():
    x, y = data(300)
    y = y + np.random.default_rng(5).normal(size=300) > 0
    held, seen = np.arange(300) % 3 == 0, []
    estimator = GBTClassifier(maxIter=40, stepSize=0.5, maxDepth=4, validationIndicatorCol="held")
    estimator.setEarlyStoppingRounds(4).setEvalMetric("auc").onRound(lambda report: seen.append(report.validation))
    created = fit(estimator, x, y, held=held)
    history = created.summary.validationHistory
    best = int(np.argmax(history))
    assert history == seen
    assert len(history) == best + 5 <= 40
    assert created.getNumTrees == best + 1
    for rounds in range(1, best + 2):
        margins, label = created.fitted.first(rounds).margins(x[held])[:, 0], y[held]
        pairs = np.sign(margins[label][:, None] - margins[~label]) / 2 + 0.5
        assert history[rounds - 1] == pytest.approx(pairs.mean(), abs=4e-4)


def test_training_when_callback_returns_true_then_ends():
    numbers = []

    def is_enough(report):
        numbers.append(report.number)
        return report.number == 2

    created = fit(GBTRegressor(maxIter=9, maxDepth=2).onRound(is_enough), X, Y)
    assert (numbers, created.getNumTrees, created.summary.reason) == ([1, 2], 2, "the callback has ended it")


def test_predictions_when_first_trees_are_asked_then_their_sum():
    created = fit(GBTClassifier(maxIter=4, maxDepth=3), X, Y > 0)
    short = created.copy({created.numTrees: 2})
    expected = created.fitted.predictProbability(X, numTrees=2)[0, 1]
    assert short.predictProbability(X[0])[1] == expected != created.predictProbability(X[0])[1]
    with pytest.raises(ConfigError, match="numTrees: expected a number from 1 to 4, got 5"):
        created.setNumTrees(5).predict(X[0])


@pytest.mark.parametrize("file", ["model.json", "model.onnx"])
def test_files_when_first_trees_are_asked_then_hold_these(tmp_path, file):
    created, path = fit(GBTRegressor(maxIter=4, maxDepth=3), X, Y).setNumTrees(2), str(tmp_path / file)
    if file == "model.json":
        created.saveXGBoost(path)
        predictions = xgboost.Booster(model_file=path).predict(xgboost.DMatrix(X))
    else:
        export(created, path)
        predictions = onnxruntime.InferenceSession(path).run(["prediction"], {"features": X.astype(float)})[0]
    np.testing.assert_allclose(predictions, created.fitted.predict(X), atol=1e-6)
