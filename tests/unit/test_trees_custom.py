"""Objectives and metrics of boosted trees that are users' functions."""

from __future__ import annotations

from functools import partial

import numba
import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms import GBTClassifier, GBTRanker, GBTRegressor
from ps2.algorithms.trees.custom_functions import RowFunction
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.program import boosting_settings, train
from ps2.errors import ConfigError, UsageError, WorkerError
from tests import plans
from tests.boosting import CATEGORIES, FEATURES, SHORT, digest, facts_of, table
from tests.in_process import ArrayTable, training_context
from tests.tree_estimators import data, fit, same_trees

X, Y = data()
WEIGHTS = 0.5 + np.arange(len(Y)) % 4
HELD = np.arange(len(Y)) % 3 == 0
SMALL = {"maxIter": 4, "maxDepth": 3, "stepSize": 0.3}


def squared(margins, labels, weights):
    return (margins - labels) * weights, weights


def logistic(margins, labels, weights):
    p = 1 / (1 + np.exp(-margins))
    return (p - labels) * weights, p * (1 - p) * weights


def softmax(margins, labels, weights):
    odds = np.exp(margins - margins.max(axis=1, keepdims=True))
    p = odds / odds.sum(axis=1, keepdims=True)
    is_class = np.arange(margins.shape[1]) == labels[:, None]
    return (p - is_class) * weights[:, None], 2 * p * (1 - p) * weights[:, None]


def asymmetric(margins, labels, weights, under=4.0):
    residuals = margins - labels
    slopes = np.where(residuals < 0, under, 1.0) * weights
    return slopes * residuals, slopes


def mean_error(margins, labels, weights):
    return (weights * np.abs(margins - labels)).sum(), weights.sum()


@pytest.mark.parametrize(
    ("maker", "function", "y"),
    [
        (GBTRegressor, squared, Y),
        (GBTRegressor, numba.njit(nogil=True)(squared), Y),
        (GBTClassifier, logistic, (Y > 0).astype(float)),
        (GBTClassifier, softmax, np.digitize(Y, [-0.5, 0.5]).astype(float)),
    ],
)
@pytest.mark.parametrize("via", ["servers", "local"])
def test_objective_when_formula_of_loss_then_its_trees(maker, function, y, via):
    params = {**SMALL, "weightCol": "w", "via": via, "subsamplingRate": 0.8, "defaults": "xgboost"}
    ours, theirs = fit(maker(**params, objective=function), X, y, w=WEIGHTS), fit(maker(**params), X, y, w=WEIGHTS)
    for tree, expected in zip(ours.fitted.forest.trees, theirs.fitted.forest.trees, strict=True):
        for name in ("feature", "threshold", "left", "count"):
            np.testing.assert_array_equal(getattr(tree, name), getattr(expected, name))
        # Gradients are rounded to 2^-60 of their sum. The unit is that of exact sums, not of their bounds.
        np.testing.assert_allclose(tree.value, expected.value, rtol=1e-12, atol=1e-12)
    assert ours.summary.objectiveHistory == pytest.approx(theirs.summary.objectiveHistory)
    assert ours.predict(X[0]) == theirs.predict(X[0])


@pytest.mark.parametrize("via", ["servers", "local"])
def test_objective_when_one_round_then_bits_of_loss(via):
    params = {**SMALL, "maxIter": 1, "via": via}
    ours, theirs = fit(GBTRegressor(**params, objective=squared), X, Y), fit(GBTRegressor(**params), X, Y)
    assert digest(ours.fitted.forest) == digest(theirs.fitted.forest)


def test_objective_when_fleets_differ_then_same_bits():
    x, y = table()
    problem = TreeProblem(
        Objective("squared", function=RowFunction("objective", asymmetric)), FEATURES, (0.3,), categories=CATEGORIES
    )
    digests = set()
    for servers, workers, via, sparse in ((1, 1, "servers", True), (3, 2, "servers", False), (2, 1, "local", False)):
        rows = ArrayTable.of(sp.csr_array(x) if sparse else x, y, workers)
        with training_context(servers) as ps:
            trained = train(ps, rows, problem, plans.changed(SHORT, via=via), facts_of(y))
            digests.add(digest(trained.model))
    assert len(digests) == 1


