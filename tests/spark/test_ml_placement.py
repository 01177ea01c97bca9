"""Models that one worker trains in its own process, in one Spark job, are those of servers, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from ps2.algorithms.classification import GBTClassifier, LogisticRegression
from ps2.algorithms.frame import placement as placing
from ps2.algorithms.regression import GBTRegressor, LinearRegression
from ps2.errors import DivergedError, WorkerError
from tests.tree_estimators import same_trees

ESTIMATORS = {
    "l-bfgs": LogisticRegression(maxIter=20, regParam=0.01),
    "minibatch": LogisticRegression(maxIter=10, optimizer="adam", miniBatchFraction=0.3),
    "huge weights": LinearRegression(regParam=0.1, weightCol="huge"),
}
IN_ONE_JOB = [
    LinearRegression(),
    GBTClassifier(maxIter=2, maxDepth=2),
    GBTRegressor(maxIter=2, maxDepth=2, weightCol="count"),
]


@pytest.fixture(scope="module")
def rows(spark):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 12))
    y = (x @ rng.normal(size=12) + rng.normal(size=200) > 0).astype(float)
    huge = (1e300 * rng.exponential(size=200)).tolist()
    counts = rng.integers(1, 4, 200).astype(float).tolist()
    created = zip(y.tolist(), map(Vectors.dense, x), huge, counts, strict=True)
    return spark.createDataFrame(list(created), ["label", "features", "huge", "count"]).repartition(2).persist()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_fit_when_local_then_model_is_that_of_servers(ps, rows, name):
    trained = ESTIMATORS[name]
    local = trained.copy().setVia("local").fit(rows)
    servers = trained.copy().setVia("servers").setNumWorkers(1).fit(rows)
    assert local.coefficients.toArray().tolist() == servers.coefficients.toArray().tolist()
    assert local.summary.objectiveHistory == servers.summary.objectiveHistory


def test_fit_when_rows_are_few_then_summary_says_where_and_why(ps, rows):
    placement = LogisticRegression(maxIter=2).fit(rows).summary.placement
    assert (placement.workers, placement.via) == (1, "local")
    assert placement.reason.startswith("chosen by predicted time: 'local' ")


@pytest.mark.parametrize("estimator", IN_ONE_JOB, ids=lambda estimator: type(estimator).__name__)
def test_fit_when_rows_are_few_then_spark_runs_one_job(spark, ps, rows, estimator):
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    rows.count()
    before = scheduler.numTotalJobs()
    estimator.fit(rows)
    assert scheduler.numTotalJobs() == before + 1


@pytest.mark.parametrize("estimator", IN_ONE_JOB[1:], ids=lambda estimator: type(estimator).__name__)
def test_trees_when_in_one_job_then_those_of_servers(ps, rows, estimator):
    local, servers = (estimator.copy().setVia(via).fit(rows) for via in ("local", "servers"))
    assert same_trees(local, servers)


def test_fit_when_model_is_too_large_for_local_then_servers(ps, rows, monkeypatch):
    monkeypatch.setattr(placing, "MAX_LOCAL_WEIGHTS", 5)
    placement = LinearRegression().fit(rows).summary.placement
    assert (placement.via, placement.reason) == ("servers", "the model has 12 weights")


def test_fit_when_local_training_diverges_then_error_is_the_same(ps, rows):
    wild = LinearRegression(maxIter=50, solver="minibatch", optimizer="sgd", stepSize=1e38, via="local")
    with pytest.raises(DivergedError) as messages:
        wild.fit(rows)
    assert not isinstance(messages.value, WorkerError)
