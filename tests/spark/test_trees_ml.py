"""GBTClassifier and GBTRegressor: what users of pyspark.ml and of xgboost expect of them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import xgboost
from pyspark.ml.linalg import Vectors
from pyspark.ml.regression import DecisionTreeRegressionModel
from pyspark.sql import functions as F
from tree_frames import data, frame_of, xgboosts

from ps2.algorithms import GBTClassificationModel, GBTClassifier, GBTModel, GBTRegressor
from ps2.errors import ConfigError, InputError

pytestmark = pytest.mark.usefixtures("ps")

XGBOOSTS = {"defaults": "xgboost", "maxBins": 32}


@pytest.fixture(scope="module")
def binary(spark):
    x, y = data()
    return x, (y > 0).astype(float), frame_of(spark, x, y > 0).cache()


@pytest.fixture(scope="module")
def model(binary, ps):
    return GBTClassifier(maxIter=5, maxDepth=3, stepSize=0.5).fit(binary[2])


@pytest.fixture(scope="module")
def three_classes(spark):
    x, y = data()
    return frame_of(spark, x, np.digitize(y, [-0.5, 0.5]).astype(float)).cache()


def test_classifier_when_values_are_few_then_matches_xgboost(binary):
    x, y, frame = binary
    made = GBTClassifier(maxIter=3, maxDepth=3, stepSize=0.5, baseScore=0.5, **XGBOOSTS).fit(frame)
    raw = np.array([row.rawPrediction[1] for row in made.transform(frame).collect()])
    np.testing.assert_allclose(raw, xgboosts(x, y, 3, objective="binary:logistic"), atol=1e-4)


def test_regressor_when_values_are_few_then_matches_xgboost(spark, ps):
    x, y = data()
    frame = frame_of(spark, x, y)
    made = GBTRegressor(maxIter=3, maxDepth=3, stepSize=0.5, baseScore=0.5, **XGBOOSTS).fit(frame)
    found = np.array([row.prediction for row in made.transform(frame).collect()])
    np.testing.assert_allclose(found, xgboosts(x, y, 3), atol=1e-4)


def test_classifier_when_three_classes_then_uses_softmax(spark, ps):
    x, y = data()
    y = np.digitize(y, [-0.5, 0.5]).astype(float)
    frame = frame_of(spark, x, y)
    made = GBTClassifier(maxIter=3, maxDepth=3, stepSize=0.5, baseScore=0.5, **XGBOOSTS).fit(frame)
    assert (made.numClasses, made.getNumTrees) == (3, 9)
    rows = made.transform(frame).collect()
    theirs = xgboosts(x, y, 3, objective="multi:softprob", num_class=3)
    np.testing.assert_allclose([row.rawPrediction.toArray() for row in rows], theirs, atol=1e-4)
    assert np.mean([row.prediction == row.label for row in rows]) > 0.7
    assert len(made.evaluateEachIteration(frame)) == 3


def test_classifier_when_grown_by_leaf_then_margins_are_xgboosts(spark, ps):
    x, y = data()
    y = np.digitize(y, [-0.5, 0.5]).astype(float)
    params = {"growth": "leaf", "maxLeaves": 6, "maxDepth": 30, **XGBOOSTS}
    made = GBTClassifier(maxIter=3, stepSize=0.5, baseScore=0.5, **params).fit(frame := frame_of(spark, x, y))
    theirs = {"tree_method": "hist", "grow_policy": "lossguide", "max_leaves": 6, "max_depth": 0, "num_class": 3}
    raw = [row.rawPrediction.toArray() for row in made.transform(frame).collect()]
    np.testing.assert_allclose(raw, xgboosts(x, y, 3, objective="multi:softprob", **theirs), atol=1e-4)
    assert {len(tree.arrays.leaves) for tree in made.trees} == {6}


def test_model_when_saved_then_spark_numpy_and_xgboost_agree(binary, model, tmp_path):
    x, _, frame = binary
    model.write().overwrite().save(str(tmp_path / "model"))
    model.saveXGBoost(str(tmp_path / "model.json"))
    expected = [row.probability.toArray() for row in model.transform(frame).collect()]
    again = GBTClassificationModel.load(str(tmp_path / "model"))
    np.testing.assert_array_equal([row.probability.toArray() for row in again.transform(frame).collect()], expected)
    alone = GBTModel.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(alone.predictProbability(x), expected)
    np.testing.assert_array_equal(alone.predict(sp.csr_array(x)), np.argmax(expected, axis=1))
    booster = xgboost.Booster(model_file=str(tmp_path / "model.json"))
    np.testing.assert_allclose(booster.predict(xgboost.DMatrix(x)), np.array(expected)[:, 1], atol=1e-6)


def test_model_when_asked_then_tells_of_its_trees(binary, model):
    x = binary[0]
    assert model.getNumTrees == len(model.trees) == len(model.treeWeights) == 5
    assert model.totalNumNodes == sum(tree.numNodes for tree in model.trees)
    assert model.featureImportances.size == 4
    assert sum(model.featureImportances.values) == pytest.approx(1.0)
    assert sum(model.getFeatureImportances("weight").values) == sum(
        int((t.arrays.feature >= 0).sum()) for t in model.trees
    )
    with pytest.raises(ConfigError, match="importanceType: expected one of weight, gain, cover, totalGain, totalCover"):
        model.getFeatureImportances("share")
    assert model.toDebugString.startswith(f"GBTClassificationModel: uid = {model.uid}, numTrees=5, numClasses=2")
    assert model.trees[0].arrays.count[0] == len(x)
    leaves = model.predictLeaf(Vectors.dense(x[0].tolist()))
    assert leaves.size == 5
    assert all(0 <= leaf < len(tree.arrays.leaves) for leaf, tree in zip(leaves, model.trees, strict=True))
    with_leaves = model.copy({model.leafCol: "leaves"}).transform(binary[2]).first()
    assert (with_leaves.features.toArray() == x[0]).all()
    assert with_leaves.leaves == leaves


def test_trees_when_summed_by_weight_then_are_the_margin(binary, model, tmp_path):
    rows = binary[2].limit(7)
    assert model.treeWeights == [1.0, 0.5, 0.5, 0.5, 0.5]
    said = [[row.prediction for row in tree.transform(rows).collect()] for tree in model.trees]
    raw = [row.rawPrediction[1] for row in model.transform(rows).collect()]
    np.testing.assert_allclose(np.array(model.treeWeights) @ said, raw, rtol=1e-5, atol=1e-6)
    assert "Tree 1 (weight 0.5)" in model.toDebugString
    tree = model.copy({model.leafCol: "leaf"}).trees[1]
    assert isinstance(tree, DecisionTreeRegressionModel)
    first = tree.transform(rows).first()
    assert [first.prediction, first.leaf] == [tree.predict(first.features), tree.predictLeaf(first.features)]
    assert f"depth={tree.depth}, numNodes={tree.numNodes}, numFeatures=4\n  If (feature" in tree.toDebugString
    assert sum(tree.featureImportances.values) == pytest.approx(1.0)
    tree.write().save(str(tmp_path / "tree"))
    assert type(tree).load(str(tmp_path / "tree")).predict(first.features) == first.prediction


def test_trees_when_three_classes_then_each_has_first_tree(three_classes):
    model = GBTClassifier(maxIter=2, maxDepth=2, stepSize=0.5).fit(three_classes)
    features = three_classes.first().features
    said = np.array(model.treeWeights) * [tree.predict(features) for tree in model.trees]
    assert model.treeWeights == [1.0] * 3 + [0.5] * 3
    np.testing.assert_allclose(
        said.reshape(2, 3).sum(axis=0), model.predictRaw(features).toArray(), rtol=1e-5, atol=1e-6
    )


def test_evaluate_each_iteration_on_training_is_summary_history(binary, model):
    assert model.evaluateEachIteration(binary[2]) == pytest.approx(model.summary.objectiveHistory[1:])
    assert model.summary.totalIterations == 5
    assert model.summary.areaUnderROC > 0.9


def test_weights_when_whole_numbers_then_match_repeated_rows(spark, ps):
    x, y = data(90)
    frame = frame_of(spark, x, y > 0)
    weighted = GBTClassifier(maxIter=2, maxDepth=3, weightCol="w", baseScore=0.5).fit(frame)
    times = np.repeat(np.arange(90), 1 + np.arange(90) % 3)
    repeated = GBTClassifier(maxIter=2, maxDepth=3, baseScore=0.5).fit(frame_of(spark, x[times], y[times] > 0))
    for ours, theirs in zip(weighted.trees, repeated.trees, strict=True):
        np.testing.assert_array_equal(ours.arrays.feature, theirs.arrays.feature)
        np.testing.assert_allclose(ours.arrays.value, theirs.arrays.value, rtol=1e-4)


@pytest.mark.parametrize("params", [{}, {"growth": "leaf", "maxLeaves": 12, "subsamplingRate": 0.8}])
def test_validation_when_loss_stalls_then_keeps_best_trees(spark, ps, params):
    x, y = data()
    rng = np.random.default_rng(0)
    held = np.arange(len(y)) % 3 == 0
    noisy = np.where(held & (rng.random(len(y)) < 0.3), y <= 0, y > 0)
    frame = frame_of(spark, x, noisy, held)
    validation = {"validationIndicatorCol": "held", "validationTol": 0.0}
    made = GBTClassifier(maxIter=40, stepSize=0.5, **validation, **params).fit(frame)
    history = made.summary.validationHistory
    assert made.summary.totalIterations == len(history) < 40
    assert made.getNumTrees == 1 + int(np.argmin(history))
    assert made.evaluateEachIteration(frame.where("held"))[-1] == pytest.approx(min(history))


@pytest.mark.parametrize("params", [{"subsamplingRate": 0.5}, {"featureSubsetStrategy": "2"}])
def test_sampling_when_seeds_are_equal_then_trees_are(binary, params):
    made = [GBTClassifier(maxIter=3, seed=seed, **params).fit(binary[2]).toDebugString for seed in (3, 3, 4)]
    first, again, other = (text.split("\n", 1)[1] for text in made)
    assert first == again != other


def test_monotone_constraints_when_set_then_predictions_follow(spark, ps):
    x, y = data()
    made = GBTRegressor(maxIter=5, monotoneConstraints=[0, 0, -1, 0]).fit(frame_of(spark, x, y))
    grid = np.zeros((7, 4), np.float32)
    grid[:, 2] = np.arange(-3, 4) / 2
    for row in x[:20]:
        grid[:, [0, 1, 3]] = row[[0, 1, 3]]
        assert (np.diff(made._fitted.predict(grid)) <= 0).all()


@pytest.mark.parametrize("loss", ["absolute", "huber", "poisson", "quantile"])
def test_regressor_when_it_learns_then_each_loss_gets_less(spark, ps, loss):
    x, y = data()
    if loss == "poisson":  # a few counts are far above the mean
        y = np.exp(y / 2) + 300 * ((x[:, 0] > 1) & (x[:, 1] > 1))
    history = GBTRegressor(lossType=loss, maxIter=5, stepSize=0.5).fit(frame_of(spark, x, y)).summary.objectiveHistory
    assert (np.diff(history) < 0).all()


# -- what cannot be learnt from, or only a little ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "params", [{"maxDepth": 0}, {"maxDepth": 30, "minChildWeight": 0.0}, {"maxBins": 2}, {"maxIter": 0}]
)
def test_trees_when_params_are_at_their_limits_then_still_grow(binary, params):
    made = GBTClassifier(**{"maxIter": 2, **params}).fit(binary[2])
    assert made.getNumTrees == params.get("maxIter", 2)
    if "maxDepth" in params:
        assert max(tree.depth for tree in made.trees) <= params["maxDepth"]
    assert np.isfinite([row.probability[1] for row in made.transform(binary[2]).collect()]).all()


def test_trees_when_nothing_can_be_split_then_are_leaves(spark, ps):
    one_class = frame_of(spark, data(20)[0], np.ones(20))
    one_row = frame_of(spark, np.ones((1, 4)), np.ones(1))
    constant = frame_of(spark, np.ones((20, 4)), np.arange(20) % 2)
    for frame in (one_class, one_row, constant):
        made = GBTClassifier(maxIter=2).fit(frame)
        assert made.totalNumNodes == 2
        assert made.featureImportances.numNonzeros() == 0


def test_weights_when_0_then_rows_count_nothing(spark, ps):
    x, y = data(60)
    frame = frame_of(spark, x, y > 0)
    zero = frame.withColumn("w", F.when(F.col("w") == 1.0, 0.0).otherwise(1.0))
    made = [
        GBTClassifier(maxIter=2, weightCol="w", baseScore=0.5).fit(zero),
        GBTClassifier(maxIter=2, baseScore=0.5).fit(frame.where("w > 1")),
    ]
    ours, theirs = (one.toDebugString.split("\n", 1)[1] for one in made)
    assert ours == theirs


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"maxDepth": 31}, "maxDepth: expected a number in"),
        ({"growth": "wide"}, "growth: expected one of level, leaf, got 'wide'"),
        ({"maxLeaves": 1}, "maxLeaves: expected 0 or a number from 2 on, got 1"),
        ({"minInfoGain": -0.1}, "minInfoGain: expected a finite number that is not negative, got -0.1"),
        ({"minWeightFractionPerNode": 0.5}, r"minWeightFractionPerNode: expected a number in \[0, 0.5\), got 0.5"),
        ({"defaults": "LightGBM"}, "defaults: expected one of pyspark, xgboost, got 'LightGBM'"),
        ({"featureSubsetStrategy": "some"}, "featureSubsetStrategy: expected one of"),
        ({"baseScore": 1.0}, "baseScore: expected a probability"),
        ({"monotoneConstraints": [1]}, "monotoneConstraints: expected one for each of 4 features, got 1"),
    ],
)
def test_params_when_they_cannot_be_then_config_error(binary, params, message):
    with pytest.raises(ConfigError, match=message):
        GBTClassifier(**params).fit(binary[2])


def test_rows_when_labels_or_values_are_invalid_then_input_error(spark, ps):
    x, y = data(20)
    with pytest.raises(InputError, match="expected a class"):
        GBTClassifier().fit(frame_of(spark, x, y))
    x[3, 1] = np.inf
    with pytest.raises(InputError, match="1 of 20 rows hold infinite values"):
        GBTClassifier().fit(frame_of(spark, x, y > 0))