def test_objective_when_asymmetric_then_leaf_is_expectile():
    model = fit(GBTRegressor(maxIter=20, maxDepth=0, stepSize=1.0, objective=asymmetric), X, Y)
    gradients, _ = asymmetric(model.fitted.predict(X), Y, np.ones(len(Y)))
    assert gradients.sum() == pytest.approx(0, abs=1e-9)


def test_objective_when_loss_has_link_then_predictions_are_means():
    def gamma(margins, labels, weights):
        ratio = labels * np.exp(-margins)
        return (1 - ratio) * weights, ratio * weights

    y = np.exp(Y)
    model = fit(GBTRegressor(maxIter=60, maxDepth=3, stepSize=0.3, lossType="poisson", objective=gamma), X, y)
    assert np.median(np.abs(np.log(model.fitted.predict(X) / y))) < 0.2


def test_estimator_when_it_has_function_then_is_not_saved(tmp_path):
    for name in ("objective", "customMetric"):
        with pytest.raises(UsageError, match=f"{name}: a file of the estimator would lack the function"):
            GBTRegressor(**{name: squared}).save(str(tmp_path / "estimator"))
    assert GBTRegressor(objective=squared).copy()._custom_objective is not None
    assert GBTRegressor(objective=squared).setObjective(None)._custom_objective is None


# -- metrics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_metric_when_formula_of_mae_then_its_history(workers):
    params = {**SMALL, "maxIter": 9, "validationIndicatorCol": "held", "earlyStoppingRounds": 2, "numWorkers": workers}
    ours = fit(GBTRegressor(**params, customMetric=mean_error, maximize=False), X, Y, held=HELD)
    theirs = fit(GBTRegressor(**params, evalMetric="mae"), X, Y, held=HELD)
    assert ours.summary.validationHistory == pytest.approx(theirs.summary.validationHistory)
    assert ours.summary.objectiveHistory == theirs.summary.objectiveHistory
    assert same_trees(ours, theirs)


def test_metric_when_worker_holds_no_rows_out_then_not_called():
    def error_of_rows(margins, labels, weights):
        assert len(labels)
        return np.abs(margins - labels).sum(), float(len(labels))

    held = np.arange(len(Y)) == 0
    params = {**SMALL, "validationIndicatorCol": "held", "validationTol": 0.0, "numWorkers": 3, "via": "servers"}
    model = fit(GBTRegressor(**params, customMetric=error_of_rows, maximize=False), X, Y, held=held)
    assert np.isfinite(model.summary.validationHistory).all()


def test_metric_when_larger_is_better_then_keeps_largest():
    def negative_error(margins, labels, weights):
        total, weight = mean_error(margins, labels, weights)
        return -total, weight

    params = {**SMALL, "maxIter": 9, "validationIndicatorCol": "held", "earlyStoppingRounds": 2}
    low = fit(GBTRegressor(**params, customMetric=mean_error, maximize=False), X, Y, held=HELD)
    high = fit(GBTRegressor(**params, customMetric=negative_error, maximize=True), X, Y, held=HELD)
    assert high.summary.validationHistory == pytest.approx([-value for value in low.summary.validationHistory])
    assert high.getNumTrees == low.getNumTrees > 1
    assert (
        "negative_error"
        in fit(GBTRegressor(**params, customMetric=negative_error, maximize=False), X, Y, held=HELD).summary.reason
    )


