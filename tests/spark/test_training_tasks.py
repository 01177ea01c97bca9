"""Trainings of linear models in Spark's tasks: workers that do not wait for each other, and rows on local disks."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

import numpy as np
import pytest
from plain_steps import expected, minibatches
from training import WEIGHTED, make, plan_of, trained

from ps2.algorithms.classification import LogisticRegression
from ps2.algorithms.linear.plan import Problem
from ps2.data import spilling


@pytest.fixture(scope="module")
def rows():
    return make(cuts=(20,))


@pytest.fixture(scope="module")
def frame(spark, rows):
    return rows.frame(spark)


@pytest.mark.parametrize("staleness", [1, -1])
def test_minibatches_when_workers_run_ahead_then_loss_falls(ps, rows, frame, staleness):
    options = minibatches("adagrad", False, 20, miniBatchFraction=0.5, staleness=staleness)
    created = trained(ps, frame, rows, Problem("logistic", 5), options)
    assert np.mean(created.history.objective[-10:]) < 0.8 * np.log(2)
    assert created.history.steps == 20
    created.weight.free()


@pytest.mark.parametrize(("name", "staleness"), [("ftrl", 3), ("adam", -1)])
def test_worker_when_ahead_of_driver_then_sees_own_steps(spark, ps, name, staleness):
    """A worker that waits for nobody takes NumPy's steps, one after the other, whatever the driver has got to."""
    shard, problem = make(cuts=()), Problem("logistic", 5, standardize=False)
    options = minibatches(name, lazy=True, staleness=staleness)
    created = trained(ps, shard.frame(spark), shard, problem, options, WEIGHTED)
    w, b = expected(shard, problem, name)
    np.testing.assert_allclose(created.weight.pull(), w, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(created.biases, b, rtol=1e-7, atol=1e-12)
    created.weight.free()


def test_fit_when_rows_are_in_files_then_same_weights(ps, frame, caplog):
    local = {"maxIter": 6, "via": "local"}
    with caplog.at_level(logging.WARNING, "ps2"):
        result = LogisticRegression(spill="always", **local).fit(frame)
    expected = LogisticRegression(spill="never", **local).fit(frame)
    assert np.array_equal(result.coefficients.toArray(), expected.coefficients.toArray())
    (spilled,) = result.summary.spilled
    assert (spilled.bytes > 0, os.path.isdir(spilled.folder)) == (True, True)
    assert [record for record in caplog.messages if f"1 workers store rows in files, {spilled.bytes:,} bytes" in record]


def test_fit_when_rows_fit_memory_then_none_in_files(ps, frame):
    assert LogisticRegression(maxIter=1, via="servers").fit(frame).summary.spilled == ()
    assert spilling.ROWS_FRACTION * spilling.free_memory().worker_bytes(2) > 1 << 20


def test_fit_when_factors_are_asked_then_summary_says_bytes(ps, spark):
    frame = make(n=60, dim=40, cuts=(30,), classes=10).frame(spark)
    few = LogisticRegression(solver="minibatch", maxIter=2, miniBatchFraction=0.1, numWorkers=2, factors="always")
    sent = few.fit(frame).summary.gradients
    assert (sent.count, sent.factored) == (4, 4)
    assert 0 < sent.factor_bytes < sent.value_bytes


def test_ftsgd_when_search_is_never_then_equals_mllibs_sgd(ps, spark):
    from pyspark.mllib.regression import LabeledPoint, LinearRegressionWithSGD

    rows = replace(make(cuts=(20,)), c=np.ones(60))
    points = spark.sparkContext.parallelize(list(map(LabeledPoint, rows.y, rows.x)), 2)
    with pytest.warns(FutureWarning, match="Deprecated"):
        theirs = LinearRegressionWithSGD.train(
            points, 6, 0.5, regParam=0.2, regType="l2", convergenceTol=0.0, initialWeights=np.zeros(5)
        )
    problem = Problem("squared", 5, l2=0.2, standardize=False, fit_intercept=False)
    options = plan_of("ftsgd", maxIter=6, stepSize=0.5, localSearch="never")
    created = trained(ps, rows.frame(spark), rows, problem, options, WEIGHTED)
    np.testing.assert_allclose(created.weight.pull(), theirs.weights.toArray(), rtol=1e-9)
    assert created.history.rows == 6 * 60
    created.weight.free()
