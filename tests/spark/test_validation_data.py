"""Held-out rows in a DataFrame of their own: ``validationData`` of all families that measure held-out rows."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as F

from ps2.algorithms import DeepFM, GBTClassifier, LogisticRegression, MatrixFactorization, OnlineFM
from ps2.errors import ConfigError, InputError, UsageError

pytestmark = pytest.mark.parametrize("ps", [1], indirect=True, scope="module")

KEYS = {"categoricalCols": ["user", "item"], "factorSize": 2}
ESTIMATORS = {
    "linear": lambda: LogisticRegression(featuresCol=["x", "y"], maxIter=3),
    "trees": lambda: GBTClassifier(featuresCol=["x", "y"], maxIter=3, maxDepth=2),
    "factors": lambda: MatrixFactorization(ratingCol="x", rank=2, maxIter=3),
    "deep": lambda: DeepFM(**KEYS, hiddenLayers=[4], maxIter=2),
    "online": lambda: OnlineFM(**KEYS, maxIter=2),
}


@pytest.fixture(scope="module")
def rows(spark):
    """Rows to train on, and held-out rows with another order of columns and one column more."""
    rng = np.random.default_rng(0)
    columns = zip(*rng.integers(0, 9, (2, 300)).tolist(), *rng.normal(size=(2, 300)).tolist(), strict=True)
    values = [(user, item, x, y, float(x + y > 0)) for user, item, x, y in columns]
    table = spark.createDataFrame(values, "user int, item int, x double, y double, label double").coalesce(1).cache()
    held = F.expr("xxhash64(x) % 3 = 0")
    return table.where(~held), table.where(held).select("label", "y", "x", "item", "user", F.lit(1).alias("more"))


def held_out_losses(model):
    if hasattr(model, "progress"):
        return [progress.heldOut.logLoss for progress in model.progress]
    return list(model.summary.validationHistory)


@pytest.mark.parametrize("family", ESTIMATORS)
def test_fit_when_there_are_validation_data_then_as_if_marked(ps, rows, family):
    """The losses of held-out rows, pass by pass, are those of one table whose indicator column marks them."""
    train, held_out = rows
    estimator = ESTIMATORS[family]().setNumWorkers(1)
    marked = train.withColumn("held", F.lit(False)).unionByName(held_out.drop("more").withColumn("held", F.lit(True)))
    expected = held_out_losses(estimator.copy().setValidationIndicatorCol("held").fit(marked))
    model = estimator.setValidationData(held_out).fit(train)
    assert held_out_losses(model) == pytest.approx(expected, rel=1e-5)
    assert not (model.hasParam("validationIndicatorCol") and model.isSet("validationIndicatorCol"))


@pytest.mark.parametrize("type", ["string", "double", "array<int>"])
def test_fit_when_validation_ids_have_another_type_then_refuses(ps, rows, type):
    """Spark would make all ids strings: the model would learn other keys than it looks up later."""
    train, held_out = rows
    other = held_out.withColumn("user", F.expr(f"cast({'array(user)' if '<' in type else 'user'} as {type})"))
    match = f"^validationData: column 'user': expected int, the type in the rows to train on, got {type}$"
    with pytest.raises(InputError, match=match):
        DeepFM(**KEYS).setValidationData(other).fit(train)


def test_fit_when_validation_numbers_are_narrower_then_same(ps, rows):
    train, held_out = rows
    whole = held_out.withColumn("x", F.expr("cast(x as int)"))
    estimator = ESTIMATORS["linear"]().setNumWorkers(1)
    expected = held_out_losses(estimator.setValidationData(whole.withColumn("x", F.expr("double(x)"))).fit(train))
    assert held_out_losses(estimator.setValidationData(whole).fit(train)) == expected


@pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning")
def test_fit_when_in_a_pipeline_then_has_validation_data(ps, rows):
    """Copies, which pipelines and validators make, have them."""
    train, held_out = rows
    estimator = LogisticRegression(featuresCol=["x", "y"], maxIter=2, validationData=held_out)
    grid = ParamGridBuilder().addGrid(estimator.regParam, [0.1, 0.2]).build()
    pipeline = Pipeline(stages=[CrossValidator(
        estimator=estimator, estimatorParamMaps=grid, evaluator=BinaryClassificationEvaluator(), numFolds=2
    )])  # fmt: skip
    assert pipeline.fit(train).stages[0].bestModel.summary.validationHistory
    # A validator leaves the threads of its pool to the garbage collector.
    gc.collect()


def test_partial_fit_when_validation_data_then_measured(ps, rows):
    train, held_out = rows
    assert len(held_out_losses(OnlineFM(**KEYS, validationData=held_out).partialFit(train))) == 1


def test_fit_when_validation_data_do_not_suit_then_error(ps, rows, tmp_path):
    train, held_out = rows
    estimator = DeepFM(**KEYS, validationData=held_out)
    with pytest.raises(ConfigError, match="validationData: expected no validationIndicatorCol beside it, got 'x'"):
        estimator.copy().setValidationIndicatorCol("x").fit(train)
    with pytest.raises(InputError, match="validationData: expected the columns of the rows to train on, got no 'item'"):
        estimator.setValidationData(held_out.drop("item")).fit(train)
    with pytest.raises(UsageError, match="validationData: a file of the estimator would lack them"):
        estimator.save(str(tmp_path / "estimator"))
    with pytest.raises(InputError, match="DataFrame"):
        DeepFM(validationData=[1, 2])
