"""Estimators and pyspark.ml's own fit the same DataFrame; ``unit/test_pyspark_agreement.py`` has all other params."""

from __future__ import annotations

import numpy as np
import pyspark_fits as fits
import pytest
from array_fits import numbers
from pyspark.ml import classification, regression

from ps2 import algorithms

pytestmark = pytest.mark.usefixtures("ps")


@pytest.fixture(scope="module")
def df(spark):
    return fits.frame(spark, fits.scaled())


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["two, elastic, unscaled", "three"])
def test_logistic_when_pyspark_fits_the_same_then_agree(df, name):
    theirs, ours = (
        numbers(package.LogisticRegression(**fits.LOGISTIC[name], **fits.EXACT).fit(df))
        for package in (classification, algorithms)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


@pytest.mark.nightly
@pytest.mark.parametrize("solver", ["l-bfgs", "normal"])
def test_linear_when_pyspark_fits_the_same_then_agree(df, solver):
    params = {"labelCol": "value", "regParam": 0.3, "weightCol": "weight", "solver": solver, **fits.EXACT}
    theirs, ours = (numbers(package.LinearRegression(**params).fit(df)) for package in (regression, algorithms))
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


@pytest.mark.nightly
def test_svc_when_pyspark_fits_the_same_then_objectives_agree(df):
    """The hinge has no gradient at its corner, where both stop near the minimum."""
    table = fits.scaled()
    x, sign = table["features"], 2 * table["two"] - 1

    def objective(model):
        w = model.coefficients.toArray()
        scaled = w * x.std(axis=0, ddof=1)
        return np.maximum(1 - sign * (x @ w + model.intercept), 0).mean() + 0.05 * scaled @ scaled

    params = {"labelCol": "two", "regParam": 0.1, "maxIter": 200}
    theirs, ours = (package.LinearSVC(**params).fit(df) for package in (classification, algorithms))
    assert objective(ours) == pytest.approx(objective(theirs), rel=0.02)


@pytest.mark.parametrize(
    ("package", "name", "params"),
    [
        (classification, "LogisticRegression", {"labelCol": "two", "regParam": 0.05}),
        (classification, "LinearSVC", {"labelCol": "two", "regParam": 0.05, "maxIter": 5}),
        (regression, "LinearRegression", {"labelCol": "value", "loss": "huber"}),
        (regression, "FMRegressor", {"labelCol": "value", "factorSize": 2, "maxIter": 3}),
    ],
)
def test_fit_when_it_takes_no_step_then_is_pysparks_model(df, package, name, params):
    theirs = getattr(package, name)(**params).fit(df)
    begun = getattr(algorithms, name)(**{**params, "maxIter": 0}, initialModel=theirs).fit(df)
    np.testing.assert_allclose(numbers(begun), numbers(theirs), rtol=1e-6, atol=1e-7)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_recorded_fits_when_pyspark_fits_again_then_are_the_same(spark):
    theirs, recorded = fits.computed(spark), fits.recorded()
    assert theirs.keys() == recorded.keys() - {"pyspark"}
    for name, result in theirs.items():
        assert_near(result, recorded[name], name)


def assert_near(found, expected, name):
    """Compare nested lists and dicts of numbers and words."""
    if isinstance(found, dict):
        for key in found.keys() | expected.keys():
            assert_near(found[key], expected[key], f"{name}: {key}")
    elif isinstance(found, (list, tuple)):
        assert len(found) == len(expected), name
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other, name)
    elif isinstance(found, float):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9), name
    else:
        assert found == expected, name
