"""Coefficients agree with those of pyspark.ml's own estimators, on the same data with the same params."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml import classification, regression
from pyspark.ml.linalg import Vectors

from ps2 import algorithms

pytestmark = pytest.mark.usefixtures("ps")

ROWS, DIM = 80, 4
EXACT = {"maxIter": 200, "tol": 1e-12}
SCALES = np.array([1.0, 10.0, 0.1, 3.0])


@pytest.fixture(scope="module")
def df(spark):
    """Features of different scales, a third of them 0; labels of two and of three classes, and numbers; weights."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(ROWS, DIM)) * SCALES * (rng.random((ROWS, DIM)) < 0.7)
    value = x @ (np.array([1.0, -2.0, 0.5, 0.7]) / SCALES) + rng.normal(size=ROWS) + 2
    rows = [
        (Vectors.dense(x[i]) if i % 2 else Vectors.sparse(DIM, np.flatnonzero(x[i]), x[i][x[i] != 0]), value[i])
        for i in range(ROWS)
    ]
    frame = spark.createDataFrame([(vector, float(v)) for vector, v in rows], ["features", "value"])
    return (
        frame.selectExpr(
            "features",
            "value",
            "double(value > 2) as two",
            "double(case when value > 3 then 2 when value > 1 then 1 else 0 end) as three",
            "abs(value) + 0.1 as weight",
        )
        .coalesce(2)
        .cache()
    )


def found(model):
    """All numbers of a model, one after the other."""
    if hasattr(model, "coefficientMatrix"):
        return np.concatenate([model.coefficientMatrix.toArray().reshape(-1), model.interceptVector.toArray()])
    scale = [model.scale] if hasattr(model, "scale") else []
    return np.array([*model.coefficients, model.intercept, *scale])


CASES = [
    (classification, "LogisticRegression", {"labelCol": "two", "regParam": 0.1}),
    (classification, "LogisticRegression", {"labelCol": "two", "regParam": 0.1, "standardization": False}),
    (classification, "LogisticRegression", {"labelCol": "two", "regParam": 0.05, "elasticNetParam": 0.5}),
    (
        classification,
        "LogisticRegression",
        {"labelCol": "two", "regParam": 0.05, "elasticNetParam": 0.5, "standardization": False, "weightCol": "weight"},
    ),
    (classification, "LogisticRegression", {"labelCol": "two", "regParam": 0.1, "fitIntercept": False}),
    (classification, "LogisticRegression", {"labelCol": "two", "regParam": 0.1, "family": "multinomial"}),
    (classification, "LogisticRegression", {"labelCol": "three", "regParam": 0.1, "weightCol": "weight"}),
    (classification, "LogisticRegression", {"labelCol": "three", "regParam": 0.05, "elasticNetParam": 0.3}),
    (classification, "LogisticRegression", {"labelCol": "three", "regParam": 0.0}),
    (regression, "LinearRegression", {"labelCol": "value", "regParam": 0.3, "weightCol": "weight"}),
    (regression, "LinearRegression", {"labelCol": "value", "regParam": 0.3, "standardization": False}),
    (regression, "LinearRegression", {"labelCol": "value", "regParam": 0.3, "elasticNetParam": 0.5}),
    (regression, "LinearRegression", {"labelCol": "value", "regParam": 0.2, "fitIntercept": False}),
    (regression, "LinearRegression", {"labelCol": "value", "regParam": 0.3, "loss": "huber"}),
]


@pytest.mark.parametrize(("theirs", "name", "params"), CASES)
def test_fit_when_pyspark_fits_the_same_then_coefficients_agree(df, theirs, name, params):
    solver = {"solver": "l-bfgs"} if name == "LinearRegression" else {}
    expected = found(getattr(theirs, name)(**params, **EXACT, **solver).fit(df))
    np.testing.assert_allclose(found(getattr(algorithms, name)(**params, **EXACT).fit(df)), expected, atol=1e-3)
