"""``MetricLearning`` on real servers: rows with labels and pairs, bad input, files, and a driver that ends amid."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from ps2.algorithms import Metric, MetricLearning, MetricLearningModel
from ps2.algorithms.metric.pairs import objective
from ps2.errors import ConfigError, InputError

DIM, ROWS = 6, 60


@pytest.fixture(scope="module")
def data():
    """The class shows in feature 0 alone, and the others are noise."""
    rng = np.random.default_rng(2)
    y = np.arange(ROWS) % 2
    x = rng.normal(size=(ROWS, DIM))
    x[:, 0] = 3.0 * y + 0.3 * rng.normal(size=ROWS)
    return x, y.astype(float)


@pytest.fixture(scope="module")
def labelled(spark, data):
    rows = [(Vectors.dense(x), float(y)) for x, y in zip(*data, strict=True)]
    return spark.createDataFrame(rows, ["features", "label"]).repartition(2).cache()


@pytest.fixture(scope="module")
def paired(spark, data):
    """Each row with the next one, and with that after it; the second vector is sparse."""
    x, y = data
    rows = []
    for i in range(ROWS - 2):
        for j in (i + 1, i + 2):
            other = Vectors.sparse(DIM, np.arange(DIM), x[j])
            rows.append((x[i].tolist(), other, float(y[i] == y[j])))
    return spark.createDataFrame(rows, ["a", "b", "label"]).cache()


def test_fit_when_rows_have_labels_then_noise_is_ignored(ps, labelled, tmp_path):
    model = MetricLearning(rank=2, maxIter=60, numWorkers=2, outputCol="mapped").fit(labelled)
    m = model.matrix().toArray()
    assert m[0, 0] > 5 * np.diag(m)[1:].max()
    history = model.summary.objectiveHistory
    assert len(history) == 61
    assert history[-1] < 0.6 * history[0]
    assert model.summary.gradients.count == 120
    row = model.transform(labelled).first()
    np.testing.assert_allclose(row.mapped.toArray(), model.components.toArray() @ row.features.toArray())
    np.testing.assert_allclose(model.mapped(row.features).toArray(), row.mapped.toArray())
    model.save(str(tmp_path / "m"))
    again = MetricLearningModel.load(str(tmp_path / "m"))
    np.testing.assert_array_equal(again.metric.components, model.metric.components)
    np.testing.assert_array_equal(Metric.load(str(tmp_path / "m")).components, model.metric.components)
    assert again.getOutputCol() == "mapped"


def test_fit_when_rows_are_pairs_then_history_is_objective(ps, data, paired):
    params = {"rank": 3, "maxIter": 3, "featuresCol": "a", "otherCol": "b", "numWorkers": 2, "dissimilarWeight": 0.5}
    model = MetricLearning(**params).fit(paired)
    x, y = data
    at = [(i, j) for i in range(ROWS - 2) for j in (i + 1, i + 2)]
    first, second = np.array(at).T
    last = objective(model.metric.components, x[first] - x[second], y[first] == y[second], 0.5)
    assert model.summary.objectiveHistory[-1] == pytest.approx(last, rel=1e-9)


def test_fit_when_it_is_local_then_metric_is_that_of_servers(ps, labelled):
    alone = MetricLearning(rank=2, maxIter=5).fit(labelled)
    servers = MetricLearning(rank=2, maxIter=5, via="servers", numWorkers=1).fit(labelled)
    assert (alone.summary.history.placement.via, servers.summary.history.placement.via) == ("local", "servers")
    np.testing.assert_array_equal(alone.metric.components, servers.metric.components)


NAN, NULL = float("nan"), None


@pytest.mark.parametrize(
    ("params", "rows", "error", "said"),
    [
        ({}, [([1.0, NAN], 0.0), ([2.0, 1.0], 1.0)], InputError, "hold NaN or infinite"),
        ({}, [([1.0, 2.0], 1.0), ([2.0, 1.0], 1.0)], InputError, "expected rows of at least two classes"),
        ({"rank": 0}, [([1.0, 2.0], 0.0)], ConfigError, "rank: expected"),
    ],
    ids=["nan", "one-class", "rank-0"],
)
def test_fit_when_rows_are_bad_then_error_says_how(ps, spark, params, rows, error, said):
    frame = spark.createDataFrame(rows, "features array<double>, label double")
    with pytest.raises(error, match=said):
        MetricLearning(**{"rank": 1, "maxIter": 1, "numWorkers": 1, **params}).fit(frame)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([([1.0], [2.0], 1.0), ([1.0], [3.0], 1.0)], "expected both similar .1. and dissimilar .0. pairs"),
        ([([1.0], [2.0], 1.0), ([1.0], [3.0], 2.0)], "label"),
        ([([1.0], [2.0], 1.0), ([1.0], NULL, 0.0)], "column 'b': expected vectors, got null in 1 rows"),
        ([([1.0], [2.0], 1.0), ([1.0, 2.0], [3.0], 0.0)], "column 'a': expected vectors of one size"),
        ([([1.0], [2.0], 1.0), ([1.0], [NULL], 0.0)], "a and b: 1 of 2 rows hold NaN or infinite values"),
    ],
    ids=["one-kind", "label", "null", "sizes", "nan"],
)
def test_fit_when_pairs_are_bad_then_error_says_how(ps, spark, rows, said):
    frame = spark.createDataFrame(rows, "a array<double>, b array<double>, label double")
    with pytest.raises(InputError, match=said):
        MetricLearning(rank=1, maxIter=1, numWorkers=1, featuresCol="a", otherCol="b").fit(frame)
