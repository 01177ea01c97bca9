"""KMeans on real servers: it is Lloyd's algorithm, the same on any fleet, and says what is wrong with rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from ps2 import PS2Conf, PS2Context
from ps2.algorithms import KMeans, KMeansClusters, KMeansModel
from ps2.algorithms.clusters.options import KMeansOptions
from ps2.algorithms.clusters.trainer import train
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table
from ps2.errors import InputError

END = 2


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(0)
    return (rng.normal(size=(6, 4)) * 3)[rng.integers(6, size=300)] + rng.normal(size=(300, 4)), rng.random(300)


@pytest.fixture(scope="module")
def frame(spark, points):
    rows = [(Vectors.dense(x), float(w)) for x, w in zip(*points, strict=True)]
    return spark.createDataFrame(rows, ["features", "w"]).repartition(2).cache()


@pytest.fixture(scope="module")
def ps(spark):
    with PS2Context.getOrCreate(spark, servers=2) as context:
        yield context


def lloyd(x, weights, centres, iterations):
    for _ in range(iterations):
        nearest = ((x[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        some = [nearest == c for c in range(len(centres))]
        centres = np.array(
            [np.average(x[a], axis=0, weights=weights[a]) if a.any() else c for a, c in zip(some, centres, strict=True)]
        )
    return centres


@pytest.mark.parametrize("mode", ["k-means||", "random"])
def test_kmeans_when_fitted_then_is_lloyds_on_any_fleet(ps, points, frame, mode):
    params = {"k": 6, "seed": 3, "weightCol": "w", "initMode": mode}
    first = KMeans(maxIter=0, via="local", **params).fit(frame)
    model = KMeans(maxIter=5, tol=0.0, via="servers", numWorkers=2, **params).fit(frame)
    alone = KMeans(maxIter=5, tol=0.0, via="local", **params).fit(frame.coalesce(1))
    expected = lloyd(*points, np.array(first.clusterCenters()), model.summary.numIter)
    np.testing.assert_allclose(model.clusterCenters(), expected, rtol=1e-9)
    assert model.clusters.centres.tolist() == alone.clusters.centres.tolist()
    assert model.summary.trainingCost == alone.summary.trainingCost
    assert (model.summary.placement.via, sum(model.summary.clusterSizes)) == ("servers", 300)


def test_kmeans_when_transformed_and_saved_then_agree(ps, points, frame, tmp_path):
    model = KMeans(k=3, seed=1).fit(frame)
    found = model.transform(frame).select("features", "prediction").collect()
    assert all(row.prediction == model.predict(row.features) for row in found[:20])
    model.save(str(tmp_path / "model"))
    assert KMeansModel.load(str(tmp_path / "model")).predict(points[0][0]) == model.predict(points[0][0])
    loaded = KMeansClusters.load(str(tmp_path / "model"))
    np.testing.assert_allclose(loaded.cost(points[0]), model.summary.trainingCost)
    np.testing.assert_array_equal(model.toPyspark().clusterCenters(), model.clusterCenters())


@pytest.mark.parametrize(
    ("row", "params", "message"),
    [
        ([np.nan, 1.0], {}, "hold NaN or infinite"),
        ([0.0, 0.0], {"distanceMeasure": "cosine"}, "1 of 2 rows hold zeros alone"),
    ],
)
def test_kmeans_when_a_row_is_bad_then_error_says_so(spark, ps, row, params, message):
    rows = spark.createDataFrame([(Vectors.dense(row),), (Vectors.dense([1.0, 1.0]),)], ["features"])
    with pytest.raises(InputError, match=message):
        KMeans(**params).fit(rows)


def test_kmeans_when_k_is_above_rows_then_finds_these(spark, ps):
    rows = [(Vectors.dense([float(at % 3), 1.0]),) for at in range(9)]
    model = KMeans(k=10**6, seed=1).fit(spark.createDataFrame(rows, ["features"]))
    assert (model.clusters.k, model.summary.trainingCost) == (3, 0.0)


@pytest.mark.parametrize("mode", ["k-means||", "random"])
def test_cosine_when_directions_repeat_then_starts_differ(spark, ps, mode):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 4))[np.arange(200) % 5] * rng.random((200, 1))
    frame = spark.createDataFrame([(Vectors.dense(row),) for row in rows], ["features"])
    model = KMeans(k=20, distanceMeasure="cosine", initMode=mode, maxIter=0).fit(frame)
    assert model.clusters.k == 5


@pytest.mark.parametrize("via", ["local", "servers"])
def test_kmeans_when_values_have_offsets_then_centres_are_exact(spark, ps, via):
    numbers = np.arange(200)
    groups = np.where(numbers % 2, 0.0, 2000.0) + np.random.default_rng(0).integers(0, 200, 200)
    rows = [(Vectors.dense(1.7e15 + group, -1e300),) for group in groups]
    model = KMeans(k=2, seed=1, via=via).fit(spark.createDataFrame(rows, ["features"]))
    found = np.sort([centre[0] - 1.7e15 for centre in model.clusterCenters()])
    np.testing.assert_allclose(found, [groups[numbers % 2 == 1].mean(), groups[numbers % 2 == 0].mean()], atol=0.25)
    assert [centre[1] for centre in model.clusterCenters()] == [-1e300, -1e300]
    assert model.summary.clusterSizes == [100, 100]
    cost = sum(((groups[numbers % 2 == side] - groups[numbers % 2 == side].mean()) ** 2).sum() for side in (0, 1))
    assert model.summary.trainingCost == pytest.approx(cost)


def end(step):
    if step.number == END:
        raise KeyboardInterrupt


def test_kmeans_when_driver_ends_then_next_finds_the_same(spark, frame, tmp_path):
    PS2Context.getOrCreate(spark).stop()
    options = KMeansOptions(6, iterations=6, tolerance=0.0, seed=3, name="clusters", dim=4)
    table, conf = Table(frame, ColumnNames(label=None, weight="w"), 2), PS2Conf(keep=1)
    folder = str(tmp_path)
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=folder, checkpointEverySteps=1, conf=conf) as ps:
        expected = train(ps, table, replace(options, name=""))
        with pytest.raises(KeyboardInterrupt):
            train(ps, table, options, end)
    with PS2Context.getOrCreate(spark, servers=1, restore=folder) as ps:
        found = train(ps, table, options)
    assert found.centres.tolist() == expected.centres.tolist()
    assert found.history.objective == expected.history.objective
