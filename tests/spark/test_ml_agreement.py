"""Coefficients agree with those of pyspark.ml's own estimators, on the same data with the same params."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from pyspark.ml import classification, regression
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import DenseMatrix, Vectors, VectorUDT
from pyspark.sql import functions as F

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
    expected, ours = (
        found(getattr(package, name)(**params, **EXACT, **solver).fit(df)) for package in (theirs, algorithms)
    )
    np.testing.assert_allclose(ours, expected, atol=1e-3)


NORMAL = [
    {"regParam": 0.0, "weightCol": "weight"},
    {"regParam": 0.0, "fitIntercept": False},
    {"regParam": 0.3, "weightCol": "weight"},
    {"regParam": 0.3, "standardization": False},
    {"regParam": 0.3, "elasticNetParam": 0.5},
    {"regParam": 0.3, "elasticNetParam": 0.5, "standardization": False, "weightCol": "weight"},
]


class Remembering(algorithms.LinearRegression):
    """Keeps how the training went."""

    def _survey_and_train(self, *given):
        model, self.history = super()._survey_and_train(*given)
        return model, self.history


@pytest.mark.parametrize("params", NORMAL)
def test_normal_equations_when_solved_by_pyspark_then_agree(df, params):
    estimator = Remembering(labelCol="value", **EXACT, **params)
    theirs = regression.LinearRegression(labelCol="value", **EXACT, **params).fit(df)
    np.testing.assert_allclose(found(estimator.fit(df)), found(theirs), rtol=1e-5, atol=1e-6)
    assert estimator.history.reason == "the normal equations were solved"
    if "elasticNetParam" in params:
        assert estimator.history.metrics == {}
    else:
        row = F.col("weight") if "weightCol" in params else F.lit(1.0)
        residual = F.col("value") - F.col("prediction")
        squares = theirs.transform(df).select(F.sum(row * residual**2)).head()[0]
        errors = np.sqrt(
            np.array(estimator.history.metrics["inverse_diagonal"]) * squares / theirs.summary.degreesOfFreedom
        )
        np.testing.assert_allclose(errors, theirs.summary.coefficientStandardErrors, rtol=1e-5)


def test_normal_equations_when_column_is_duplicated_then_agree(df):
    twice = VectorAssembler(inputCols=["features", "weight", "weight"], outputCol="both").transform(df)
    params = {"labelCol": "value", "featuresCol": "both", **EXACT}
    theirs, ours = (package.LinearRegression(**params).fit(twice) for package in (regression, algorithms))
    np.testing.assert_allclose(found(ours), found(theirs), atol=1e-4)


@pytest.fixture(scope="module")
def times(spark):
    """Times in milliseconds, as two columns that nearly agree, among rare features; 2 later - late is the value."""
    rows = spark.range(400).selectExpr("id", "1.7e12D + 25 * id as late", "double(id % 9 + 1) as weight")
    rows = rows.selectExpr("*", "late + (id * 7919) % 13 as later").selectExpr("*", "2 * later - late as value")
    many = F.udf(lambda i: Vectors.sparse(200, [i % 197], [1.0]), VectorUDT())
    encoded = VectorAssembler(inputCols=["late", "later", "many"], outputCol="features")
    return encoded.transform(rows.withColumn("many", many("id"))).select("features", "value", "weight")


@pytest.mark.parametrize("params", [{}, {"solver": "normal", "weightCol": "weight"}])
def test_normal_equations_when_sparse_times_then_no_cancellation(times, params):
    coefficients = algorithms.LinearRegression(labelCol="value", **params).fit(times).coefficients.toArray()
    np.testing.assert_allclose(coefficients, [-1.0, 2.0] + [0.0] * 200, atol=1e-3)


def test_normal_equations_when_float64_is_too_coarse_then_warn(times, caplog):
    """Without an intercept both times are the same number but for their last digits."""
    model = algorithms.LinearRegression(labelCol="value", fitIntercept=False).fit(times)
    assert "feature 1 is, to the precision of float64, a sum of multiples of others" in caplog.text
    assert model.summary.reason == "the normal equations were solved, for the shortest weights"


WITH_WEIGHTS = [
    (algorithms.LogisticRegression, {"labelCol": "two", "regParam": 0.1}),
    (algorithms.LinearSVC, {"labelCol": "two", "regParam": 0.1}),
    (algorithms.LinearRegression, {"labelCol": "value", "regParam": 0.3}),
    (algorithms.LinearRegression, {"labelCol": "value", "loss": "huber"}),
    (algorithms.FMRegressor, {"labelCol": "value", "stepSize": 0.01, "maxIter": 3}),
]


SIZED = [(*given, size) for given, size in zip(WITH_WEIGHTS, itertools.cycle([1e-300, 1e307]), strict=False)]


@pytest.mark.parametrize(("kind", "params", "size"), [*SIZED, (*WITH_WEIGHTS[0], 1e307)])
def test_fit_when_weights_are_tiny_or_huge_then_ratios_count(df, kind, params, size):
    ours, same = (
        kind(weightCol="weight", **params).fit(df.withColumn("weight", F.col("weight") * F.lit(unit)))
        for unit in (size, 1.0)
    )
    numbers = machine_numbers if kind is algorithms.FMRegressor else found
    np.testing.assert_allclose(numbers(ours), numbers(same), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("solver", ["normal", "l-bfgs"])
def test_fit_when_unscaled_feature_is_tiny_then_weight_is_huge(spark, solver):
    rows = spark.range(50).selectExpr("id % 7 as a", "id % 5 as b").selectExpr("a", "b", "2 * a - b + 3.5 as label")
    tiny = rows.withColumn("a", F.col("a") * F.lit(1e-160))
    params = {"featuresCols": ["a", "b"], "standardization": False, "solver": solver, "tol": 1e-12}
    model = algorithms.LinearRegression(**params).fit(tiny)
    np.testing.assert_allclose([*model.coefficients, model.intercept], [2e160, -1.0, 3.5], rtol=1e-6)


def matrix(*rows):
    return DenseMatrix(len(rows), len(rows[0]), np.ravel(rows), isTransposed=True)


INF = np.inf
BOUNDED = [
    {"labelCol": "two", "lowerBoundsOnCoefficients": matrix([0.0, 0.0, -INF, 0.1])},
    {"labelCol": "two", "upperBoundsOnCoefficients": matrix([0.2, INF, 0.5, 0.0]), "weightCol": "weight"},
    {"labelCol": "two", "upperBoundsOnIntercepts": Vectors.dense(-0.5), "standardization": False},
    {
        "labelCol": "two",
        "lowerBoundsOnCoefficients": matrix([-0.05] * 4),
        "upperBoundsOnCoefficients": matrix([0.05] * 4),
        "lowerBoundsOnIntercepts": Vectors.dense(0.3),
    },
    {"labelCol": "two", "fitIntercept": False, "upperBoundsOnCoefficients": matrix([0.1] * 4)},
    {"labelCol": "two", "standardization": False, "upperBoundsOnCoefficients": matrix([0.02] * 4)},
    {
        "labelCol": "three",
        "lowerBoundsOnCoefficients": matrix([0.0] * 4, [-INF] * 4, [-0.1] * 4),
        "upperBoundsOnCoefficients": matrix([0.3] * 4, [0.2, -0.01, 0.2, 0.2], [INF] * 4),
    },
    {
        "labelCol": "three",
        "lowerBoundsOnIntercepts": Vectors.dense(0.1, 0.2, -INF),
        "upperBoundsOnIntercepts": Vectors.dense(0.3, 0.2, INF),
    },
]


@pytest.mark.parametrize("params", BOUNDED)
def test_fit_when_bounds_equal_pyspark_then_coefficients_agree(df, params):
    theirs, ours = (
        package.LogisticRegression(regParam=0.02, **EXACT, **params) for package in (classification, algorithms)
    )
    expected, model = theirs.fit(df), ours.fit(df)
    scaled, its = (of.coefficientMatrix.toArray() * SCALES for of in (model, expected))
    # pyspark's L-BFGS-B ends a little before the minimum.
    np.testing.assert_allclose(scaled, its, rtol=2e-4, atol=1e-4)
    assert model.summary.objectiveHistory[-1] <= expected.summary.objectiveHistory[-1] + 1e-9
    intercepts, its = (of.interceptVector.toArray() for of in (model, expected))
    if len(its) > 1 and not any("Intercepts" in name for name in params):
        # Adding the same to all of them changes nothing.
        intercepts, its = intercepts - intercepts.mean(), its - its.mean()
    np.testing.assert_allclose(intercepts, its, atol=1e-4)
    assert "tolerance" in model.summary.reason


class Machine:
    """pyspark.ml's steps of a factorization machine, in plain NumPy, from weights to begin with."""

    def __init__(self, model, frame, label):
        self.x = np.array([row.features.toArray() for row in frame.select("features").collect()])
        self.y = np.array([row[0] for row in frame.select(label).collect()])
        self.is_class = label == "two"
        self.numbers = machine_numbers(model)
        self.m, self.s = np.zeros((2, len(self.numbers)))

    def gradient(self):
        intercept, linear, factors = self.numbers[0], self.numbers[1 : DIM + 1], self.numbers[DIM + 1 :]
        factors = factors.reshape(DIM, -1)
        sums = self.x @ factors
        margins = intercept + self.x @ linear + 0.5 * (sums**2 - self.x**2 @ factors**2).sum(axis=1)
        slopes = 1 / (1 + np.exp(-margins)) - self.y if self.is_class else 2 * (margins - self.y)
        of_factors = self.x.T @ (slopes[:, None] * sums) - factors * (slopes @ self.x**2)[:, None]
        return np.array([slopes.sum(), *(slopes @ self.x), *of_factors.reshape(-1)]) / len(self.y)

    def step(self, t, solver, lr, decay):
        g = self.gradient()
        if solver == "gd":
            lr = lr / np.sqrt(t)
            self.numbers = (1 - lr * decay) * self.numbers - lr * g
            return
        self.m, self.s = 0.9 * self.m + 0.1 * g, 0.999 * self.s + 0.001 * g**2
        step = self.m / (1 - 0.9**t) / (np.sqrt(self.s / (1 - 0.999**t)) + 1e-8)
        self.numbers = (1 - decay) * self.numbers - lr * step


