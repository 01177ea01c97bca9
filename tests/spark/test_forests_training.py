"""Random forests in Spark: the same on servers as in the only worker's process, whatever fails."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from boosting import CATEGORIES, FEATURES, dealt, digest, facts_of, table
from pyspark.ml.linalg import Vectors

from ps2 import PS2Context
from ps2.algorithms import (
    RandomForest,
    RandomForestClassificationModel,
    RandomForestClassifier,
    RandomForestRegressionModel,
    RandomForestRegressor,
)
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.forests import trainer, worker
from ps2.algorithms.trees.forests.matrices import ForestMatrices
from ps2.algorithms.trees.forests.options import ForestOptions
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.problem import TreeProblem
from ps2.errors import ConfigError, InputError

LABELS = {0: "squared", 2: "logistic", 3: "softmax"}
RECIPE = ForestOptions(trees=5, depth=6, bins=16, impurity="gini", classes=2, rows=300, features=6)
NUMBERS = replace(RECIPE, impurity="variance", classes=0, features=11)
# How trees are grown, and whether rows are sparse, and weighted.
KINDS = {
    "gini": (RECIPE, False, False),
    "entropy of three classes, weighted": (replace(RECIPE, impurity="entropy", classes=3), True, True),
    "gini of three classes, all features": (replace(RECIPE, classes=3, features=0, bootstrap=False), True, False),
    "numbers, weighted": (replace(NUMBERS, min_rows=5, min_weight=1.0, rate=0.7), False, True),
    "numbers, drawn once": (replace(NUMBERS, bootstrap=False, rate=0.6, min_info_gain=0.001), True, False),
}


def grow(ps, spark, recipe, workers=1, sparse=False, weighted=False):
    x, y = table()
    y = y + (x[:, 4] > 0) if recipe.classes == 3 else y if recipe.classes else y + x[:, 0].astype(float)
    weights = np.random.default_rng(1).integers(0, 4, len(y)) / 4 if weighted else np.ones(len(y))
    frame = dealt(spark, x, y, workers, sparse, {"w": weights.tolist()}).frame
    facts = facts_of(y) if recipe.classes else facts_of(np.zeros(len(y)))
    facts = Facts(facts.rows, weights.sum(), (weights**2).sum(), *(getattr(facts, f) for f in list(vars(facts))[3:]))
    objective = Objective(LABELS[recipe.classes], max(recipe.classes, 2) if recipe.classes == 3 else 1)
    problem = TreeProblem(objective, FEATURES, (0.0 if recipe.classes else 0.4,), categories=CATEGORIES)
    given = Table(frame, ColumnNames(weight="w" if weighted else None), workers), problem
    return trainer.grow(ps, *given, replace(recipe, weighted=weighted), facts)


def digest_of(grown):
    shares = b"".join(one.tobytes() for one in grown.forest.shares)
    return digest(grown.forest.forest), shares, tuple(grown.history.objective)


# Before the module's context begins.


class DriverDies(Exception):
    """The driver is lost before it asks for splits."""


def test_forest_when_driver_is_lost_then_next_one_goes_on(spark, tmp_path, monkeypatch):
    named = replace(RECIPE, name="forest", trees=3)
    search, searches = ForestMatrices.best_splits, []

    def dying(*given):
        searches.append(1)
        if len(searches) in (3, 5):
            raise DriverDies
        return search(*given)

    monkeypatch.setattr(ForestMatrices, "best_splits", dying)
    often = {"checkpointDir": str(tmp_path), "checkpointEverySteps": 1}
    for fleet in ({"servers": 2}, {"servers": 1, "restore": str(tmp_path)}):
        with PS2Context.getOrCreate(spark, **fleet, **often) as ps, pytest.raises(DriverDies):
            grow(ps, spark, named, 2, sparse=True)
    with PS2Context.getOrCreate(spark, servers=2, restore=str(tmp_path)) as ps:
        with pytest.raises(ConfigError, match="depth was 6, and is 3"):
            grow(ps, spark, replace(named, depth=3))
        made = grow(ps, spark, named, 2, sparse=True)
        whole = grow(ps, spark, replace(named, name="", via="local"), sparse=True)
    assert digest_of(made) == digest_of(whole)


@pytest.fixture(scope="module")
def ps(spark):
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        yield ps


@pytest.mark.parametrize("kind", KINDS)
def test_forest_when_it_has_grown_then_same_in_one_process(spark, ps, kind):
    recipe, sparse, weighted = KINDS[kind]
    local = grow(ps, spark, replace(recipe, via="local"), 1, sparse, weighted)
    on_servers = grow(ps, spark, recipe, 2, sparse, weighted)
    assert digest_of(local) == digest_of(on_servers)
    assert local.forest.forest.nodes > 5 * 7


class DyingProgram(worker.ForestProgram):
    """Its worker is killed (-9) in the midst of the trees, once."""

    folder = ""

    def __call__(self, given, reading):
        add, path = worker._WorkerTrees._add, Path(self.folder, str(given.rank))

        def dying(mine, opened):
            moved = add(mine, opened)
            if mine.clock > 13 and given.rank == 1 and not path.exists():
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return moved

        worker._WorkerTrees._add = dying
        super().__call__(given, reading)


def test_forest_when_worker_is_killed_then_same_trees(spark, ps, tmp_path, by_value, monkeypatch):
    expected = digest_of(grow(ps, spark, RECIPE, 2))
    monkeypatch.setattr(trainer, "ForestProgram", DyingProgram)
    monkeypatch.setattr(DyingProgram, "folder", str(tmp_path))
    assert digest_of(grow(ps, spark, RECIPE, 2)) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.fixture(scope="module")
def frame(spark):
    x = np.random.default_rng(0).normal(size=(400, 4))
    y = (x[:, 0] > 0) + 2.0 * (x[:, 1] * x[:, 2] > 0)
    rows = [
        (Vectors.dense(row.tolist()), float(label), float(n % 3))
        for n, (row, label) in enumerate(zip(x, y, strict=True))
    ]
    return spark.createDataFrame(rows, ["features", "label", "w"]).coalesce(1).cache()


def test_classifier_when_saved_then_loads_and_predicts_the_same(ps, frame, tmp_path):
    model = RandomForestClassifier(numTrees=10, maxDepth=6, weightCol="w", thresholds=[1, 2, 1, 1], leafCol="l").fit(
        frame
    )
    model.save(str(tmp_path / "model"))
    loaded = RandomForestClassificationModel.load(str(tmp_path / "model"))
    columns = ["rawPrediction", "probability", "prediction", "l"]
    expected = model.transform(frame).select(columns).collect()
    assert loaded.transform(frame).select(columns).collect() == expected
    x = np.array([row.features.toArray() for row in frame.select("features").collect()])
    alone = RandomForest.load(str(tmp_path / "model")).predictProbability(x)
    assert np.array_equal(alone, [row.probability.toArray() for row in expected])
    assert model.evaluate(frame).accuracy > 0.8


def test_classifier_when_asked_then_tells_what_pyspark_does(ps, frame):
    model = RandomForestClassifier(numTrees=3, maxDepth=3).fit(frame)
    row = frame.first().features
    votes = sum(tree.predictProbability(row).toArray() for tree in model.trees)
    assert np.allclose(model.predictRaw(row).toArray(), votes)
    assert model.featureImportances.toArray().sum() == pytest.approx(1)
    assert (model.treeWeights, model.totalNumNodes) == ([1.0] * 3, sum(tree.numNodes for tree in model.trees))
    assert model.toDebugString.count("Tree ") == 3
    assert model.summary.history.reason == "all trees have grown"


def test_regressor_when_fitted_then_mean_of_its_trees(ps, frame, tmp_path):
    model = RandomForestRegressor(numTrees=4, seed=3).fit(frame)
    row = frame.first().features
    assert model.predict(row) == pytest.approx(np.mean([tree.predict(row) for tree in model.trees]))
    model.trees[1].save(str(tmp_path / "tree"))
    model.save(str(tmp_path / "model"))
    assert RandomForestRegressionModel.load(str(tmp_path / "model")).predict(row) == model.predict(row)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"numTrees": 0}, "numTrees: expected a number in"),
        ({"featureSubsetStrategy": "x"}, "featureSubsetStrategy: expected one of"),
        ({"impurity": "variance"}, "impurity: expected one of gini, entropy, got 'variance'"),
        ({"subsamplingRate": 0.0}, "subsamplingRate: expected"),
        ({"oobScore": True, "bootstrap": False}, "oobScore: expected trees that leave rows out"),
        ({"via": "local", "numWorkers": 2}, "via: expected 'servers' or 'auto' for 2 workers"),
    ],
)
def test_classifier_when_params_are_wrong_then_config_error(ps, frame, params, message):
    with pytest.raises(ConfigError, match=message):
        RandomForestClassifier(**params).fit(frame)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("features, label, 0.0 AS w", "expected weights of which some are above 0"),
        ("features, double('nan') AS label, w", "column 'label': "),
        ("features, label + 0.5 AS label, w", "column 'label': "),
    ],
)
def test_classifier_when_rows_are_wrong_then_input_error(ps, frame, columns, message):
    with pytest.raises(InputError, match=message):
        RandomForestClassifier(weightCol="w").fit(frame.selectExpr(columns.split(", ")))


@pytest.mark.parametrize("via", ["local", "servers"])
def test_forest_when_no_row_is_drawn_then_error_says_so(ps, frame, via):
    with pytest.raises(InputError, match="subsamplingRate=1e-06 of 400 rows: none of the 3 trees has drawn a row"):
        RandomForestClassifier(numTrees=3, subsamplingRate=1e-6, via=via).fit(frame)


def test_oob_score_when_labels_are_noise_then_is_chance(ps, frame):
    # A hash of the features, so that trees can learn the rows that they have, and no others.
    noise = frame.selectExpr("features", "double(hash(features) % 2 = 0) AS label", "w")
    params = {"maxDepth": 15, "numTrees": 30, "oobScore": True}
    model = RandomForestClassifier(**params).fit(noise)
    assert model.summary.accuracy > 0.95
    assert model.summary.oobScore < 0.6
    numbers = RandomForestRegressor(**params).fit(noise).summary
    assert numbers.r2 > 0.5 > 0.1 > numbers.oobScore


def test_oob_score_when_there_is_much_to_learn_then_high(ps, frame):
    params = {"maxDepth": 8, "numTrees": 30, "oobScore": True, "weightCol": "w"}
    local = RandomForestClassifier(**params, via="local").fit(frame).summary
    assert 0.7 < local.oobScore < local.accuracy
    on_servers = RandomForestClassifier(**params, numWorkers=2).fit(frame).summary
    assert on_servers.oobScore == pytest.approx(local.oobScore, rel=1e-12)
    assert RandomForestClassifier(numTrees=2).fit(frame).summary.oobScore is None


def test_classifier_when_there_is_one_class_then_leaves(ps, frame):
    model = RandomForestClassifier(numTrees=2).fit(frame.selectExpr("features", "0.0 AS label"))
    assert model.totalNumNodes == 2
    assert model.predictProbability(frame.first().features).toArray().tolist() == [1, 0]


def test_regressor_when_labels_are_huge_then_means_are_right(ps, frame):
    huge = frame.selectExpr("features", "label * 1e9 + 1e9 AS label")
    model = RandomForestRegressor(numTrees=1, bootstrap=False, maxDepth=0).fit(huge)
    mean = huge.selectExpr("avg(label)").first()[0]
    assert model.predict(frame.first().features) == pytest.approx(mean, rel=1e-15)
