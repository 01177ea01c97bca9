"""Linear models whose training begins with a model, ours or pyspark.ml's."""

from __future__ import annotations

import numpy as np
import pytest
from array_fits import fit_arrays, numbers

from ps2 import algorithms
from ps2.algorithms import FMRegressor, LinearRegression, LinearSVC, LogisticRegression
from ps2.errors import ConfigError, UsageError

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 3)) * [1.0, 10.0, 0.1] + [0.0, 50.0, 0.0]
VALUE = X @ [1.0, -0.2, 5.0] + RNG.normal(size=60) + 12
COLUMNS = {"value": VALUE, "two": (VALUE > 2).astype(float), "three": np.digitize(VALUE, [1.5, 2.5]).astype(float)}
PENALTY = {"labelCol": "two", "regParam": 0.05}


def fit(estimator, x=X):
    return fit_arrays(estimator, x, **COLUMNS)


CASES = [
    ("LogisticRegression", PENALTY, {}),
    ("LogisticRegression", PENALTY, {"standardization": False, "elasticNetParam": 1.0}),
    ("LogisticRegression", PENALTY, {"solver": "ma-sgd", "standardization": False, "via": "servers"}),
    ("LogisticRegression", {"labelCol": "three", "regParam": 0.05}, {"numWorkers": 2}),
    ("LinearSVC", PENALTY, {"solver": "minibatch", "loss": "squaredHinge"}),
    ("LinearRegression", {"labelCol": "value", "regParam": 0.05}, {"solver": "l-bfgs"}),
    ("LinearRegression", {"labelCol": "value", "loss": "huber"}, {}),
    ("FMRegressor", {"labelCol": "value", "factorSize": 2, "maxIter": 3}, {}),
]


@pytest.mark.parametrize(("name", "params", "others"), CASES, ids=lambda value: str(value)[:40])
def test_fit_when_it_takes_no_step_then_initial_model(name, params, others):
    cls = getattr(algorithms, name)
    first = fit(cls(**params))
    begun = fit(cls(**{**params, **others, "maxIter": 0}, initialModel=first))
    np.testing.assert_allclose(numbers(begun), numbers(first), rtol=1e-6, atol=1e-7)


def test_fit_when_it_begins_at_minimum_then_it_stays_there():
    exact = {**PENALTY, "tol": 1e-10, "maxIter": 100}
    cold = fit(LogisticRegression(**exact))
    warm = fit(LogisticRegression(**exact, initialModel=cold))
    assert warm.summary.objectiveHistory[0] == pytest.approx(cold.summary.objectiveHistory[-1], rel=1e-12)
    assert warm.summary.totalIterations <= 2
    np.testing.assert_allclose(numbers(warm), numbers(cold), rtol=1e-4)


def test_fit_when_averaged_first_then_minimum_in_fewer_steps():
    """The hybrid of MLlib*'s Figure 5: model averaging, then L-BFGS from there."""
    variants = {"labelCol": "value", "regParam": 0.1, "tol": 1e-8, "solver": "l-bfgs", "maxIter": 100}
    averaged = fit(LinearRegression(**{**variants, "solver": "ma-sgd", "maxIter": 10}, stepSize=1e-2))
    cold, warm = fit(LinearRegression(**variants)), fit(LinearRegression(**variants, initialModel=averaged))
    assert warm.summary.objectiveHistory[0] == pytest.approx(averaged.summary.objectiveHistory[-1])
    assert warm.summary.objectiveHistory[-1] == pytest.approx(cold.summary.objectiveHistory[-1], rel=1e-6)
    assert warm.summary.totalIterations < cold.summary.totalIterations


def test_fit_when_initial_model_does_not_suit_then_error():
    binomial = fit(LogisticRegression(**PENALTY, maxIter=2))
    for params, message in (
        ({"labelCol": "three"}, "initialModel: expected a model of classes 3, .* got 2"),
        ({"fitIntercept": False}, "initialModel: expected no intercept, as fitIntercept is False"),
        ({"solver": "sap", "elasticNetParam": 1.0}, "initialModel: solver 'sap' starts from weights of 0"),
        ({"optimizer": "ftrl"}, "initialModel: optimizer 'ftrl' computes weights from sums of gradients"),
    ):
        with pytest.raises(ConfigError, match=message):
            fit(LogisticRegression(**{**PENALTY, **params}, initialModel=binomial))
    with pytest.raises(ConfigError, match=r"initialModel: expected a model of features 2, .* got 3"):
        fit(LogisticRegression(**PENALTY, initialModel=binomial), X[:, :2])
    linear = fit(LinearRegression(labelCol="value"))
    with pytest.raises(ConfigError, match="solver 'normal' computes the minimum at once"):
        fit(LinearRegression(labelCol="value", solver="normal", initialModel=linear))
    machine = fit(FMRegressor(labelCol="value", factorSize=2, maxIter=1, stepSize=1e-3))
    with pytest.raises(ConfigError, match=r"initialModel: expected a model of factorSize 3, .* got 2"):
        fit(FMRegressor(labelCol="value", factorSize=3, initialModel=machine))


def test_initial_model_when_of_another_kind_then_config_error(tmp_path):
    binomial = fit(LogisticRegression(**PENALTY, maxIter=1))
    with pytest.raises(
        ConfigError, match=r"initialModel: expected a model of LinearSVC.*, got LogisticRegressionModel"
    ):
        LinearSVC(initialModel=binomial)
    with pytest.raises(ConfigError, match="initialModel: expected a model of boosted trees, got int"):
        algorithms.GBTRegressor(initialModel=3)
    with pytest.raises(ConfigError, match="initialModel: expected a DeepFMModel, got LogisticRegressionModel"):
        algorithms.DeepFM(initialModel=binomial)
    with pytest.raises(UsageError, match="initialModel: a file of the estimator would lack it"):
        LogisticRegression(initialModel=binomial).save(str(tmp_path / "estimator"))
