"""Trainings that begin elsewhere: at margins of the rows, at a model; and trees whose features are constrained."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost
from pyspark.ml.functions import vector_to_array
from pyspark.sql import functions as F
from tree_frames import data, frame_of

from ps2.algorithms import GBTClassifier, GBTModel, GBTRegressionModel, GBTRegressor
from ps2.errors import ConfigError, InputError, UsageError

pytestmark = pytest.mark.usefixtures("ps")

PARAMS = {"stepSize": 0.5, "maxDepth": 3}


@pytest.fixture(scope="module")
def table():
    return data()


@pytest.fixture(scope="module")
def frame(spark, table):
    """Rows with a margin that is the second feature."""
    start = vector_to_array("features")[1]
    return frame_of(spark, *table, np.arange(240) % 4 == 0).withColumn("start", start).cache()


def predictions(model, frame):
    return np.array([row.prediction for row in model.transform(frame).collect()])


def test_training_when_rows_have_margins_then_it_is_xgboosts(frame, table):
    x, y = table
    made = GBTRegressor(maxIter=4, maxDepth=3, defaults="xgboost", baseMarginCol="start").fit(frame)
    rows = xgboost.DMatrix(x, y, base_margin=x[:, 1])
    theirs = xgboost.train({"tree_method": "exact", "max_depth": 3, "nthread": 1}, rows, 4)
    np.testing.assert_allclose(predictions(made, frame), theirs.predict(rows), atol=1e-4)
    losses = made.evaluateEachIteration(frame)
    assert losses[-1] == pytest.approx(np.mean((predictions(made, frame) - y) ** 2) / 2)
    with pytest.raises(InputError, match="there is no column 'start'"):
        made.transform(frame.drop("start"))


def test_auc_when_rows_have_margins_then_cells_span_them(frame):
    two = frame.withColumn("label", (F.col("label") > 0).cast("double"))
    given = {"validationIndicatorCol": "held", "evalMetric": "auc", "baseMarginCol": "start"}
    made = GBTClassifier(maxIter=1, maxDepth=2, **given).fit(two)
    rows = made.transform(two.where("held")).select("label", "rawPrediction").collect()
    y, margins = (np.array(one) for one in zip(*((row.label, row.rawPrediction[1]) for row in rows), strict=True))
    pairs = np.sign(margins[y == 1][:, None] - margins[y == 0]) / 2 + 0.5
    assert made.summary.validationHistory == [pytest.approx(pairs.mean(), abs=5e-4)]


@pytest.mark.parametrize("workers", [1, 2])
def test_training_when_it_goes_on_from_model_then_as_one(frame, tmp_path, workers):
    whole = GBTRegressor(maxIter=5, **PARAMS).fit(frame)
    first = GBTRegressor(maxIter=2, **PARAMS).fit(frame)
    first.write().overwrite().save(f"{tmp_path}/first")
    loaded = (GBTRegressionModel.load(f"{tmp_path}/first"), GBTModel.load(f"{tmp_path}/first"))[workers - 1]
    estimator = GBTRegressor(maxIter=3, numWorkers=workers, **PARAMS).setInitialModel(loaded)
    made = estimator.fit(frame)
    assert made.getNumTrees == 5
    assert made.summary.objectiveHistory == pytest.approx(whole.summary.objectiveHistory[2:])
    np.testing.assert_allclose(predictions(made, frame), predictions(whole, frame), rtol=1e-9)
    with pytest.raises(UsageError, match="initialModel: a file of the estimator would lack it"):
        estimator.write()


def test_initial_model_when_of_another_kind_then_error(frame):
    first = GBTRegressor(maxIter=1, maxDepth=1).fit(frame)
    with pytest.raises(ConfigError, match=r"initialModel: expected a model of loss 'huber', .* got 'squared'"):
        GBTRegressor(lossType="huber").setInitialModel(first).fit(frame)
    with pytest.raises(ConfigError, match="initialModel: expected a model of boosted trees, got int"):
        GBTRegressor().setInitialModel(3)
    with pytest.raises(ConfigError, match="baseScore: expected without an initial model"):
        GBTRegressor(baseScore=1.0).setInitialModel(first).fit(frame)


def test_features_when_constrained_then_trees_and_files_keep_it(frame, tmp_path):
    estimator = GBTRegressor(maxIter=3, maxDepth=4, interactionConstraints=[[0, 1], [2, 3]])
    estimator.setFeatureSubsetStrategy("2").setFeatureWeights([1.0, 1.0, 1.0, 0.0])
    estimator.write().overwrite().save(f"{tmp_path}/estimator")
    loaded = GBTRegressor.load(f"{tmp_path}/estimator")
    assert loaded.getInteractionConstraints() == [[0, 1], [2, 3]]
    made = [one.setNumWorkers(workers).fit(frame) for workers, one in ((1, estimator), (2, loaded))]
    assert made[0].toDebugString.split("\n", 1)[1] == made[1].toDebugString.split("\n", 1)[1]
    assert made[0].getFeatureImportances("weight")[3] == 0
    assert made[0].totalNumNodes > 9


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"interactionConstraints": [[0, 4]]}, "interactionConstraints: expected features from 0 to 3, got 4"),
        ({"featureWeights": [1.0]}, "featureWeights: expected with a featureSubsetStrategy that draws"),
        ({"featureWeights": [1.0], "featureSubsetStrategy": "2"}, "featureWeights: expected one for each of 4"),
        ({"featureWeights": [0.0, -1.0]}, "featureWeights: expected finite numbers that are not negative"),
        ({"baseMarginCol": "start", "baseScore": 1.0}, "baseScore: expected without baseMarginCol"),
    ],
)
def test_params_when_they_make_no_sense_then_error(frame, params, expected):
    with pytest.raises(ConfigError, match=expected):
        GBTRegressor(**params).fit(frame)


def test_margins_when_null_then_error(frame):
    holed = frame.withColumn("start", F.when(F.col("label") > 0, 1.0))
    with pytest.raises(InputError, match=r"start: .* of 240 rows hold null"):
        GBTRegressor(baseMarginCol="start", maxIter=1).fit(holed)


def test_contributions_when_column_is_named_then_add_up(frame, table):
    made = GBTRegressor(maxIter=3, maxDepth=3, baseMarginCol="start", contribCol="why").fit(frame)
    rows = made.transform(frame).select("why", "prediction").collect()
    found = np.array([row.why.toArray() for row in rows])
    np.testing.assert_allclose(found.sum(axis=1), [row.prediction for row in rows], atol=1e-9)
    alone = made._trained.contributions(table[0].astype(float))
    np.testing.assert_array_equal(found[:, :4], alone[:, :4])


def test_contributions_when_there_are_classes_then_one_by_one(frame):
    three = frame.withColumn("label", F.col("held").cast("double") + (F.col("label") > 0).cast("double"))
    made = GBTClassifier(maxIter=2, maxDepth=2).fit(three).setContribCol("why").setNumTrees(1)
    row = made.transform(three).first()
    np.testing.assert_allclose(row.why.toArray().reshape(3, 5).sum(axis=1), row.rawPrediction.toArray(), atol=1e-9)
