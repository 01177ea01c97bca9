"""Linear models that one worker trains in its own process are those of servers, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from ps2.algorithms.classification import FMClassifier, LinearSVC, LogisticRegression
from ps2.algorithms.linear.ml import estimator
from ps2.algorithms.regression import LinearRegression
from ps2.errors import DivergedError, WorkerError

ESTIMATORS = {
    "l-bfgs": LogisticRegression(maxIter=20, regParam=0.01),
    "orthant": LogisticRegression(maxIter=20, regParam=0.01, elasticNetParam=1.0),
    "sap": LogisticRegression(maxIter=5, regParam=0.01, elasticNetParam=1.0, solver="sap"),
    "normal": LinearRegression(regParam=0.1),
    "weighted": LinearRegression(regParam=0.1, labelCol="number", weightCol="weight"),
    "held out": LinearRegression(maxIter=5, solver="l-bfgs", labelCol="number", validationIndicatorCol="held"),
    "minibatch": LogisticRegression(maxIter=10, optimizer="adam", miniBatchFraction=0.3),
    "hinge": LinearSVC(maxIter=10, solver="ma-sgd"),
    "factors": FMClassifier(maxIter=5, factorSize=2),
}


@pytest.fixture(scope="module")
def rows(spark):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 12))
    y = (x @ rng.normal(size=12) + rng.normal(size=200) > 0).astype(float)
    numbers, weights = (3.0 + rng.normal(size=200)).tolist(), rng.exponential(size=200).tolist()
    held = (rng.random(200) < 0.2).tolist()
    made = zip(y.tolist(), map(Vectors.dense, x), numbers, weights, held, strict=True)
    return spark.createDataFrame(list(made), ["label", "features", "number", "weight", "held"]).repartition(2).persist()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_fit_when_local_then_model_is_that_of_servers(ps, rows, name):
    trained = ESTIMATORS[name]
    local = trained.copy().setVia("local").fit(rows)
    servers = trained.copy().setVia("servers").setNumWorkers(1).fit(rows)
    weights = "linear" if name == "factors" else "coefficients"
    assert getattr(local, weights).toArray().tolist() == getattr(servers, weights).toArray().tolist()
    assert local.summary.objectiveHistory == servers.summary.objectiveHistory


def test_fit_when_rows_are_few_then_summary_says_where_and_why(ps, rows):
    placement = LogisticRegression(maxIter=2).fit(rows).summary.placement
    assert (placement.workers, placement.via) == (1, "local")
    assert "by itself" in placement.reason


def test_fit_when_rows_are_few_then_spark_runs_one_job(spark, ps, rows):
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    rows.count()
    before = scheduler.numTotalJobs()
    LinearRegression().fit(rows)
    assert scheduler.numTotalJobs() == before + 1


def test_fit_when_model_is_too_large_for_local_then_servers(ps, rows, monkeypatch):
    monkeypatch.setattr(estimator, "MAX_LOCAL_WEIGHTS", 5)
    placement = LinearRegression().fit(rows).summary.placement
    assert (placement.via, placement.reason) == ("servers", "the model has 12 weights")


def test_fit_when_weights_are_huge_then_local_model_is_servers(ps, rows):
    huge = rows.selectExpr("number as label", "features", "weight * 1e300 as weight")
    weighted = LinearRegression(regParam=0.1, weightCol="weight")
    models = [weighted.setVia(via).setNumWorkers(1).fit(huge) for via in ("local", "servers")]
    assert models[0].coefficients.toArray().tolist() == models[1].coefficients.toArray().tolist()


def test_fit_when_local_training_diverges_then_error_is_the_same(ps, rows):
    wild = LinearRegression(maxIter=50, solver="minibatch", optimizer="sgd", stepSize=1e38, via="local")
    with pytest.raises(DivergedError) as told:
        wild.fit(rows)
    assert not isinstance(told.value, WorkerError)
