"""Boosted trees of DataFrames: what users of pyspark.ml expect of the estimators and their models.

``tests/unit/test_trees_params.py`` and its neighbours show what params do, on arrays.
"""

from __future__ import annotations

import gc
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
import xgboost
from pyspark.ml import Pipeline, PipelineModel, regression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import Vectors
from pyspark.ml.regression import DecisionTreeRegressionModel
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as F
from training import schema_of

from ps2.algorithms import (
    GBTClassificationModel,
    GBTClassifier,
    GBTModel,
    GBTRegressionModel,
    GBTRegressor,
    RandomForestClassifier,
)
from ps2.algorithms.frame.frames import warn_of_wide_integers
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.label_statistics import label_quantile, label_sums
from ps2.errors import ConfigError, InputError, PrecisionWarning, UsageError, WorkerError
from tests.tree_estimators import data, same_trees
from tests.xgboost_trees import rows_of_few_values

# pyspark leaves the threads of its validators to the garbage collector.
IGNORED = "ignore:unclosed running multiprocessing pool:ResourceWarning"
pytestmark = [pytest.mark.usefixtures("ps"), pytest.mark.filterwarnings(IGNORED)]

NAMES = ["a", "b", "c", "d"]
X, Y = data()
CLASSES = np.digitize(Y, [-0.5, 0.5])
SHORT = {"maxIter": 2, "maxDepth": 3}


def frame_of(spark, x, y, vector=Vectors.dense):
    """Rows with weights 1, 2 and 3 by turns, of which every fourth one is marked."""
    rows = [
        (vector(row.tolist()), float(label), i % 3 + 1, i % 4 == 0)
        for i, (row, label) in enumerate(zip(x, y, strict=True))
    ]
    schema = schema_of(dict(zip(["features", "label", "w", "held"], rows[0], strict=True)))
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, 2), schema, verifySchema=False)


@pytest.fixture(scope="module")
def frame(spark):
    """Rows whose label is a number, each with a margin, the second feature."""
    return frame_of(spark, X, Y).withColumn("start", vector_to_array("features")[1]).cache()


@pytest.fixture(scope="module")
def three(spark):
    """Rows of three classes, with features in columns of their own, too."""
    values = vector_to_array("features")
    return frame_of(spark, X, CLASSES).select("*", *(values[i].alias(name) for i, name in enumerate(NAMES))).cache()


@pytest.fixture(scope="module")
def binary(ps, frame):
    """A model of two classes, and its rows."""
    rows = frame.withColumn("label", (F.col("label") > 0).cast("double")).cache()
    return GBTClassifier(maxIter=5, maxDepth=3, stepSize=0.5).fit(rows), rows


@pytest.fixture(scope="module")
def softmax(ps, three):
    """A model of three classes that two workers and the servers have trained."""
    return GBTClassifier(weightCol="w", numWorkers=2, **SHORT).fit(three)


@pytest.fixture(scope="module")
def squared(ps, frame):
    return GBTRegressor(stepSize=0.2, maxIter=4, maxDepth=3).fit(frame)


@pytest.fixture
def collected():
    """Collect the threads that pyspark leaves while their warning is ignored."""
    yield
    gc.collect()


def predictions(model, frame):
    return np.array([row.prediction for row in model.transform(frame).collect()])


# -- beside pyspark.ml -------------------------------------------------------------------------------------------------