def test_metric_when_objective_is_custom_then_is_the_history():
    model = fit(GBTRegressor(**SMALL, objective=squared, customMetric=mean_error, maximize=False), X, Y)
    assert model.summary.objectiveHistory[-1] == pytest.approx(np.abs(model.fitted.predict(X) - Y).mean())


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda m, y, w: m - y, "expected to return two arrays, gradients and hessians, got an array of float64"),
        (lambda m, y, w: (m - y, 1.0), r"hessians as an array of numbers, shape \(2,\), got a float"),
        (lambda m, y, w: (m[:, None], w), r"gradients as an array of numbers, shape \(2,\), got .* shape \(2, 1\)"),
        (lambda m, y, w: (m - y, w.astype(complex)), "hessians as an array of numbers, .* got an array of complex128"),
        (lambda m, y, w: (m - y, y - 9), "expected to return hessians that are not negative, got .* for margin 0 and"),
        (lambda m, y, w: (m * np.nan, w), "expected to return finite gradients, got nan for margin 0 and label"),
        (lambda m, y, w: (m - y + y.mean(), w), "the gradient of each row from this row alone, got others"),
        (lambda m, y, w: (m - y, w / {}["k"]), r"failed in line \d+ of .*test_trees_custom.py: KeyError: 'k'"),
    ],
)
def test_objective_when_result_is_unusable_then_error_names_it(result, message):
    with pytest.raises(WorkerError, match=rf"objective: <lambda>\(\) .*{message}"):
        fit(GBTRegressor(**SMALL, objective=result), X, Y)


def test_objective_when_it_fails_in_worker_then_error_names_row():
    def breaks(margins, labels, weights):
        return np.where(margins > 1, np.inf, margins - labels), weights

    with pytest.raises(WorkerError, match=r"objective: breaks\(\) expected .* finite gradients, got inf for margin 1"):
        fit(GBTRegressor(**SMALL, objective=breaks), X, Y)


def test_metric_when_result_is_unusable_then_error_names_it():
    params = {"validationIndicatorCol": "held", "maximize": False}
    for result in (0.5, (1.0, -1.0), (np.nan, 1.0), (np.ones(2), 1.0)):
        with pytest.raises(WorkerError, match=r"customMetric: <lambda>\(\) expected to return two finite numbers"):
            fit(GBTRegressor(**params, customMetric=lambda m, y, w, result=result: result), X, Y, held=HELD)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"objective": squared, "validationIndicatorCol": "held"},
            "objective: expected with evalMetric or customMetric",
        ),
        ({"customMetric": mean_error, "validationIndicatorCol": "held"}, "maximize: expected True or False"),
        ({"maximize": True}, "maximize: expected with customMetric"),
        ({"customMetric": mean_error, "maximize": True}, "customMetric: expected with validationIndicatorCol or"),
        (
            {"customMetric": mean_error, "maximize": True, "evalMetric": "mae", "validationIndicatorCol": "held"},
            "evalMetric: expected without customMetric, got 'mae'",
        ),
    ],
)
def test_functions_when_params_contradict_then_config_error(params, message):
    with pytest.raises(ConfigError, match=message):
        fit(GBTRegressor(**params), X, Y, held=HELD)


def test_objective_when_no_function_then_config_error():
    with pytest.raises(ConfigError, match=r"objective: expected a function of .*, got 'huber'; lossType names"):
        GBTRegressor(objective="huber")
    with pytest.raises(TypeError, match="there is no param 'objective'"):
        GBTRanker(objective=squared)


# -- what another driver must share ------------------------------------------------------------------------------------


def test_fingerprint_when_code_or_values_change_then_differs():
    def scaled(factor):
        return lambda margins, labels, weights: (factor * (margins - labels), weights)

    functions = [squared, logistic, asymmetric, scaled(1.0), scaled(2.0), partial(asymmetric, under=2.0)]
    prints = [RowFunction("objective", function).fingerprint for function in functions]
    assert len(set(prints)) == len(functions)
    assert prints[0].startswith("squared ")
    for same, expected in ((scaled(1.0), prints[3]), (numba.njit(squared), prints[0])):
        assert RowFunction("objective", same).fingerprint == expected


def test_settings_when_objective_is_custom_then_have_fingerprint():
    plan = plans.boosting()
    problems = [
        TreeProblem(Objective("squared", function=function and RowFunction("objective", function)), 3, (0.0,))
        for function in (None, squared, asymmetric)
    ]
    settings = [boosting_settings(problem, plan, 10, None)["objective"] for problem in problems]
    assert "function" not in settings[0]
    assert settings[1]["function"] != settings[2]["function"]
