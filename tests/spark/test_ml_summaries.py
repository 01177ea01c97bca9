"""Summaries are pyspark.ml's: its classes, its members, its numbers, its errors."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.errors import UnsupportedOperationException
from pyspark.ml import classification, regression
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ps2 import algorithms
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.training.record import TrainingHistory
from ps2.errors import InputError

pytestmark = pytest.mark.usefixtures("ps")

RNG = np.random.default_rng(5)
X = RNG.normal(size=(20, 3))
WEIGHTS = RNG.uniform(0.5, 2.0, size=20)
NUMBERS = X @ [1.0, -0.5, 0.2] + RNG.normal(scale=0.3, size=20)
CLASSES = (NUMBERS > 0).astype(float) + (NUMBERS > 1)


def model(name, loss, width=1, biases=1, **params):
    problem = Problem(loss, X.shape[1], width=width)
    weights = Weights(problem, RNG.normal(size=(X.shape[1], width)), RNG.normal(size=biases))
    return getattr(algorithms, name)(weights).setParams(weightCol="weight", **params)


# Each with pyspark.ml's classes of its summaries: of evaluate, and of a training.
KINDS = {
    "binomial": (
        model("LogisticRegressionModel", "logistic", labelCol="two"),
        classification.BinaryLogisticRegressionSummary,
        classification.BinaryLogisticRegressionTrainingSummary,
    ),
    "multinomial": (
        model("LogisticRegressionModel", "softmax", 3, 3, labelCol="three"),
        classification.LogisticRegressionSummary,
        classification.LogisticRegressionTrainingSummary,
    ),
    "svc": (
        model("LinearSVCModel", "hinge", labelCol="two"),
        classification.LinearSVCSummary,
        classification.LinearSVCTrainingSummary,
    ),
    "fm": (
        model("FMClassificationModel", "fmLogistic", 3, labelCol="two"),
        classification.FMClassificationSummary,
        classification.FMClassificationTrainingSummary,
    ),
    "linear": (
        model("LinearRegressionModel", "squared", labelCol="number"),
        regression.LinearRegressionSummary,
        regression.LinearRegressionTrainingSummary,
    ),
}
UNKNOWN = {
    "coefficientStandardErrors": "No Std. Error of coefficients available for this LinearRegressionModel",
    "tValues": "No t-statistic available for this LinearRegressionModel",
    "pValues": "No p-value available for this LinearRegressionModel",
}
every = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def df(spark):
    rows = [
        (min(label, 1.0), label, float(number), float(weight), Vectors.dense(x))
        for label, number, weight, x in zip(CLASSES.tolist(), NUMBERS, WEIGHTS, X, strict=True)
    ]
    return spark.createDataFrame(rows, ["two", "three", "number", "weight", "features"]).coalesce(1).cache()


def history(**known):
    return TrainingHistory([2.0, 1.0], [0.1], [], steps=1, rows=40, bytes=8, reason="done", **known)


def trained(kind, df, **known):
    """The model of a kind as if it had been trained."""
    ours = KINDS[kind][0].copy()
    ours._remember(df, history(**known))
    return ours


def members(cls):
    """What pyspark.ml's summaries of a class have."""
    return sorted(name for name in dir(cls) if not name.startswith("_"))


def told(summary, name):
    """A member's value, as something to compare."""
    value = getattr(summary, name)
    if callable(value):
        value = value(0.5)
    return [list(row) for row in value.select(value.columns[-2:]).collect()] if isinstance(value, DataFrame) else value


@every
def test_evaluate_when_compared_with_pyspark_then_members_match(kind, df):
    ours, cls, _ = KINDS[kind]
    summaries = [ours.evaluate(df), ours.toPyspark().evaluate(df)]
    assert isinstance(summaries[0], cls)
    names = [name for name in members(cls) if name not in UNKNOWN and name != "predictions"]
    mine, theirs = ({name: told(summary, name) for name in names} for summary in summaries)
    differing = {
        n: (mine[n], theirs[n])
        for n in names
        if not np.array_equal(mine[n], theirs[n]) and not near(mine[n], theirs[n])
    }
    assert differing == {}
    assert summaries[0].predictions.columns == summaries[1].predictions.columns