def test_trees_when_the_loss_is_squared_then_they_are_pysparks(frame, squared):
    # A gradient of pyspark.ml's is twice the residual.
    created = [squared, regression.GBTRegressor(maxIter=4, maxDepth=3).fit(frame)]
    ours, theirs = (predictions(model, frame) for model in created)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert [model.treeWeights for model in created] == [[1.0, 0.2, 0.2, 0.2], [1.0, 0.1, 0.1, 0.1]]
    assert [tree.numNodes for tree in created[0].trees] == [tree.numNodes for tree in created[1].trees]
    with_leaves = [model.copy({model.leafCol: "leaf"}) for model in created]
    for ours, theirs in (with_leaves, [model.trees[1].setLeafCol("leaf") for model in with_leaves]):
        fields = [model.transform(frame).schema.fields[-2:] for model in (ours, theirs)]
        messages = [[(f.name, f.dataType, f.metadata.get("ml_attr", {})) for f in of_one] for of_one in fields]
        assert messages[0] == messages[1]
    row = frame.first().features
    ours, theirs = (np.multiply(model.treeWeights, [tree.predict(row) for tree in model.trees]) for model in created)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    ours, theirs = (model.evaluateEachIteration(frame, "absolute") for model in created)
    assert ours == pytest.approx(theirs, rel=1e-5)


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
    created = validator.fit(named)
    assert created.avgMetrics[0] < created.avgMetrics[1]
    best = created.bestModel
    assert best.stages[-1].getMaxDepth() == 3
    best.save(str(tmp_path / "m"))
    np.testing.assert_array_equal(predictions(PipelineModel.load(str(tmp_path / "m")), named), predictions(best, named))


# -- models ------------------------------------------------------------------------------------------------------------


def test_model_when_saved_then_spark_numpy_and_xgboost_agree(binary, tmp_path):
    model, frame = binary
    model.write().overwrite().save(str(tmp_path / "model"))
    model.saveXGBoost(str(tmp_path / "model.json"))
    expected = [row.probability.toArray() for row in model.transform(frame).collect()]
    again = GBTClassificationModel.load(str(tmp_path / "model"))
    np.testing.assert_array_equal([row.probability.toArray() for row in again.transform(frame).collect()], expected)
    alone = GBTModel.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(alone.predictProbability(X), expected)
    np.testing.assert_array_equal(alone.predict(sp.csr_array(X)), np.argmax(expected, axis=1))
    booster = xgboost.Booster(model_file=str(tmp_path / "model.json"))
    np.testing.assert_allclose(booster.predict(xgboost.DMatrix(X)), np.array(expected)[:, 1], atol=1e-6)


def test_trees_when_summed_by_weight_then_are_the_margin(binary, tmp_path):
    model, rows = binary[0], binary[1].limit(7)
    message = [[row.prediction for row in tree.transform(rows).collect()] for tree in model.trees]
    raw = [row.rawPrediction[1] for row in model.transform(rows).collect()]
    np.testing.assert_allclose(np.array(model.treeWeights) @ message, raw, rtol=1e-5, atol=1e-6)
    tree = model.copy({model.leafCol: "leaf"}).trees[1]
    assert isinstance(tree, DecisionTreeRegressionModel)
    first = tree.transform(rows).first()
    assert [first.prediction, first.leaf] == [tree.predict(first.features), tree.predictLeaf(first.features)]
    assert f"depth={tree.depth}, numNodes={tree.numNodes}, numFeatures=4\n  If (feature" in tree.toDebugString
    assert sum(tree.featureImportances.values) == pytest.approx(1.0)
    tree.write().save(str(tmp_path / "tree"))
    assert type(tree).load(str(tmp_path / "tree")).predict(first.features) == first.prediction


def test_summary_when_asked_then_has_metrics_and_losses(binary, softmax, three):
    model, frame = binary
    assert model.summary.areaUnderROC > 0.9
    assert model.evaluateEachIteration(frame) == pytest.approx(model.summary.objectiveHistory[1:])
    assert softmax.evaluateEachIteration(three) == pytest.approx(softmax.summary.objectiveHistory[1:])
    unweighted = softmax.copy({softmax.weightCol: ""})
    assert unweighted.evaluateEachIteration(three) != pytest.approx(softmax.summary.objectiveHistory[1:])


def test_evaluate_each_iteration_when_loss_is_foreign_then_error(frame, squared):
    for loss in ("poisson", "logistic", "huber"):
        with pytest.raises(ConfigError, match="loss: expected squared or absolute, got"):
            squared.evaluateEachIteration(frame, loss)


def test_evaluate_each_iteration_when_empty_partitions_then_same(frame, squared):
    some = frame.where("label > 1")
    spread = some.repartition(3, "held")
    assert squared.evaluateEachIteration(spread) == pytest.approx(squared.evaluateEachIteration(some))