def machine_numbers(model):
    return np.array([model.intercept, *model.linear.toArray(), *model.factors.toArray().reshape(-1)])


MACHINES = [
    (classification, "FMClassifier", "two", "adamW"),
    (classification, "FMClassifier", "two", "gd"),
    (regression, "FMRegressor", "value", "adamW"),
    (regression, "FMRegressor", "value", "gd"),
]


@pytest.mark.parametrize(("theirs", "name", "label", "solver"), MACHINES)
def test_fm_when_pyspark_takes_same_steps_then_models_agree(df, theirs, name, label, solver):
    """Factors begin elsewhere, as random numbers do: each side is followed from its own beginning."""
    params = {"labelCol": label, "solver": solver, "factorSize": 2, "initStd": 0.05, "seed": 5}
    how = {"stepSize": 0.02, "regParam": 0.03}
    for package in (theirs, algorithms):
        machine = Machine(getattr(package, name)(maxIter=0, **params).fit(df), df, label)
        assert machine.numbers[0] == 0
        for t in range(1, 7):
            machine.step(t, solver, how["stepSize"], how["regParam"])
        model = getattr(package, name)(maxIter=6, **params, **how).fit(df)
        np.testing.assert_allclose(machine_numbers(model), machine.numbers, rtol=1e-6, atol=1e-9)
