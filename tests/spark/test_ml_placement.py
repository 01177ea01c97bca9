"""Linear models that one worker trains in its own process are those of servers, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from ps2.algorithms.classification import FMClassifier, LinearSVC, LogisticRegression
from ps2.algorithms.regression import LinearRegression
from ps2.errors import DivergedError, WorkerError

ESTIMATORS = {
    "l-bfgs": LogisticRegression(maxIter=20, regParam=0.01),
    "orthant": LogisticRegression(maxIter=20, regParam=0.01, elasticNetParam=1.0),
    "sap": LogisticRegression(maxIter=5, regParam=0.01, elasticNetParam=1.0, solver="sap"),
    "normal": LinearRegression(regParam=0.1),
    "minibatch": LogisticRegression(maxIter=10, optimizer="adam", miniBatchFraction=0.3),
    "hinge": LinearSVC(maxIter=10, solver="ma-sgd"),
    "factors": FMClassifier(maxIter=5, factorSize=2),
}


@pytest.fixture(scope="module")
def rows(spark):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 12))
    y = (x @ rng.normal(size=12) + rng.normal(size=200) > 0).astype(float)
    made = [(label, Vectors.dense(row)) for label, row in zip(y.tolist(), x, strict=True)]
    return spark.createDataFrame(made, ["label", "features"]).repartition(2).persist()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_fit_when_local_then_model_is_that_of_servers(ps, rows, name):
    estimator = ESTIMATORS[name]
    local = estimator.copy().setVia("local").fit(rows)
    servers = estimator.copy().setVia("servers").setNumWorkers(1).fit(rows)
    weights = "linear" if name == "factors" else "coefficients"
    assert getattr(local, weights).toArray().tolist() == getattr(servers, weights).toArray().tolist()
    assert local.summary.objectiveHistory == servers.summary.objectiveHistory


def test_fit_when_rows_are_few_then_summary_says_where_and_why(ps, rows):
    placement = LogisticRegression(maxIter=2).fit(rows).summary.placement
    assert (placement.workers, placement.via) == (1, "local")
    assert "by itself" in placement.reason


def test_fit_when_local_training_diverges_then_error_is_the_same(ps, rows):
    wild = LinearRegression(maxIter=50, solver="minibatch", optimizer="sgd", stepSize=1e200, via="local")
    with pytest.raises(DivergedError) as told:
        wild.fit(rows)
    assert not isinstance(told.value, WorkerError)
