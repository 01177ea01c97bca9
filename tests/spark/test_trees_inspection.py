"""Partial dependence and permutation importance are those that NumPy computes from predictions of all rows."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from ps2.algorithms import GBTClassifier, GBTRegressor, RandomForestClassifier
from ps2.errors import ConfigError

RNG = np.random.default_rng(3)
X = np.column_stack([RNG.integers(0, 4, 120), RNG.normal(size=(120, 2))])
X[::5, 0] = 0.0
Y = X[:, 0] + 2.0 * (X[:, 1] > 0)
WEIGHTS = RNG.integers(1, 4, 120).astype(float)


@pytest.fixture(scope="module")
def frame(spark, ps):
    rows = [
        (float(y), float(y > 2), float(w), Vectors.sparse(3, np.flatnonzero(x).tolist(), x[x != 0].tolist()))
        for x, y, w in zip(X, Y, WEIGHTS, strict=True)
    ]
    return spark.createDataFrame(rows, ["label", "class", "w", "features"]).repartition(3).cache()


@pytest.fixture(scope="module")
def regression(frame):
    return GBTRegressor(maxIter=5, maxDepth=2, weightCol="w").fit(frame)


def test_dependence_when_numbers_then_mean_of_changed_rows(regression, frame):
    table = regression.partialDependence(frame, [0, 1], gridPoints=4).collect()
    assert [row.value for row in table if row.feature == 0] == [0.0, 1.0, 2.0, 3.0]
    for row in table:
        changed = X.copy()
        changed[:, row.feature] = row.value
        expected = np.average(regression.fitted.predict(changed), weights=WEIGHTS)
        assert row.prediction == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("estimator", [GBTClassifier, RandomForestClassifier])
def test_dependence_when_classes_then_mean_probabilities(estimator, frame):
    model = estimator(labelCol="class", maxDepth=2).fit(frame)
    (row,) = model.partialDependence(frame, 0, gridPoints=[2.5]).collect()
    changed = X.copy()
    changed[:, 0] = 2.5
    np.testing.assert_allclose(row.probability, model.fitted.predictProbability(changed).mean(axis=0), rtol=1e-12)


def test_permutation_when_partitions_change_then_same(regression, frame):
    one, other = (
        regression.permutationImportance(rows, repeats=2, seed=4).collect() for rows in (frame, frame.repartition(2))
    )
    assert one == other


def test_permutation_when_repeated_then_mean_of_losses(regression, frame):
    importance = {row.feature: row for row in regression.permutationImportance(frame, repeats=60).collect()}

    def rmse(x):
        return np.sqrt(np.average((regression.fitted.predict(x) - Y) ** 2, weights=WEIGHTS))

    for feature in (0, 1):
        losses = []
        for _ in range(60):
            changed = X.copy()
            changed[:, feature] = RNG.permutation(changed[:, feature])
            losses.append(rmse(changed) - rmse(X))
        assert importance[feature].mean == pytest.approx(np.mean(losses), rel=0.1)
        assert importance[feature].stddev == pytest.approx(np.std(losses), rel=0.5)


def test_inspection_when_args_are_wrong_then_named(regression, frame):
    with pytest.raises(ConfigError, match="features: expected an index from 0 to 2, got 'age'"):
        regression.partialDependence(frame, "age")
    with pytest.raises(ConfigError, match="metric: expected one of rmse, mae, got 'auc'"):
        regression.permutationImportance(frame, metric="auc")
