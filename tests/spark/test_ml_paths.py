"""``fitPath`` and solver "sap" of the estimators: models of several strengths, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lasso import correlated, largest_strength, violation
from pyspark.ml import regression
from training import Rows

from ps2.algorithms import LinearRegression, LinearRegressionModel, LogisticRegression
from ps2.algorithms.linear.plan import Problem
from ps2.errors import ConfigError, InputError

pytestmark = pytest.mark.usefixtures("ps")

LASSO = {"elasticNetParam": 1.0, "solver": "sap", "weightCol": "weight", "tol": 1e-9}


@pytest.fixture(scope="module")
def rows():
    return correlated()


@pytest.fixture(scope="module")
def frame(spark, rows):
    return rows.frame(spark)


@pytest.fixture(scope="module")
def two():
    return correlated(classes=True)


@pytest.fixture(scope="module")
def two_frame(spark, two):
    return two.frame(spark)


@pytest.mark.nightly
def test_fit_when_solver_is_sap_then_is_pysparks_model(spark, rows):
    from pyspark.ml.functions import array_to_vector

    frame = replace(rows, c=np.ones(80)).frame(spark).withColumn("features", array_to_vector("features"))
    params = {"regParam": 0.05, "elasticNetParam": 0.5}
    theirs = regression.LinearRegression(tol=1e-12, maxIter=1000, solver="l-bfgs", **params).fit(frame)
    ours = LinearRegression(**{**LASSO, **params, "weightCol": ""}).fit(frame)
    np.testing.assert_allclose(ours.coefficients.toArray(), theirs.coefficients.toArray(), atol=1e-5)
    assert ours.intercept == pytest.approx(theirs.intercept, abs=1e-5)
    assert ours.summary.reason == "the duality gap is within the tolerance"


def test_path_when_fitted_then_models_are_those_of_fit(frame, rows):
    estimator = LinearRegression(**LASSO, lambdaPath=[1.0, 0.3, 0.05])
    path = estimator.fitPath(frame)
    assert path.lambdas == [1.0, 0.3, 0.05]
    assert path.nonzeros == [np.count_nonzero(model.coefficients.toArray()) for model in path]
    assert len(path[1:]) == 2
    for model in path:
        assert isinstance(model, LinearRegressionModel)
        alone = LinearRegression(**LASSO, regParam=model.getRegParam()).fit(frame)
        np.testing.assert_allclose(model.coefficients.toArray(), alone.coefficients.toArray(), atol=1e-6)
        assert model.summary.objectiveHistory[-1] == pytest.approx(alone.summary.objectiveHistory[-1], rel=1e-8)
        assert (
            violation(
                Problem("squared", 12, l1=model.getRegParam()), rows, alone.coefficients.toArray(), alone.intercept
            )
            < 1e-6
        )


def test_path_when_counted_then_is_of_logistic_models_too(two_frame, two):
    params = {**LASSO, "solver": "auto", "elasticNetParam": 0.5}
    path = LogisticRegression(**params, lambdaCount=4, lambdaRatio=0.1).fitPath(two_frame)
    largest = 2 * largest_strength(Problem("logistic", 12, l1=1.0), two)
    np.testing.assert_allclose(path.lambdas, largest * 0.1 ** (np.arange(4) / 3))
    assert path.nonzeros[0] == 0 < path.nonzeros[-1]
    one = path[-1]
    problem = Problem("logistic", 12, l1=one.getRegParam() / 2, l2=one.getRegParam() / 2)
    assert violation(problem, two, one.coefficients.toArray(), one.intercept) < 1e-6
    assert one.transform(two_frame).filter("prediction = label").count() > 50


def test_maps_when_of_strengths_alone_then_are_one_path(two_frame, two):
    estimator = LogisticRegression(**LASSO)
    maps = [{estimator.regParam: value} for value in (0.02, 0.1, 0.02, 0.05)]
    models = estimator.fit(two_frame, maps)
    assert [model.getRegParam() for model in models] == [0.02, 0.1, 0.02, 0.05]
    for model in models:
        problem = Problem("logistic", 12, l1=model.getRegParam())
        assert violation(problem, two, model.coefficients.toArray(), model.intercept) < 1e-6
    assert models[1].summary.objectiveHistory[0] > models[3].summary.objectiveHistory[0]  # which began with that


def test_maps_when_of_other_params_too_then_are_single_fits(two_frame):
    estimator = LogisticRegression(**LASSO, regParam=0.1)
    models = estimator.fit(two_frame, [{estimator.fitIntercept: False}, {estimator.regParam: 0.05}])
    assert [(model.intercept == 0, model.getRegParam()) for model in models] == [(True, 0.1), (False, 0.05)]


def test_path_when_saved_then_models_are_read_again(frame, tmp_path):
    model = LinearRegression(**LASSO, lambdaPath=[0.3, 0.05]).fitPath(frame)[-1]
    model.write().save(str(tmp_path / "model"))
    read = LinearRegressionModel.load(str(tmp_path / "model"))
    assert read.coefficients == model.coefficients
    assert read.getRegParam() == 0.05


def test_path_when_rows_are_of_one_class_then_is_infinite(spark, two):
    frame = replace(two, y=np.ones(80)).frame(spark)
    path = LogisticRegression(**LASSO, lambdaPath=[0.3, 0.05]).fitPath(frame)
    assert [model.intercept for model in path] == [np.inf, np.inf]
    with pytest.raises(
        InputError, match="lambdaPath: expected values, as all models of rows of one class are the same"
    ):
        LogisticRegression(**LASSO).fitPath(frame)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"lambdaPath": [0.1, 0.2]}, "expected finite positive numbers, each smaller than the previous one"),
        ({"lambdaPath": [0.1, 0.0]}, "lambdaPath: expected finite positive numbers"),
        ({"lambdaPath": []}, "lambdaPath: expected finite positive numbers"),
        ({"lambdaPath": [float("nan")]}, "lambdaPath: expected finite positive numbers"),
        ({"lambdaCount": 0}, "lambdaCount: expected at least 1, got 0"),
        ({"lambdaRatio": 1.0}, r"lambdaRatio: expected a number in \(0, 1\), got 1.0"),
        ({"solver": "l-bfgs"}, "solver: fitPath trains with 'sap', got 'l-bfgs'"),
        ({"elasticNetParam": 0.0}, "solver: 'sap' is for L1 penalties"),
    ],
)
def test_path_when_params_cannot_be_then_error_names_them(two_frame, params, message):
    with pytest.raises(ConfigError, match=message):
        LinearRegression(**{**LASSO, **params}).fitPath(two_frame)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_path_when_a_feature_is_no_number_then_error_counts(spark, value):
    x = np.ones((6, 2))
    x[2, 1] = value
    frame = Rows(x, np.arange(6.0), np.ones(6), (3,)).frame(spark)
    with pytest.raises(InputError, match=r"1 .*row"):
        LinearRegression(**LASSO).fitPath(frame)