@pytest.mark.parametrize("kind", ["binomial", "linear"])
def test_evaluate_when_names_have_dots_then_metrics_match(kind, df):
    name = "areaUnderROC" if kind == "binomial" else "rootMeanSquaredError"
    ours = KINDS[kind][0].copy()
    known = getattr(ours.evaluate(df), name)
    names = {ours.getLabelCol(): "la.b`el", "weight": "we.i`ght", "features": "f.`"}
    dotted = df.toDF(*(names.get(column, column) for column in df.columns))
    ours.setParams(labelCol="la.b`el", weightCol="we.i`ght", featuresCol="f.`", predictionCol="p.`")
    assert getattr(ours.evaluate(dotted), name) == pytest.approx(known)


def near(mine, theirs):
    return not isinstance(theirs, str) and np.allclose(mine, theirs, rtol=1e-9, atol=1e-12)


@every
def test_summary_when_trained_then_has_all_pyspark_members(kind, df):
    ours, _, cls = trained(kind, df), *KINDS[kind][1:]
    assert isinstance(ours.summary, cls)
    assert isinstance(ours.summary(), cls)
    assert [name for name in members(cls) if name not in UNKNOWN and told(ours.summary, name) is None] == []
    assert (ours.summary.objectiveHistory, ours.summary.totalIterations) == ([2.0, 1.0], 1)


@pytest.mark.parametrize("name", UNKNOWN)
def test_summary_when_statistics_are_unknown_then_pyspark_error(name, df):
    ours = trained("linear", df)
    for summary in (ours.summary, ours.evaluate(df), ours.toPyspark().evaluate(df)):
        with pytest.raises(UnsupportedOperationException, match=UNKNOWN[name]):
            getattr(summary, name)


@pytest.mark.parametrize("intercept", [True, False])
def test_summary_when_inverse_is_known_then_matches_pyspark(intercept, df):
    params = {"labelCol": "number", "weightCol": "weight", "fitIntercept": intercept}
    theirs = regression.LinearRegression(solver="normal", **params).fit(df)
    x = np.column_stack([X, np.ones(len(X))]) if intercept else X
    inverse = np.diag(np.linalg.inv(x.T @ (WEIGHTS[:, None] * x)))
    problem = Problem("squared", X.shape[1], fit_intercept=intercept)
    weights = Weights(problem, theirs.coefficients.toArray()[:, None], np.array([theirs.intercept]))
    ours = algorithms.LinearRegressionModel(weights).setParams(**params)
    ours._remember(df, history(metrics={"inverse_diagonal": tuple(inverse)}))
    for name in UNKNOWN:
        np.testing.assert_allclose(getattr(ours.summary, name), getattr(theirs.summary, name), rtol=1e-7, atol=1e-14)


@pytest.mark.parametrize("kind", ["multinomial", "linear"])
def test_evaluate_when_a_row_is_faulty_then_input_error(kind, df):
    """Spark's metrics take a NaN for one more label, and fail of null with 91 lines."""
    fitted = KINDS[kind][0]
    label = fitted.getLabelCol()
    rows = df.select("features", "weight", F.col(label).cast("double").alias(label)).limit(3)
    measured = "accuracy" if kind == "multinomial" else "rootMeanSquaredError"
    for value, shown in (("NaN", "NaN"), (None, "null")):
        wrong = rows.withColumn(label, F.lit(value).cast("double"))
        with pytest.raises(InputError, match=f"column '{label}': expected a finite number, got {shown}: impute"):
            getattr(fitted.evaluate(wrong), measured)
    wrong = rows.withColumn("features", array_to_vector(F.array(F.lit(1.0), F.lit(2.0), F.lit("NaN").cast("double"))))
    with pytest.raises(InputError, match=r"^column 'features', row 0: expected finite features .*, got nan in it"):
        getattr(fitted.evaluate(wrong), measured)
    as_yes = rows.withColumn(label, F.col(label) > 0)
    assert getattr(fitted.evaluate(as_yes), measured) >= 0.0


def test_evaluate_when_there_are_no_rows_then_input_error(df):
    with pytest.raises(InputError, match="expected rows to evaluate, got none"):
        _ = KINDS["linear"][0].evaluate(df.limit(0)).r2
