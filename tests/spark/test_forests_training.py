"""Random forests of DataFrames, and in Spark whatever fails."""

from __future__ import annotations

import os
import signal
from functools import partial
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
from ps2.algorithms.trees.forests import program, worker
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.tree_matrices import HistogramMatrices
from ps2.errors import ConfigError
from tests import plans

RECIPE = plans.forest(numTrees=5, maxDepth=6, maxBins=16, impurity="gini", classes=2, rows=300, node_features=6)


def grow(ps, spark, recipe, workers=1, sparse=False):
    x, y = table()
    problem = TreeProblem(Objective("logistic"), FEATURES, (0.0,), categories=CATEGORIES)
    return program.grow(ps, dealt(spark, x, y, workers, sparse), problem, recipe, facts_of(y))


def digest_of(grown):
    shares = b"".join(one.tobytes() for one in grown.model.shares)
    return digest(grown.model.forest), shares, tuple(grown.history.objective)


# Before the module's context begins.


class DriverDies(Exception):
    """The driver is lost before it asks for splits."""


def test_forest_when_driver_is_lost_then_next_one_goes_on(spark, tmp_path, monkeypatch):
    named = plans.changed(RECIPE, name="forest", numTrees=3)
    search, searches = HistogramMatrices.best_splits, []

    def dying(*given):
        searches.append(1)
        if len(searches) in (3, 5):
            raise DriverDies
        return search(*given)

    monkeypatch.setattr(HistogramMatrices, "best_splits", dying)
    often = {"checkpointDir": str(tmp_path), "checkpointEverySteps": 1}
    for fleet in ({"servers": 2}, {"servers": 1, "restore": str(tmp_path)}):
        with PS2Context.getOrCreate(spark, **fleet, **often) as ps, pytest.raises(DriverDies):
            grow(ps, spark, named, 2, sparse=True)
    with PS2Context.getOrCreate(spark, servers=2, restore=str(tmp_path)) as ps:
        with pytest.raises(ConfigError, match="maxDepth was 6, and is 3"):
            grow(ps, spark, plans.changed(named, maxDepth=3))
        created = grow(ps, spark, named, 2, sparse=True)
        whole = grow(ps, spark, plans.changed(named, name="", via="local"), sparse=True)
    assert digest_of(created) == digest_of(whole)


@pytest.fixture(scope="module")
def ps(spark):
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        yield ps


class DyingWorker:
    """The second worker is killed (-9) in the midst of the trees, once."""

    def __init__(self, do, folder):
        self._do, self._folder, self.catch_up = do, folder, do.catch_up

    def __call__(self, given, task):
        self._do(given, task)
        path = Path(self._folder, str(given.rank))
        if given.clock > 13 and given.rank == 1 and not path.exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def dying_worker(folder, *given):
    return DyingWorker(worker.ForestWorker(*given), folder)


def test_forest_when_worker_is_killed_then_same_trees(spark, ps, tmp_path, by_value, monkeypatch):
    expected = digest_of(grow(ps, spark, RECIPE, 2))
    monkeypatch.setattr(program, "ForestWorker", partial(dying_worker, str(tmp_path)))
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


def test_regressor_when_saved_then_loads_with_its_trees(ps, frame, tmp_path):
    model = RandomForestRegressor(numTrees=2, seed=3).fit(frame)
    row = frame.first().features
    tree = model.trees[1]
    tree.save(str(tmp_path / "tree"))
    assert type(tree).load(str(tmp_path / "tree")).predict(row) == tree.predict(row)
    model.save(str(tmp_path / "model"))
    assert RandomForestRegressionModel.load(str(tmp_path / "model")).predict(row) == model.predict(row)


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