def test_predictions_when_first_trees_are_asked_then_their_sum(softmax, three):
    short = softmax.copy({softmax.numTrees: 1, softmax.leafCol: "leaves", softmax.contribCol: "why"})
    rows = short.transform(three).collect()
    raw = np.array([row.rawPrediction.toArray() for row in rows])
    np.testing.assert_array_equal(raw, softmax.fitted.first(1).margins(X))
    assert {row.leaves.size for row in rows} == {3}
    why = np.array([row.why.toArray() for row in rows]).reshape(-1, 3, 5)
    np.testing.assert_allclose(why.sum(axis=2), raw, atol=1e-9)


# -- columns -----------------------------------------------------------------------------------------------------------


def test_features_when_in_own_columns_then_trees_match_vectors(softmax, three):
    ours = GBTClassifier(featuresCols=NAMES, weightCol="w", numWorkers=1, **SHORT).fit(three)
    assert same_trees(ours, softmax)
    assert ours.setLeafCol("leaves").transform(three).first().leaves.size == 6


def test_margins_when_rows_have_them_then_all_begin_there(binary):
    _, frame = binary
    inputs = {"validationIndicatorCol": "held", "evalMetric": "auc", "baseMarginCol": "start"}
    created = GBTClassifier(maxIter=1, maxDepth=2, contribCol="why", **inputs).fit(frame)
    rows = created.transform(frame).collect()
    y, margins = np.array([(row.label, row.rawPrediction[1]) for row in rows]).T
    np.testing.assert_allclose(margins, created.fitted.margins(X)[:, 0] + X[:, 1], atol=1e-9)
    held = np.array([row.held for row in rows])
    pairs = np.sign(margins[held & (y == 1)][:, None] - margins[held & (y == 0)]) / 2 + 0.5
    assert created.summary.validationHistory == [pytest.approx(pairs.mean(), abs=5e-4)]
    losses = created.evaluateEachIteration(frame)
    assert losses[-1] == pytest.approx(np.logaddexp(0, np.where(y, -margins, margins)).mean())
    why = np.array([row.why.toArray() for row in rows])
    np.testing.assert_allclose(why.sum(axis=1), margins, atol=1e-9)
    np.testing.assert_array_equal(why[:, :4], created.fitted.contributions(X.astype(float))[:, :4])
    with pytest.raises(InputError, match="there is no column 'start'"):
        created.transform(frame.drop("start"))


def test_classifier_when_absent_is_missing_then_is_so_everywhere(spark, tmp_path):
    x, y = rows_of_few_values(240, 4, 1, 0.6)
    some = ~np.isnan(x)

    def held(row):
        there = np.flatnonzero(~np.isnan(row))
        return Vectors.sparse(len(row), there.tolist(), np.asarray(row)[there].tolist())

    sparse, dense = frame_of(spark, x, y > 0, held), frame_of(spark, x, y > 0)
    model = GBTClassifier(maxIter=3, maxDepth=4, absentAsMissing=True).fit(sparse)
    expected = model.fitted.predictProbability(x)
    indptr = np.append(0, np.cumsum(some.sum(axis=1))).astype(np.int32)
    csr = sp.csr_array((x[some], np.nonzero(some)[1].astype(np.int32), indptr), shape=x.shape)
    model.write().save(str(tmp_path / "model"))
    np.testing.assert_array_equal(GBTModel.load(str(tmp_path / "model")).predictProbability(csr), expected)
    for frame in (sparse, dense):
        rows = model.transform(frame).select("probability").collect()
        np.testing.assert_array_equal([row.probability.toArray() for row in rows], expected)
        assert model.evaluateEachIteration(frame) == pytest.approx(model.summary.objectiveHistory[1:])


