"""What each param of boosted trees does, from the estimator to the trees, beside xgboost and pyspark.ml."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import xgboost
from pyspark.ml import Pipeline, PipelineModel, regression
from pyspark.ml.classification import OneVsRest
from pyspark.ml.evaluation import MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit
from pyspark.sql import functions as F
from tree_frames import WEIGHTS, data, frame_of, xgboosts

from ps2.algorithms import GBTClassifier, GBTRegressor
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.ml.label_quantile import label_quantile
from ps2.errors import ConfigError, UsageError

# pyspark leaves the threads of its validators to the garbage collector.
IGNORED = "ignore:unclosed running multiprocessing pool:ResourceWarning"
pytestmark = [pytest.mark.usefixtures("ps"), pytest.mark.filterwarnings(IGNORED)]

NAMES = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def table():
    return data()


@pytest.fixture(scope="module")
def numbers(spark, table):
    """Rows whose label is a number."""
    return frame_of(spark, *table).cache()


@pytest.fixture(scope="module")
def classes(spark, table):
    """Labels 0, 1 and 2."""
    return np.digitize(table[1], [-0.5, 0.5]).astype(float)


@pytest.fixture(scope="module")
def three(spark, table, classes):
    """Rows of three classes, with features in columns of their own, too."""
    values = vector_to_array("features")
    frame = frame_of(spark, table[0], classes)
    return frame.select("*", *(values[i].alias(name) for i, name in enumerate(NAMES))).cache()


@pytest.fixture
def collected():
    """Collect the threads that pyspark leaves while their warning is ignored."""
    yield
    gc.collect()


def predictions(model, frame):
    return np.array([row.prediction for row in model.transform(frame).collect()])


def trees_of(model):
    return model.toDebugString.split("\n", 1)[1]


# -- beside others ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"regAlpha": 6.0, "regLambda": 0.5}, {"alpha": 6.0, "lambda": 0.5}),
        ({"minSplitLoss": 5.0, "minChildWeight": 25.0}, {"gamma": 5.0, "min_child_weight": 25.0}),
    ],
)
def test_penalties_when_set_then_predictions_are_xgboosts(table, numbers, ours, theirs):
    made = GBTRegressor(maxIter=3, maxDepth=3, stepSize=0.5, baseScore=0.5, **{"defaults": "xgboost", **ours}).fit(
        numbers
    )
    plain = GBTRegressor(maxIter=3, maxDepth=3, stepSize=0.5, baseScore=0.5)
    expected = xgboosts(*table, 3, tree_method="hist", **theirs)
    np.testing.assert_allclose(predictions(made, numbers), expected, atol=1e-4)
    assert np.abs(expected - xgboosts(*table, 3)).max() > 0.1
    assert plain.getRegAlpha() == plain.getMinSplitLoss() == 0


@pytest.mark.parametrize(
    ("loss", "objective"),
    [
        ("absolute", {"objective": "reg:absoluteerror"}),
        ("quantile", {"objective": "reg:quantileerror", "quantile_alpha": 0.3}),
    ],
)
def test_leaves_when_quantile_loss_then_loss_matches_xgboost(spark, table, loss, objective):
    x, y = table[0], 100 * table[1]
    params = {"maxIter": 1, "maxDepth": 3, "stepSize": 0.5, "lossShape": 0.3, "baseScore": 0.5}
    made = GBTRegressor(lossType=loss, defaults="xgboost", **params).fit(frame_of(spark, x, y))
    # Of an even number of residuals xgboost takes the mean of two: later trees have other splits.
    theirs = y - xgboosts(x, y, 1, tree_method="hist", **objective)
    share = 0.5 if loss == "absolute" else 0.3
    expected = np.maximum(share * theirs, (share - 1) * theirs).mean() * (2 if loss == "absolute" else 1)
    assert made.summary.objectiveHistory[-1] == pytest.approx(expected, rel=0.01)


def test_softmax_when_weights_are_whole_then_matches_xgboost(table, classes, three):
    whole = three.withColumn("w", F.col("w").cast("int"))
    made = GBTClassifier(maxIter=2, maxDepth=3, stepSize=0.5, baseScore=0.5, weightCol="w", defaults="xgboost").fit(
        whole
    )
    raw = [row.rawPrediction.toArray() for row in made.transform(whole).collect()]
    weight = np.resize(WEIGHTS, len(classes))
    theirs = xgboosts(table[0], classes, 2, weight=weight, objective="multi:softprob", num_class=3)
    np.testing.assert_allclose(raw, theirs, atol=1e-4)
    unweighted = made.copy({made.weightCol: ""})
    assert made.evaluateEachIteration(whole) == pytest.approx(made.summary.objectiveHistory[1:])
    assert unweighted.evaluateEachIteration(whole) != pytest.approx(made.summary.objectiveHistory[1:])


def test_tree_when_nodes_need_many_rows_then_matches_pyspark(numbers):
    params = {"maxIter": 1, "maxDepth": 4, "stepSize": 1.0, "minInstancesPerNode": 25}
    ours = GBTRegressor(**params).fit(numbers)
    theirs = regression.GBTRegressor(**params).fit(numbers)
    np.testing.assert_allclose(predictions(ours, numbers), predictions(theirs, numbers), atol=1e-5)
    counts = ours.trees[0].arrays.count[ours.trees[0].arrays.leaves]
    assert len(counts) > 4
    assert counts.min() >= 25
    assert ours.evaluateEachIteration(numbers, "absolute") == pytest.approx(
        theirs.evaluateEachIteration(numbers, "absolute"), rel=1e-5
    )


def test_trees_when_the_loss_is_squared_then_they_are_pysparks(numbers):
    params = {"maxIter": 4, "maxDepth": 3}
    # A gradient of pyspark.ml's is twice the residual.
    made = [GBTRegressor(stepSize=0.2, **params).fit(numbers), regression.GBTRegressor(**params).fit(numbers)]
    ours, theirs = (predictions(model, numbers) for model in made)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert [model.treeWeights for model in made] == [[1.0, 0.2, 0.2, 0.2], [1.0, 0.1, 0.1, 0.1]]
    assert [tree.numNodes for tree in made[0].trees] == [tree.numNodes for tree in made[1].trees]
    with_leaves = [model.copy({model.leafCol: "leaf"}) for model in made]
    for ours, theirs in (with_leaves, [model.trees[1].setLeafCol("leaf") for model in with_leaves]):
        fields = [model.transform(numbers).schema.fields[-2:] for model in (ours, theirs)]
        told = [[(f.name, f.dataType, f.metadata) for f in of_one] for of_one in fields]
        assert told[0] == told[1]
    row = numbers.first().features
    ours, theirs = (np.multiply(model.treeWeights, [tree.predict(row) for tree in model.trees]) for model in made)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("params", "weight"),
    [
        ({"minInfoGain": 0.1}, {"weightCol": "w"}),
        ({"minWeightFractionPerNode": 0.1}, {"weightCol": "w"}),
        ({"minInfoGain": 0.01, "minWeightFractionPerNode": 0.05}, {}),
    ],
)
def test_tree_when_nodes_or_gains_must_be_large_then_as_pyspark(numbers, params, weight):
    shape = {"maxIter": 1, "maxDepth": 4, "stepSize": 1.0, **weight}
    made = [maker(**shape, **params).fit(numbers) for maker in (GBTRegressor, regression.GBTRegressor)]
    ours, theirs = (predictions(model, numbers) for model in made)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert 3 < made[0].totalNumNodes < GBTRegressor(**shape).fit(numbers).totalNumNodes


@pytest.mark.parametrize("weight", [{}, {"weightCol": "w"}])
def test_class_leaves_when_share_is_required_then_is_weighted(three, weight):
    params = {"maxIter": 2, "maxDepth": 4, "leafCol": "leaves", "minWeightFractionPerNode": 0.15, **weight}
    rows = GBTClassifier(**params).fit(three).transform(three).select("w", "leaves").collect()
    weights = np.array([row.w for row in rows]) if weight else np.ones(len(rows))
    for leaves in np.array([row.leaves.toArray() for row in rows]).T.astype(int):
        assert np.bincount(leaves, weights).min() >= 0.149 * weights.sum()


def test_min_rows_when_nodes_are_weighed_apart_then_config_error(three):
    params = {"weightCol": "w", "minInstancesPerNode": 2, "minWeightFractionPerNode": 0.1}
    with pytest.raises(ConfigError, match="minInstancesPerNode: expected 1 with minInfoGain or minWeightFraction"):
        GBTClassifier(**params).fit(three)


# -- defaults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maker", [GBTClassifier, GBTRegressor])
def test_five_rows_when_nothing_is_set_then_are_told_apart(spark, maker):
    frame = frame_of(spark, np.arange(5.0)[:, None] * [1.0, 0.0, 0.0, 0.0], np.array([0.0, 0.0, 1.0, 1.0, 1.0]))
    made = maker().fit(frame)
    assert made.trees[0].numNodes == 3
    assert (predictions(made, frame) > 0.5).tolist() == [False, False, True, True, True]


@pytest.mark.parametrize("maker", [GBTClassifier, GBTRegressor])
def test_weights_when_scaled_then_trees_are_the_same(three, maker):
    made = []
    for scale in (1.0, 0.01, 1e-9):
        frame = three.withColumn("scaled", F.col("w") * scale)
        made.append(maker(maxIter=3, maxDepth=3, weightCol="scaled").fit(frame))
    for model in made[1:]:
        # Of splits that gain nearly the same, another may be chosen.
        assert model.summary.objectiveHistory == pytest.approx(made[0].summary.objectiveHistory, rel=1e-3)
        assert model.totalNumNodes == made[0].totalNumNodes


def test_labels_when_tiny_then_trees_part_them(numbers):
    large, tiny = (GBTRegressor(maxIter=2, maxDepth=3) for _ in range(2))
    expected = predictions(large.fit(numbers), numbers)
    scaled = numbers.withColumn("label", F.col("label") * 1e-6)
    np.testing.assert_allclose(predictions(tiny.fit(scaled), scaled), expected * 1e-6, rtol=1e-3, atol=1e-10)


def test_a_class_when_rare_then_leaves_stay_small(spark):
    x = np.arange(2000.0)[:, None] * [1.0, 0.0, 0.0, 0.0]
    made = GBTClassifier(maxIter=1, stepSize=1.0).fit(frame_of(spark, x, np.arange(2000) == 77))
    assert made.trees[0].arrays.value.max() == 8.0
    assert (
        min(GBTClassifier(defaults="xgboost").fit(frame_of(spark, x, np.arange(2000) == 77)).trees[0].arrays.value) > -1
    )


def test_defaults_when_xgboosts_then_so_are_predictions(table, numbers):
    plain = GBTRegressor()
    asked = [GBTRegressor(defaults="XGBoost"), plain.copy({plain.defaults: "xgboost"})]
    for ours in asked:
        assert (ours.getMaxIter(), ours.getStepSize(), ours.getRegLambda(), ours.getMaxBins()) == (100, 0.3, 1.0, 256)
    made = asked[0].setMaxIter(3).setBaseScore(0.5).fit(numbers)
    theirs = xgboost.train({"base_score": 0.5}, xgboost.DMatrix(table[0], table[1]), 3)
    np.testing.assert_allclose(predictions(made, numbers), theirs.predict(xgboost.DMatrix(table[0])), atol=1e-4)
    assert GBTRegressor(maxDepth=3, defaults="xgboost").getMaxDepth() == 3


def test_evaluate_each_iteration_when_loss_is_foreign_then_error(numbers):
    made = GBTRegressor(maxIter=0, maxDepth=1).fit(numbers)
    assert made.evaluateEachIteration(numbers) == []
    for loss in ("poisson", "logistic", "huber"):
        with pytest.raises(ConfigError, match="loss: expected squared or absolute, got"):
            made.evaluateEachIteration(numbers, loss)


def test_evaluate_each_iteration_when_empty_partitions_then_same(numbers):
    made = GBTRegressor(maxIter=2, maxDepth=2).fit(numbers)
    spread = numbers.where("label > 1").repartition(3, "held")
    assert made.evaluateEachIteration(spread) == pytest.approx(made.evaluateEachIteration(numbers.where("label > 1")))


# -- columns ---------------------------------------------------------------------------------------------------------


def test_features_when_in_own_columns_then_trees_match_vectors(three):
    params = {"maxIter": 2, "maxDepth": 3}
    ours = GBTClassifier(featuresCols=NAMES, numWorkers=1, **params).fit(three)
    assert trees_of(ours) == trees_of(GBTClassifier(numWorkers=2, **params).fit(three))
    assert ours.setLeafCol("leaves").transform(three).first().leaves.size == 6


def test_labels_when_metadata_adds_classes_then_all_have_trees(three):
    metadata = {"ml_attr": {"type": "nominal", "vals": ["x", "y", "z"]}}
    two = three.where("label < 2").withColumn("label", F.col("label").alias("label", metadata=metadata))
    made = GBTClassifier(maxIter=1, maxDepth=1).fit(two)
    assert (made.numClasses, made.getNumTrees) == (3, 3)
    probability = np.array([row.probability.toArray() for row in made.transform(two).collect()])
    assert (probability[:, 2] < 0.05).all()


def test_empty_class_when_weights_are_small_then_not_predicted(three):
    light = three.where("label != 1").withColumn("w", F.lit(1e-6))
    made = GBTClassifier(maxIter=1, maxDepth=1, weightCol="w").fit(light)
    assert (predictions(made, light) != 1).all()


@pytest.mark.parametrize("loss", ["absolute", "quantile"])
def test_base_when_quantile_then_weighted_wherever_rows_lie(spark, loss):
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(size=60) * 10.0 ** rng.integers(-3, 4, 60), np.zeros(5)])
    w = rng.integers(0, 4, len(y)) / 8
    held = rng.random(len(y)) < 0.2
    share = {"absolute": 0.5, "quantile": 0.3}[loss]
    counted = np.repeat(y[~held], (w[~held] * 8).astype(int))
    expected = np.quantile(counted, share, method="inverted_cdf")
    rows = list(zip(y.tolist(), w.tolist(), held.tolist(), strict=True))
    facts = Facts(int((~held).sum()), float(w[~held].sum()), 0.0, (), 0.0, 0.0)
    for partitions, order in ((1, rows), (3, rows[::-1])):
        frame = spark.createDataFrame(order, "`a label` double, w double, held boolean").repartition(partitions)
        found = label_quantile(Table(frame, ColumnNames("x", "a label", "w", "held"), partitions), share, facts)
        assert found == expected


# -- thresholds ------------------------------------------------------------------------------------------------------


def test_thresholds_when_set_then_largest_ratio_decides(three):
    made = GBTClassifier(maxIter=1, maxDepth=2, thresholds=[1.0, 1.0, 0.1]).fit(three)
    rows = made.transform(three).collect()
    shares = np.array([row.probability.toArray() for row in rows]) / [1.0, 1.0, 0.1]
    assert [row.prediction for row in rows] == np.argmax(shares, axis=1).tolist()
    first = rows[0].features
    assert made.setThresholds([1e-9, 1.0, 1.0]).predict(first) == 0.0
    assert made.setThresholds([1.0, 1e-9, 1.0]).predict(first) == 1.0


def test_thresholds_when_not_one_per_class_then_usage_error(three):
    with pytest.raises(UsageError, match="thresholds: expected one for each of 3 classes, got 2"):
        GBTClassifier(thresholds=[0.5, 0.5]).fit(three)


# -- what pyspark.ml builds of estimators ----------------------------------------------------------------------------


@pytest.mark.usefixtures("collected")
def test_pipeline_when_cross_validated_and_loaded_then_same(three, tmp_path):
    named = three.withColumn("name", F.concat(F.lit("class "), F.col("label").cast("int"))).drop("features", "label")
    trees = GBTClassifier(maxIter=1, stepSize=0.5)
    stages = [StringIndexer(inputCol="name", outputCol="label"), VectorAssembler(inputCols=NAMES, outputCol="features")]
    validator = CrossValidator(
        estimator=Pipeline(stages=[*stages, trees]),
        estimatorParamMaps=ParamGridBuilder().addGrid(trees.maxDepth, [0, 3]).build(),
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        numFolds=2,
        parallelism=2,
        seed=1,
    )
    made = validator.fit(named)
    assert made.avgMetrics[0] < made.avgMetrics[1]
    best = made.bestModel
    assert best.stages[-1].getMaxDepth() == 3
    best.save(str(tmp_path / "m"))
    np.testing.assert_array_equal(predictions(PipelineModel.load(str(tmp_path / "m")), named), predictions(best, named))


@pytest.mark.usefixtures("collected")
def test_validation_split_when_depths_vary_then_keeps_better(numbers):
    trees = GBTRegressor(maxIter=1, stepSize=1.0)
    split = TrainValidationSplit(
        estimator=trees,
        estimatorParamMaps=ParamGridBuilder().addGrid(trees.maxDepth, [0, 3]).build(),
        evaluator=RegressionEvaluator(),
        seed=1,
    )
    made = split.fit(numbers)
    assert made.bestModel.getMaxDepth() == 3
    assert made.bestModel.evaluate(numbers).r2 > 0.5


@pytest.mark.usefixtures("collected")
def test_one_vs_rest_when_training_trees_then_separates_classes(three, classes):
    made = OneVsRest(classifier=GBTClassifier(maxIter=2, maxDepth=3, stepSize=0.5), parallelism=2).fit(three)
    assert [model.getNumTrees for model in made.models] == [2, 2, 2]
    assert (predictions(made, three) == classes).mean() > 0.7
