"""KMeans on a DataFrame: predictions and files."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from ps2.algorithms import KMeans, KMeansClusters, KMeansModel


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(0)
    return (rng.normal(size=(6, 4)) * 3)[rng.integers(6, size=300)] + rng.normal(size=(300, 4)), rng.random(300)


@pytest.fixture(scope="module")
def frame(spark, points):
    rows = [(Vectors.dense(x), float(w)) for x, w in zip(*points, strict=True)]
    return spark.createDataFrame(rows, ["features", "w"]).repartition(2).cache()


def test_kmeans_when_transformed_and_saved_then_agree(ps, points, frame, tmp_path):
    model = KMeans(k=3, seed=1, weightCol="w", via="servers", numWorkers=2).fit(frame)
    assert (model.summary.placement.via, sum(model.summary.clusterSizes)) == ("servers", 300)
    result = model.transform(frame).select("features", "prediction").collect()
    assert all(row.prediction == model.predict(row.features) for row in result[:20])
    model.save(str(tmp_path / "model"))
    assert KMeansModel.load(str(tmp_path / "model")).predict(points[0][0]) == model.predict(points[0][0])
    loaded = KMeansClusters.load(str(tmp_path / "model"))
    np.testing.assert_allclose(loaded.cost(*points), model.summary.trainingCost)
    np.testing.assert_array_equal(model.toPyspark().clusterCenters(), model.clusterCenters())


def test_kmeans_when_k_is_above_rows_then_finds_these(spark, ps):
    rows = [(Vectors.dense([float(at % 3), 1.0]),) for at in range(9)]
    model = KMeans(k=10**6, seed=1).fit(spark.createDataFrame(rows, ["features"]))
    assert (model.clusters.k, model.summary.trainingCost) == (3, 0.0)
