"""Trees are as good as those of float64 features, labels and histograms, whatever these hold."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F

from ps2.algorithms import GBTClassifier, GBTModel, GBTRegressor
from ps2.errors import PrecisionWarning, UsageError

pytestmark = pytest.mark.usefixtures("ps")

ROWS = 5_000


@pytest.fixture(scope="module")
def rows(spark):
    """Features x, 0 to 9.9, and big, which one row has."""
    x = (F.col("id") % 100 / 10).alias("x")
    return spark.range(ROWS).select(x, (F.col("id") == 0).cast("double").alias("big")).cache()


def trees(**params):
    features = params.pop("features", ["x", "big"])
    given = {"maxDepth": 4, "maxBins": 128, "stepSize": 0.3, "regLambda": 0.0, "featuresCol": features}
    return GBTRegressor(**(given | params))


def errors_of(model, frame, expected):
    found = model.transform(frame.where("big = 0").select("x", "big").distinct()).toPandas()
    return np.abs(found["prediction"] - expected(found["x"]))


@pytest.mark.parametrize(("outlier", "rounds"), [(1e9, 50), (1e12, 80)])
def test_labels_when_one_is_huge_then_the_others_are_learnt(rows, outlier, rounds):
    frame = rows.withColumn("label", F.when(F.col("big") == 1, outlier).otherwise(F.col("x")))
    made = trees(maxIter=rounds).fit(frame)
    assert errors_of(made, frame, lambda x: x).max() < 0.1


def test_labels_when_huge_one_is_featureless_then_others_right(rows):
    frame = rows.withColumn("label", F.when(F.col("big") == 1, 1e15).otherwise(F.col("x")))
    made = trees(maxIter=150, features=["x"]).fit(frame)
    found = made.transform(frame.where("x > 3").distinct()).toPandas()
    assert np.abs(found["prediction"] - found["x"]).max() < 1


@pytest.mark.parametrize("light", [1e-6, 1e-12])
def test_weights_when_far_apart_then_light_rows_are_learnt(rows, light):
    frame = rows.withColumn("w", F.when(F.col("x") < 5, 1.0).otherwise(light)).withColumn("label", F.col("x"))
    made = trees(maxIter=50, weightCol="w", minChildWeight=0.0, maxBins=32).fit(frame)
    assert errors_of(made, frame, lambda x: x).max() < 0.4


def test_counts_when_they_reach_million_then_learns_small_ones(rows):
    frame = rows.withColumn("label", F.floor(F.pow(F.lit(4.0), F.col("x"))))
    made = trees(maxIter=120, lossType="poisson", minChildWeight=0.0).fit(frame)
    found = made.transform(frame.distinct()).toPandas()
    assert np.abs(np.log(found["prediction"] / found["label"])).max() < 0.3


# -- features --------------------------------------------------------------------------------------------------------


def trees_of(made):
    return [
        (tree.feature.tolist(), tree.threshold.tolist(), tree.value.tolist()) for tree in made._trained.forest.trees
    ]


def test_features_when_equal_in_float32_then_are_still_separated(spark, tmp_path):
    rows = spark.createDataFrame([(20240115.0 + i % 2, float(i % 2)) for i in range(40)], "x double, label double")
    made = GBTClassifier(featuresCol=["x"], maxIter=2).fit(rows)
    assert made.transform(rows).where("prediction = label").count() == 40
    made.save(str(tmp_path / "m"))
    x = np.array([[20240115.0], [20240116.0]])
    for model in (made._trained, GBTModel.load(str(tmp_path / "m"))):
        assert model.predict(x).tolist() == [0.0, 1.0]
    assert made.predict(Vectors.dense([20240116.0])) == made.predict(Vectors.sparse(1, [0], [20240116.0])) == 1.0
    with pytest.raises(UsageError, match=r"feature 0 on both sides of 20240115\.5 are the same"):
        made.saveXGBoost(str(tmp_path / "m.json"))


@pytest.mark.parametrize("base", [20240115.0, 1.7e12])
@pytest.mark.parametrize("count", [30, 400])
def test_features_when_fractions_of_large_number_then_all_seen(spark, base, count):
    rng = np.random.default_rng(0)
    x = base + rng.permutation(count) / 1024
    y = np.floor((x - base) * 1024 / count * 8)
    table = [(v, float(i % 3), label) for i, (v, label) in enumerate(zip(x.tolist(), y.tolist(), strict=True))]
    given = {"maxIter": 1, "maxDepth": 5, "maxBins": 64, "stepSize": 1.0, "regLambda": 0.0}
    found = []
    for order, workers in ((table, 1), (table[::-1], 2)):
        rows = spark.createDataFrame(order, "x double, z double, label double").repartition(2)
        made = GBTRegressor(featuresCol=["x", "z"], numWorkers=workers, **given).fit(rows)
        found.append(trees_of(made))
        errors = [abs(row.prediction - row.label) for row in made.transform(rows).collect()]
        assert np.mean(np.array(errors) > 0.01) < 0.1
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["x bigint", "x array<bigint>"])
def test_features_when_integers_are_no_float64_then_fit_warns(spark, kind):
    def values(base):
        return [([base + i % 2] if "array" in kind else base + i % 2, float(i % 2)) for i in range(20)]

    estimator = GBTClassifier(maxIter=1, featuresCol="x" if "array" in kind else ["x"])
    with pytest.warns(PrecisionWarning, match=r"columns 'x': integers above 2\^53 are rounded"):
        estimator.fit(spark.createDataFrame(values(2**63 - 2), f"{kind}, label double"))
    exact = spark.createDataFrame(values(2**53 - 1), f"{kind}, label double")
    assert estimator.fit(exact).transform(exact).where("prediction = label").count() == 20


# -- labels ----------------------------------------------------------------------------------------------------------


def test_labels_when_far_from_0_then_predictions_are_theirs(spark, tmp_path):
    rows = spark.range(1000).select((F.col("id") % 20).cast("double").alias("x"))
    rows = rows.withColumn("label", 1700000033 + F.col("x"))
    for loss in ("squared", "absolute", "quantile"):
        made = GBTRegressor(featuresCol=["x"], lossType=loss, maxIter=30, stepSize=0.3).fit(rows)
        errors = [row.prediction - row.label for row in made.transform(rows).collect()]
        assert abs(np.mean(errors)) < 0.1
        # A quantile of whole numbers is a whole number: a leaf of two of them says one.
        assert np.max(np.abs(errors)) < 1.1
    with pytest.raises(UsageError, match=r"xgboost adds margins up in float32: of up to 1\.7e"):
        made.saveXGBoost(str(tmp_path / "m.json"))


def test_base_when_rows_are_reordered_then_is_exact_mean(spark):
    rng = np.random.default_rng(0)
    y, w = np.exp(5 * rng.normal(size=200)), rng.random(200)
    table = [(0.0, *pair) for pair in zip(y.tolist(), w.tolist(), strict=True)]
    exact = sum(map(Fraction, (w * y).tolist())) / sum(map(Fraction, w.tolist()))
    for order in (table, table[::-1]):
        rows = spark.createDataFrame(order, "x double, label double, w double").repartition(3)
        made = GBTRegressor(featuresCol=["x"], weightCol="w", maxIter=1, maxDepth=0).fit(rows)
        assert made._trained.forest.base.tolist() == [float(exact)]


# -- constraints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber", "poisson", "quantile"])
def test_constraints_when_all_are_zeros_then_there_are_none(rows, loss):
    frame = rows.limit(200).withColumn("label", F.col("x"))
    plain = trees(maxIter=2, lossType=loss).fit(frame)
    assert trees_of(trees(maxIter=2, lossType=loss, monotoneConstraints=[0, 0]).fit(frame)) == trees_of(plain)