def test_categories_when_in_metadata_then_sets_split(spark, tmp_path):
    """A category, of which one never comes, a flag and a number; labels follow all of them."""

    def kinds(seed, rows=240):
        rng = np.random.default_rng(seed)
        x = np.column_stack([rng.integers(0, 5, rows), rng.integers(0, 2, rows), rng.normal(size=rows)])
        y = np.array([2.0, -1.0, 1.5, -2.0, 0.5])[x[:, 0].astype(int)] * (1 + x[:, 1]) + x[:, 2] + rng.normal(size=rows)
        x[rng.random(x.shape) < 0.2] = np.nan
        return x, y

    def columns_of(x, y):
        rows = [[None if np.isnan(v) else float(v) for v in row] for row in np.column_stack([x, y])]
        frame = spark.createDataFrame(
            spark.sparkContext.parallelize(rows, 2), "kind double, flag double, h double, y double"
        )
        nominal, flag = {"type": "nominal", "num_vals": 6}, {"type": "binary"}
        return frame.withMetadata("kind", {"ml_attr": nominal}).withMetadata("flag", {"ml_attr": flag})

    created = GBTRegressor(featuresCol=["kind", "flag", "h"], labelCol="y", maxIter=4, stepSize=0.5)
    model = created.fit(columns_of(*kinds(2)))
    by_sets = {int(f) for tree in model.fitted.forest.trees for f in tree.feature[np.diff(tree.set_begin) > 0]}
    assert by_sets == {0, 1}
    x = np.vstack([kinds(4)[0], [[5, 1.0, 0.0], [np.nan] * 3]])
    model.write().save(str(tmp_path / "model"))
    alone = GBTModel.load(str(tmp_path / "model")).predict(x)
    np.testing.assert_array_equal(alone, predictions(model, columns_of(x, np.zeros(len(x)))))
    model.saveXGBoost(str(tmp_path / "model.json"))
    booster = xgboost.Booster(model_file=str(tmp_path / "model.json"))
    inputs = xgboost.DMatrix(x, feature_types=["c", "c", "q"], enable_categorical=True)
    np.testing.assert_allclose(booster.predict(inputs), alone, atol=1e-6)
    unknown = np.array([[9, 0.0, 0.0], [0.5, 0.0, 0.0], [-1.0, 0.0, 0.0], [np.nan, 0.0, 0.0]])
    assert len(set(predictions(model, columns_of(unknown, np.zeros(4))))) == 1


@pytest.mark.parametrize("maker", [GBTClassifier, RandomForestClassifier])
def test_classifier_when_labels_are_no_classes_then_input_error(frame, maker):
    with pytest.raises(InputError, match=r"'label': expected a class, one of 0 to 99 .*, got 240 no such class"):
        maker().fit(frame)


@pytest.mark.parametrize("kind", ["bigint", "array<bigint>"])
def test_features_when_integers_are_no_float64_then_fit_warns(spark, kind):
    def rows(base):
        values = [([base + i % 2] if "array" in kind else base + i % 2, float(i % 2)) for i in range(20)]
        return spark.createDataFrame(values, f"x {kind}, label double")

    estimator = GBTClassifier(maxIter=1, featuresCol="x" if "array" in kind else ["x"])
    with pytest.warns(PrecisionWarning, match=r"columns 'x': integers above 2\^53 are rounded"):
        estimator.fit(rows(2**63 - 2))
    exact = rows(2**53 - 1)
    warn_of_wide_integers(exact, exact.schema.fields[:1])


# -- where trainings begin ---------------------------------------------------------------------------------------------


def test_training_when_it_goes_on_from_loaded_model_then_as_one(frame, squared, tmp_path):
    squared.write().overwrite().save(f"{tmp_path}/first")
    estimator = GBTRegressor(maxIter=1, stepSize=0.2, maxDepth=3)
    created = estimator.setInitialModel(GBTRegressionModel.load(f"{tmp_path}/first")).fit(frame)
    assert created.getNumTrees == 5
    assert created.summary.objectiveHistory[0] == pytest.approx(squared.summary.objectiveHistory[-1])
    assert created.summary.objectiveHistory[1] < created.summary.objectiveHistory[0]
    with pytest.raises(UsageError, match="initialModel: a file of the estimator would lack it"):
        estimator.write()


def test_estimator_when_constrained_then_its_file_has_it(tmp_path):
    estimator = GBTRegressor(interactionConstraints=[[0, 1], [2, 3]], featureWeights=[1.0, 1.0, 1.0, 0.0])
    estimator.write().overwrite().save(f"{tmp_path}/estimator")
    loaded = GBTRegressor.load(f"{tmp_path}/estimator")
    assert loaded.getInteractionConstraints() == [[0, 1], [2, 3]]
    assert loaded.getFeatureWeights() == [1.0, 1.0, 1.0, 0.0]


