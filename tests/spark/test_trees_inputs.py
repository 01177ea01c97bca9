"""What boosted trees make of rows, labels and params that are strange, or that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F
from tree_frames import data, frame_of

from ps2.algorithms import GBTClassifier, GBTRegressor
from ps2.errors import ConfigError, InputError

pytestmark = pytest.mark.usefixtures("ps")

SMALLEST, LARGEST = 5e-324, 1.7e308


@pytest.fixture(scope="module")
def frame(spark):
    x, y = data(30)
    return frame_of(spark, x, y).cache()


def column_of(spark, values, y):
    """Rows of one feature."""
    return frame_of(spark, np.array(values, np.float64)[:, None], y)


# -- features --------------------------------------------------------------------------------------------------------


def test_values_when_zeros_of_either_sign_then_are_one(spark):
    signs = column_of(spark, [0.0, -0.0, 0.0, -0.0, 1.0, 1.0], [0, 5, 0, 5, 0, 0])
    made = GBTRegressor(maxIter=1, minChildWeight=0.0, stepSize=1.0, regLambda=0.0).fit(signs)
    assert 0 <= made.trees[0].arrays.threshold[0] < 1
    assert made.predict([0.0]) == made.predict([-0.0]) == pytest.approx(2.5)
    assert made.trees[0].numNodes == 3


def test_values_when_smallest_and_largest_then_are_separated(spark):
    values = [-LARGEST, -SMALLEST, 0.0, SMALLEST, LARGEST]
    rows = column_of(spark, values, [3, 1, 4, 1, 5])
    made = GBTRegressor(maxIter=1, maxDepth=4, minChildWeight=0.0, stepSize=1.0, regLambda=0.0).fit(rows)
    assert [made.predict([value]) for value in values] == pytest.approx([3, 1, 4, 1, 5], abs=1e-4)


def test_values_when_infinite_then_input_error_names_one(spark):
    rows = column_of(spark, [0.0, 1.0, np.inf], [0, 1, 1])
    with pytest.raises(InputError, match=r"features: 1 of 3 rows hold .*infinite values"):
        GBTClassifier(maxIter=1).fit(rows)


def test_bins_when_more_than_rows_then_each_value_has_one(spark):
    values = np.arange(12)
    rows = column_of(spark, values, values % 3)
    made = GBTRegressor(maxIter=1, maxBins=4000, maxDepth=11, minChildWeight=0.0, stepSize=1.0, regLambda=0.0).fit(rows)
    assert [made.predict([value]) for value in values] == pytest.approx(list(values % 3), abs=1e-4)


def test_rows_when_worker_has_empty_ones_then_trees_are_the_same(spark):
    held = [(1.0, Vectors.dense(1.0, 0.0)), (2.0, Vectors.sparse(2, [1], [3.0]))]
    rows = held + 2 * [(0.0, Vectors.sparse(2, [], []))]
    found = [
        GBTRegressor(maxIter=2, numWorkers=workers).fit(
            spark.createDataFrame(spark.sparkContext.parallelize(rows, workers), ["label", "features"])
        )
        for workers in (1, 2)
    ]
    assert found[0].toDebugString.split("\n")[1:] == found[1].toDebugString.split("\n")[1:]
    assert [found[1].predict(x) for _, x in rows] == pytest.approx([1, 2, 0, 0])


# -- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "label", "message"),
    [
        ("poisson", -1.0, "'label': expected counts for loss 'poisson', got labels down to -1"),
        ("squared", 1e100, r"'label': expected labels up to 1e\+38, which leaves can say, got 1e\+100"),
        ("absolute", -1e39, r"'label': expected labels up to 1e\+38, which leaves can say, got -1e\+39"),
    ],
)
def test_labels_when_loss_rejects_them_then_input_error(spark, loss, label, message):
    with pytest.raises(InputError, match=message):
        GBTRegressor(lossType=loss).fit(column_of(spark, [1.0, 1.0], [label, label]))


def test_labels_when_all_are_zero_then_poisson_input_error(frame):
    with pytest.raises(InputError, match="of which some are above 0, got zeros alone"):
        GBTRegressor(lossType="poisson").fit(frame.withColumn("label", F.lit(0)))


def test_labels_when_they_are_huge_then_leaves_have_their_size(spark):
    rows = column_of(spark, [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1e30, 1e30])
    made = GBTRegressor(maxIter=1, minChildWeight=0.0, stepSize=1.0, regLambda=0.0).fit(rows)
    assert [made.predict([0.0]), made.predict([1.0])] == pytest.approx([0, 1e30], abs=1e24)


@pytest.mark.parametrize(("defaults", "nodes", "share"), [("pyspark", 3, 1.0), ("xgboost", 1, 0.5)])
def test_labels_when_tiny_then_xgboost_min_gain_forbids_splits(spark, defaults, nodes, share):
    made = GBTRegressor(maxIter=1, defaults=defaults).fit(column_of(spark, [0.0, 1.0], [0.0, 1e-30]))
    assert made.totalNumNodes == nodes
    assert made.predict([1.0]) == pytest.approx(share * 1e-30, rel=1e-6, abs=0)


def test_classes_when_invalid_then_input_error_lists_valid_ones(spark):
    with pytest.raises(InputError, match=r"'label': expected a class, one of 0 to 99 .*, got 3 no such class"):
        GBTClassifier().fit(column_of(spark, [1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 1.0, -1.0, 0.5, 100.0]))


# -- params and tables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"lossType": "huber", "lossShape": 0.0}, "lossShape: expected a finite positive number, got 0"),
        ({"lossType": "quantile", "lossShape": 1.0}, r"lossShape: expected a number in \(0, 1\), got 1"),
        ({"lossType": "logistic"}, "lossType: expected one of squared, absolute, huber, poisson, quantile"),
        ({"regAlpha": -1.0}, "regAlpha: expected a finite number that is not negative, got -1.0"),
        ({"maxBins": 1}, r"maxBins: expected a number in \[2, 4000\], got 1"),
        ({"minInstancesPerNode": 0}, "minInstancesPerNode: expected 1 at least, got 0"),
        ({"stepSize": 0.0}, r"stepSize: expected a number in \(0, 1\], got 0.0"),
    ],
)
def test_regressor_when_a_param_cannot_be_then_config_error(frame, params, message):
    with pytest.raises(ConfigError, match=message):
        GBTRegressor(**params).fit(frame)


def test_tables_when_no_row_to_train_on_then_input_error(frame):
    with pytest.raises(InputError, match="got an empty DataFrame"):
        GBTRegressor().fit(frame.limit(0))
    with pytest.raises(InputError, match="all of them are held out"):
        GBTRegressor(validationIndicatorCol="held").fit(frame.withColumn("held", F.lit(True)))
    with pytest.raises(InputError, match="whose weights are all 0"):
        GBTRegressor(weightCol="w").fit(frame.withColumn("w", F.lit(0)))


def test_tables_when_one_row_then_its_label_is_predicted(frame):
    made = GBTRegressor(maxIter=2).fit(frame.limit(1))
    assert made.totalNumNodes == 2
    assert made.predict([0.0] * 4) == pytest.approx(frame.first().label)
