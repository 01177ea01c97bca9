"""Values that are missing, and features that have categories: from DataFrames to trees, predictions and xgboost."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import xgboost
from boosting import digest
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F
from training import schema_of

from ps2.algorithms import GBTClassifier, GBTModel, GBTRegressor
from ps2.errors import ConfigError, InputError, LimitError
from tests.xgboost_trees import assert_same, forest_of, rows_of_few_values

pytestmark = pytest.mark.usefixtures("ps")

NAMES = ["kind", "flag", "height"]
KINDS = 6
NOMINAL = {"ml_attr": {"type": "nominal", "num_vals": KINDS}}
BINARY = {"ml_attr": {"type": "binary"}}


def data(seed=1, missing=0.3):
    return rows_of_few_values(240, 4, seed, missing)


def frame_of(spark, x, y, vector=Vectors.dense):
    rows = [(vector(row.tolist()), float(label)) for row, label in zip(x, y, strict=True)]
    schema = schema_of({"features": rows[0][0], "label": 0.0})
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, 2), schema, verifySchema=False)


def predictions(model, frame):
    return np.array([row.prediction for row in model.transform(frame).select("prediction").collect()])


def kinds(rows=240, seed=2):
    """A category, of which one never comes, a flag and a number; labels follow all of them."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.integers(0, KINDS - 1, rows), rng.integers(0, 2, rows), rng.normal(size=rows)])
    y = np.array([2.0, -1.0, 1.5, -2.0, 0.5])[x[:, 0].astype(int)] * (1 + x[:, 1]) + x[:, 2] + rng.normal(size=rows)
    x[rng.random(x.shape) < 0.2] = np.nan
    return x, y


def columns_of(spark, x, y):
    """Columns of numbers; what is missing is null."""
    rows = [[None if np.isnan(v) else float(v) for v in row] for row in np.column_stack([x, y])]
    parts = spark.sparkContext.parallelize(rows, 2)
    frame = spark.createDataFrame(parts, ", ".join(f"{name} double" for name in [*NAMES, "y"]))
    return frame.withMetadata("kind", NOMINAL).withMetadata("flag", BINARY)


@pytest.fixture(scope="module")
def of_kinds(spark, ps):
    x, y = kinds()
    frame = columns_of(spark, x, y)
    return frame, GBTRegressor(featuresCol=NAMES, labelCol="y", maxIter=4, stepSize=0.5).fit(frame)


def test_regressor_when_values_are_missing_then_matches_xgboost(spark, ps, tmp_path):
    x, y = data()
    frame = frame_of(spark, x, y)
    model = GBTRegressor(maxIter=3, maxDepth=4, stepSize=0.3, baseScore=0.0, defaults="xgboost").fit(frame)
    given = {"tree_method": "exact", "max_depth": 4, "eta": 0.3, "base_score": 0.0, "nthread": 1}
    booster = xgboost.train(given, xgboost.DMatrix(x, y), 3)
    for ours, theirs in zip(model._trained.forest.trees, forest_of(booster, (0.0,)).trees, strict=True):
        assert_same(ours, theirs, x)
    np.testing.assert_allclose(predictions(model, frame), booster.predict(xgboost.DMatrix(x)), atol=1e-4)
    model.saveXGBoost(str(tmp_path / "model.json"))
    others = data(seed=3)[0]
    saved = xgboost.Booster(model_file=str(tmp_path / "model.json")).predict(xgboost.DMatrix(others))
    np.testing.assert_allclose(saved, model._fitted.predict(others), atol=1e-6)
    assert model.predict(Vectors.dense(others[0].tolist())) == pytest.approx(float(saved[0]), abs=1e-6)
    assert model.evaluateEachIteration(frame) == pytest.approx(model.summary.objectiveHistory[1:])


def test_regressor_when_categorical_then_numpy_and_xgboost_agree(spark, of_kinds, tmp_path):
    _, model = of_kinds
    by_sets = {int(f) for tree in model._trained.forest.trees for f in tree.feature[np.diff(tree.set_begin) > 0]}
    assert by_sets == {0, 1}
    x = np.vstack([kinds(seed=4)[0], [[KINDS - 1, 1.0, 0.0], [np.nan] * 3]])
    model.write().save(str(tmp_path / "model"))
    alone = GBTModel.load(str(tmp_path / "model")).predict(x)
    np.testing.assert_array_equal(alone, predictions(model, columns_of(spark, x, np.zeros(len(x)))))
    model.saveXGBoost(str(tmp_path / "model.json"))
    booster = xgboost.Booster(model_file=str(tmp_path / "model.json"))
    given = xgboost.DMatrix(x, feature_types=["c", "c", "q"], enable_categorical=True)
    np.testing.assert_allclose(booster.predict(given), alone, atol=1e-6)


def test_model_when_category_is_unknown_then_treated_as_missing(spark, of_kinds):
    _, model = of_kinds
    unknown = [[KINDS + 3, 0.0, 0.0], [0.5, 0.0, 0.0], [-1.0, 0.0, 0.0], [np.nan, 0.0, 0.0]]
    found = predictions(model, columns_of(spark, np.array(unknown), np.zeros(4)))
    assert set(found) == {found[3]}