def test_base_when_rows_are_reordered_then_is_exact_mean(spark):
    rng = np.random.default_rng(0)
    y, w = np.exp(5 * rng.normal(size=200)), rng.random(200)
    rows = list(zip(y.tolist(), w.tolist(), strict=True))
    exact = sum(map(Fraction, (w * y).tolist())) / sum(map(Fraction, w.tolist()))
    for order in (rows, rows[::-1]):
        frame = spark.createDataFrame(order, "label double, w double").repartition(3)
        assert label_sums(Table(frame, ColumnNames(weight="w"), 3), of_classes=False).mean == float(exact)


@pytest.mark.parametrize("share", [0.5, 0.3])
def test_base_when_quantile_then_weighted_wherever_rows_lie(spark, share):
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(size=60) * 10.0 ** rng.integers(-3, 4, 60), np.zeros(5)])
    w = rng.integers(0, 4, len(y)) / 8
    held = rng.random(len(y)) < 0.2
    counted = np.repeat(y[~held], (w[~held] * 8).astype(int))
    expected = np.quantile(counted, share, method="inverted_cdf")
    rows = list(zip(y.tolist(), w.tolist(), held.tolist(), strict=True))
    facts = Facts(int((~held).sum()), float(w[~held].sum()), 0.0, (), 0.0, 0.0)
    for partitions, order in ((1, rows), (3, rows[::-1])):
        frame = spark.createDataFrame(order, "`a label` double, w double, held boolean").repartition(partitions)
        result = label_quantile(Table(frame, ColumnNames("x", "a label", "w", "held"), partitions), share, facts)
        assert result == expected


def test_validation_sets_when_column_has_names_then_last_decides(frame):
    number = F.monotonically_increasing_id() % 4
    text = F.when(number == 1, "a").when(number == 2, "b").when(number == 3, "")
    for column, names in ((text, ("a", "b")), (F.when(number > 0, number - 1), ("1", "2"))):
        rows = frame.withColumn("year", column)
        model = GBTRegressor(maxIter=2, maxDepth=2, validationIndicatorCol="year", earlyStoppingRounds=2).fit(rows)
        histories = [model.summary.history.metrics[f"validation {name}"] for name in names]
        assert model.summary.validationHistory == list(histories[-1])
        assert histories[0] != histories[1]


# -- users' functions --------------------------------------------------------------------------------------------------


def test_objective_when_rows_lie_elsewhere_then_same_trees(frame, tmp_path):
    def asymmetric(margins, labels, weights):
        slopes = np.where(margins < labels, 4.0, 1.0) * weights
        return slopes * (margins - labels), slopes

    def error(margins, labels, weights):
        return (weights * np.abs(margins - labels)).sum(), weights.sum()

    params = {**SHORT, "weightCol": "w", "validationIndicatorCol": "held", "validationTol": 0.0}
    functions = {"objective": asymmetric, "customMetric": error, "maximize": False}
    one, two = (GBTRegressor(numWorkers=workers, **params, **functions).fit(frame) for workers in (1, 2))
    assert same_trees(one, two)
    assert one.summary.validationHistory == pytest.approx(two.summary.validationHistory)
    one.save(f"{tmp_path}/model")
    loaded = GBTRegressionModel.load(f"{tmp_path}/model")
    np.testing.assert_array_equal(predictions(loaded, frame), predictions(one, frame))


@pytest.mark.parametrize("via", ["servers", "local"])
def test_objective_when_it_fails_in_task_then_error_names_it(frame, via):
    def breaks(margins, labels, weights):
        assert margins.max() < 1, "a large margin"
        return margins - labels, weights

    expected = r"^rank \d in clock \d+: objective: breaks\(\) failed in line \d+ of .*: AssertionError: a large margin"
    with pytest.raises(WorkerError, match=expected):
        GBTRegressor(via=via, objective=breaks, **SHORT).fit(frame)
