"""Linear models whose training begins with a model, ours or pyspark.ml's."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml import classification, regression
from pyspark.ml.linalg import Vectors

from ps2 import algorithms
from ps2.algorithms import FMRegressor, LinearRegression, LinearSVC, LogisticRegression
from ps2.errors import ConfigError, UsageError

pytestmark = pytest.mark.usefixtures("ps")

ROWS = 60
PENALTY = {"labelCol": "two", "regParam": 0.05}


@pytest.fixture(scope="module")
def df(spark):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(ROWS, 3)) * [1.0, 10.0, 0.1] + [0.0, 50.0, 0.0]
    value = x @ [1.0, -0.2, 5.0] + rng.normal(size=ROWS) + 12
    three = np.digitize(value, [1.5, 2.5]).astype(float)
    rows = [(Vectors.dense(x[i]), float(value[i]), float(value[i] > 2), float(three[i])) for i in range(ROWS)]
    return spark.createDataFrame(rows, ["features", "value", "two", "three"]).coalesce(2).cache()


def numbers(model):
    if hasattr(model, "linear"):
        return np.array([*model.linear, *model.factors.toArray().reshape(-1), model.intercept])
    if hasattr(model, "coefficientMatrix"):
        return np.concatenate([model.coefficientMatrix.toArray().reshape(-1), model.interceptVector.toArray()])
    return np.array([*model.coefficients, model.intercept, *([model.scale] if hasattr(model, "scale") else [])])


CASES = [
    (classification, "LogisticRegression", PENALTY, {}),
    (classification, "LogisticRegression", PENALTY, {"standardization": False, "elasticNetParam": 1.0}),
    (classification, "LogisticRegression", PENALTY, {"solver": "ma-sgd", "standardization": False, "via": "servers"}),
    (classification, "LogisticRegression", {"labelCol": "three", "regParam": 0.05}, {"numWorkers": 2}),
    (classification, "LinearSVC", PENALTY, {"solver": "minibatch", "loss": "squaredHinge"}),
    (regression, "LinearRegression", {"labelCol": "value", "regParam": 0.05}, {"solver": "l-bfgs"}),
    (regression, "LinearRegression", {"labelCol": "value", "loss": "huber"}, {}),
    (regression, "FMRegressor", {"labelCol": "value", "factorSize": 2, "maxIter": 3}, {}),
]


@pytest.mark.parametrize(("module", "name", "params", "ours"), CASES, ids=lambda value: str(value)[:40])
def test_fit_when_it_takes_no_step_then_initial_model(df, module, name, params, ours):
    theirs = getattr(module, name)(**params).fit(df)
    begun = getattr(algorithms, name)(**{**params, **ours, "maxIter": 0}, initialModel=theirs).fit(df)
    np.testing.assert_allclose(numbers(begun), numbers(theirs), rtol=1e-6, atol=1e-7)


def test_fit_when_it_begins_at_minimum_then_it_stays_there(df):
    exact = {**PENALTY, "tol": 1e-10, "maxIter": 100}
    cold = LogisticRegression(**exact).fit(df)
    warm = LogisticRegression(**exact, initialModel=cold).fit(df)
    assert warm.summary.objectiveHistory[0] == pytest.approx(cold.summary.objectiveHistory[-1], rel=1e-12)
    assert warm.summary.totalIterations <= 2
    np.testing.assert_allclose(numbers(warm), numbers(cold), rtol=1e-4)


def test_fit_when_averaged_first_then_minimum_in_fewer_steps(df):
    """The hybrid of MLlib*'s Figure 5: model averaging, then L-BFGS from there."""
    ways = {"labelCol": "value", "regParam": 0.1, "tol": 1e-8, "solver": "l-bfgs", "maxIter": 100}
    averaged = LinearRegression(**{**ways, "solver": "ma-sgd", "maxIter": 10}, stepSize=1e-2).fit(df)
    cold, warm = LinearRegression(**ways).fit(df), LinearRegression(**ways, initialModel=averaged).fit(df)
    assert warm.summary.objectiveHistory[0] == pytest.approx(averaged.summary.objectiveHistory[-1])
    assert warm.summary.objectiveHistory[-1] == pytest.approx(cold.summary.objectiveHistory[-1], rel=1e-6)
    assert warm.summary.totalIterations < cold.summary.totalIterations


def test_fit_when_initial_model_does_not_suit_then_error(df):
    binomial = LogisticRegression(**PENALTY, maxIter=2).fit(df)
    for params, message in (
        ({"labelCol": "three"}, "initialModel: expected a model of classes 3, .* got 2"),
        ({"fitIntercept": False}, "initialModel: expected no intercept, as fitIntercept is False"),
        ({"solver": "sap", "elasticNetParam": 1.0}, "initialModel: solver 'sap' begins with the model of all zeros"),
        ({"optimizer": "ftrl"}, "initialModel: the weights of optimizer 'ftrl' follow from sums of gradients"),
        ({"featuresCol": ["value", "three"]}, "initialModel: expected a model of features 2, .* got 3"),
    ):
        with pytest.raises(ConfigError, match=message):
            LogisticRegression(**{**PENALTY, **params}, initialModel=binomial).fit(df)
    linear = LinearRegression(labelCol="value").fit(df)
    with pytest.raises(ConfigError, match="solver 'normal' computes the minimum at once"):
        LinearRegression(labelCol="value", solver="normal", initialModel=linear).fit(df)
    machine = FMRegressor(labelCol="value", factorSize=2, maxIter=1, stepSize=1e-3).fit(df)
    with pytest.raises(ConfigError, match=r"initialModel: expected a model of factorSize 3, .* got 2"):
        FMRegressor(labelCol="value", factorSize=3, initialModel=machine).fit(df)


def test_initial_model_when_of_another_kind_then_config_error(df, tmp_path):
    binomial = LogisticRegression(**PENALTY, maxIter=1).fit(df)
    with pytest.raises(
        ConfigError, match=r"initialModel: expected a model of LinearSVC.*, got LogisticRegressionModel"
    ):
        LinearSVC(initialModel=binomial)
    with pytest.raises(ConfigError, match="initialModel: expected a model of boosted trees, got int"):
        algorithms.GBTRegressor(initialModel=3)
    with pytest.raises(UsageError, match="initialModel: a file of the estimator would lack it"):
        LogisticRegression(initialModel=binomial).save(str(tmp_path / "estimator"))
