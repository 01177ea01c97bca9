"""Logistic regression where pyspark.ml's own tests of it are hard: the same minimum, the same forms."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml import classification
from pyspark.ml.common import _java2py, _py2java
from pyspark.ml.linalg import DenseMatrix, SparseMatrix, Vectors
from pyspark.sql import functions as F
from scipy.optimize import minimize
from scipy.special import logsumexp

from ps2 import algorithms
from ps2.algorithms.linear.ml.models import as_matrix

pytestmark = pytest.mark.usefixtures("ps")

ROWS = 3000
MEANS = np.array([5.843, 3.057, 3.758, 10.199])
# The last feature hardly varies.
VARIANCES = np.array([0.6856, 0.1899, 3.116, 0.001])
WEIGHTS = np.array(
    [[0, 0, 0, 0], [-0.57997, 0.912083, -0.371077, -0.819866], [-0.16624, -0.84355, -0.048509, -0.301789]]
)
INTERCEPTS = np.array([0, 2.688191, 4.170682])


@pytest.fixture(scope="module")
def df(spark):
    return frame_of(spark, ROWS, MEANS, VARIANCES)


@pytest.fixture(scope="module")
def common(spark):
    """The last feature varies as others do, and classes are about as frequent."""
    return frame_of(spark, 500, [*MEANS[:3], 1.199], [*VARIANCES[:3], 0.581])


def frame_of(spark, count, means, variances):
    rng = np.random.default_rng(42)
    x = rng.normal(size=(count, 4)) * np.sqrt(variances) + means
    y = (x @ WEIGHTS.T + INTERCEPTS + rng.gumbel(size=(count, 3))).argmax(axis=1)
    rows = [(float(label), Vectors.dense(row), 0.1 + i % 10) for i, (label, row) in enumerate(zip(y, x, strict=True))]
    return spark.createDataFrame(rows, ["label", "features", "weight"]).coalesce(2).cache()


def both(df, **params):
    return [
        package.LogisticRegression(weightCol="weight", **params).fit(df) for package in (classification, algorithms)
    ]


@pytest.mark.parametrize(
    ("params", "exact"),
    [
        ({}, {"tol": 1e-12, "maxIter": 500}),
        ({"standardization": False}, {"tol": 1e-12, "maxIter": 500}),
        ({"elasticNetParam": 0.0001, "regParam": 0.5}, {}),
        ({"elasticNetParam": 1.0, "regParam": 0.05, "tol": 1e-5, "maxIter": 160}, {}),
        ({"elasticNetParam": 0.5, "regParam": 0.1, "tol": 1e-5, "standardization": False}, {}),
    ],
)
def test_multinomial_when_column_barely_varies_then_minimum(df, params, exact):
    theirs = both(df, **{**params, **exact})[0]
    ours = algorithms.LogisticRegression(weightCol="weight", **params).fit(df)
    assert ours.summary.objectiveHistory[-1] <= theirs.summary.objectiveHistory[-1] + 2e-7
    intercepts, its = ours.interceptVector.toArray(), theirs.interceptVector.toArray()
    np.testing.assert_allclose(intercepts, its, rtol=0.02, atol=0.02 * np.abs(its).max())


def minimum(rows, regParam=0.0, elasticNetParam=0.0, standardization=True, fitIntercept=True):
    """Return the least objective: weights are differences of two parts, so that an L1 penalty is smooth."""
    y = np.array([row.label for row in rows], dtype=int)
    weight = np.array([row.weight for row in rows]) / sum(row.weight for row in rows)
    x = np.array([row.features.toArray() for row in rows])
    mean = weight @ x
    scale = np.sqrt(weight @ (x - mean) ** 2 / (1.0 - weight @ weight))
    penalised = np.ones(x.shape[1]) if standardization else 1.0 / scale
    x = (x - mean * fitIntercept) / scale
    classes, width = y.max() + 1, x.shape[1]

    def objective(point):
        plus, minus, intercepts = np.split(point, [classes * width, 2 * classes * width])
        w = (plus - minus).reshape(classes, width)
        margins = x @ w.T + intercepts
        found = logsumexp(margins, axis=1)
        slopes = weight[:, None] * (np.exp(margins - found[:, None]) - np.eye(classes)[y])
        l1, l2 = regParam * elasticNetParam * penalised, regParam * (1.0 - elasticNetParam) * penalised**2
        value = weight @ (found - margins[np.arange(len(y)), y]) + 0.5 * (l2 * w**2).sum()
        dw = (slopes.T @ x + l2 * w).reshape(-1)
        sizes = np.tile(l1, classes)
        of_intercepts = slopes.sum(axis=0) * fitIntercept
        return value + sizes @ (plus + minus), np.concatenate([dw + sizes, sizes - dw, of_intercepts])

    signed = 2 * classes * width
    limits = [(0.0, None)] * signed + [(None, None)] * classes
    if classes == 2:  # of two classes only one has weights
        limits = ([(0.0, 0.0)] * width + [(0.0, None)] * width) * 2 + [(0.0, 0.0), (None, None)]
    return minimize(
        objective,
        np.zeros(signed + classes),
        jac=True,
        method="L-BFGS-B",
        bounds=limits,
        options={"maxiter": 10**4, "maxfun": 10**5, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 50},
    ).fun


NONE, RIDGE, LASSO = {}, {"regParam": 0.1}, {"regParam": 0.05, "elasticNetParam": 1.0}
ELASTIC = {"regParam": 0.1, "elasticNetParam": 0.5}


AS_GIVEN, THROUGH_0 = {"standardization": False}, {"fitIntercept": False}


@pytest.mark.parametrize(
    ("classes", "form", "penalty"),
    [
        (2, AS_GIVEN, NONE),
        (3, THROUGH_0, NONE),
        (2, THROUGH_0, RIDGE),
        (3, AS_GIVEN, RIDGE),
        (2, AS_GIVEN, LASSO),
        (3, THROUGH_0, LASSO),
        (2, THROUGH_0, ELASTIC),
        (3, AS_GIVEN, ELASTIC),
    ],
)
def test_fit_when_penalties_differ_then_the_minimum_is_found(common, classes, form, penalty):
    frame = common.where(F.col("label") < classes)
    model = algorithms.LogisticRegression(weightCol="weight", **form, **penalty).fit(frame)
    least = minimum(frame.collect(), **form, **penalty)
    assert model.summary.objectiveHistory[-1] == pytest.approx(least, rel=1e-6)


def test_multinomial_when_bounds_hold_intercepts_then_minimum(df):
    params = {
        "lowerBoundsOnCoefficients": DenseMatrix(3, 4, [1.0] * 12),
        "lowerBoundsOnIntercepts": Vectors.dense([1.0] * 3),
        "upperBoundsOnCoefficients": DenseMatrix(3, 4, [2.0] * 12),
        "upperBoundsOnIntercepts": Vectors.dense([2.0] * 3),
    }
    theirs, ours = both(df, **params)
    assert ours.summary.objectiveHistory[-1] <= theirs.summary.objectiveHistory[-1] + 1e-6
    np.testing.assert_allclose(ours.interceptVector.toArray(), theirs.interceptVector.toArray(), rtol=0.03)


@pytest.mark.parametrize("rows", range(1, 6))
def test_matrix_when_entries_are_0_then_has_the_form_of_pysparks(sc, rows):
    rng = np.random.default_rng(rows)
    for width in range(1, 7):
        for count in range(rows * width + 1):
            entries = np.zeros(rows * width)
            entries[rng.permutation(rows * width)[:count]] = 1.5
            theirs = _java2py(sc, _py2java(sc, DenseMatrix(rows, width, entries, True)).compressed())
            ours = as_matrix(entries.reshape(rows, width))
            assert (type(ours), ours.isTransposed) == (type(theirs), theirs.isTransposed), (width, count)
            np.testing.assert_array_equal(ours.toArray(), entries.reshape(rows, width))


def constant(spark, label, classes=None):
    frame = spark.createDataFrame([(label, Vectors.dense([value] * 5)) for value in (0.0, 1.0, 2.0)], ["y", "features"])
    told = {} if classes is None else {"ml_attr": {"type": "nominal", "num_vals": classes}}
    return frame.select(F.col("y").alias("label", metadata=told), "features")


@pytest.mark.parametrize(
    ("label", "classes", "family", "intercept"),
    [
        (4.0, None, "multinomial", True),
        (4.0, 6, "multinomial", True),
        (1.0, None, "mulTinomIAl", True),
        (0.0, None, "multinomial", True),
        (0.0, None, "multinomial", False),
        (0.0, 2, "multinomial", True),
        (1.0, None, "AuTo", True),
        (0.0, None, "biNoMial", True),
    ],
)
def test_rows_when_all_of_one_class_then_match_pyspark(spark, label, classes, family, intercept):
    frame = constant(spark, label, classes)
    theirs, ours = (
        package.LogisticRegression(family=family, fitIntercept=intercept).fit(frame)
        for package in (classification, algorithms)
    )
    columns = ("rawPrediction", "probability", "prediction")
    assert ours.transform(frame).select(*columns).collect() == theirs.transform(frame).select(*columns).collect()
    assert (len(ours.interceptVector), ours.summary.totalIterations) == (len(theirs.interceptVector), 0)
    form = [(type(one.coefficientMatrix), one.coefficientMatrix.isTransposed) for one in (ours, theirs)]
    assert (form[0], form[0][0]) == (form[1], SparseMatrix)