def test_classifier_when_absent_is_missing_then_is_so_everywhere(spark, ps, tmp_path):
    x, y = data(missing=0.6)
    y = y > 0

    def held(row):
        some = np.flatnonzero(~np.isnan(row))
        return Vectors.sparse(len(row), some.tolist(), np.asarray(row)[some].tolist())

    estimator = GBTClassifier(maxIter=3, maxDepth=4, absentAsMissing=True)
    sparse, dense = frame_of(spark, x, y, held), frame_of(spark, x, y)
    model = estimator.fit(sparse)
    assert digest(model._fitted.forest) == digest(estimator.fit(dense)._fitted.forest)
    assert any((tree.arrays.feature >= 0).any() for tree in model.trees)
    expected = model._fitted.predictProbability(x)
    some = ~np.isnan(x)
    indptr = np.append(0, np.cumsum(some.sum(axis=1))).astype(np.int32)
    csr = sp.csr_array((x[some], np.nonzero(some)[1].astype(np.int32), indptr), shape=x.shape)
    model.write().save(str(tmp_path / "model"))
    np.testing.assert_array_equal(GBTModel.load(str(tmp_path / "model")).predictProbability(csr), expected)
    for frame in (sparse, dense):
        rows = model.transform(frame).select("probability").collect()
        np.testing.assert_array_equal([row.probability.toArray() for row in rows], expected)
        assert model.evaluateEachIteration(frame) == pytest.approx(model.summary.objectiveHistory[1:])
    assert model.predictLeaf(held(x[0])) == model.predictLeaf(Vectors.dense(x[0].tolist()))
    model.saveXGBoost(str(tmp_path / "model.json"))
    booster = xgboost.Booster(model_file=str(tmp_path / "model.json"))
    np.testing.assert_allclose(booster.predict(xgboost.DMatrix(csr)), expected[:, 1], atol=1e-6)


def test_validation_when_only_held_out_lack_feature_then_same(spark, ps):
    x, y = data(missing=0.0)
    held = np.arange(len(y)) % 4 == 0
    lacking = x.copy()
    lacking[held, 0] = np.nan
    made = []
    for values in (x, lacking):
        frame = frame_of(spark, values, y).withColumn("held", F.monotonically_increasing_id() % 4 == 0)
        model = GBTRegressor(maxIter=3, validationIndicatorCol="held", validationTol=0.0).fit(frame)
        made.append([digest_of(tree.arrays) for tree in model.trees])
        losses = model.evaluateEachIteration(frame.where("held"))
        assert losses[-1] == pytest.approx(min(model.summary.validationHistory))
    shared = min(map(len, made))
    assert made[0][:shared] == made[1][:shared]


def digest_of(tree):
    return tree.to_debug_string(), tree.default_left.tolist(), tree.value.tolist()


def test_trees_when_columns_are_uninformative_then_are_not_split(spark, ps):
    x, y = data()
    x[:, 1], x[:, 2] = np.nan, 1.0
    x[:, 3] = np.where(np.isnan(x[:, 3]), np.nan, 0.0)
    attrs = {"nominal": [{"idx": 3, "vals": ["only"]}]}
    frame = frame_of(spark, x, y).withMetadata("features", {"ml_attr": {"attrs": attrs, "num_attrs": 4}})
    model = GBTRegressor(maxIter=2, minChildWeight=0.0).fit(frame)
    used = set(np.concatenate([tree.arrays.feature for tree in model.trees]))
    assert {0} < used - {-1} <= {0, 3}  # of the last, all that is known is whether it is there


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            float(KINDS),
            "1 of 240 rows hold values that are no category, such as 6 in row .*: feature 'kind' has 6 categ",
        ),
        (1.5, "such as 1.5 in row .* expected NaN or a whole number from 0 to 5"),
        (float("inf"), "1 of 240 rows hold infinite values"),
    ],
)
def test_rows_when_category_is_invalid_then_error_names_feature(spark, ps, value, message):
    x, y = kinds()
    x[7, 0] = value
    with pytest.raises(InputError, match=message):
        GBTRegressor(featuresCol=NAMES, labelCol="y").fit(columns_of(spark, x, y))


def test_features_when_categories_are_invalid_then_are_named(of_kinds):
    frame = of_kinds[0]
    many = frame.withMetadata("kind", {"ml_attr": {"type": "nominal", "num_vals": 5000}})
    with pytest.raises(LimitError, match="feature 0: expected at most 4,095 categories, got 5,000"):
        GBTRegressor(featuresCol=NAMES, labelCol="y").fit(many)
    with pytest.raises(
        ConfigError, match="monotoneConstraints: expected 0 for feature 1, which has 2 categories, got 1"
    ):
        GBTRegressor(featuresCol=NAMES, labelCol="y", monotoneConstraints=[0, 1, 0]).fit(frame)
