"""A driver is lost while trees grow: another one goes on from the checkpoint, to the same trees.

One that is killed (-9) is in ``test_train_gbt.py``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from boosting import BY_LEAF, PROBLEM, RECIPE, dealt, digest, facts_of, sparse_table, table

from ps2 import PS2Context
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.problem import Problem
from ps2.algorithms.trees.trainer import OnFleet, train
from ps2.errors import ConfigError, NotFoundError

NAMED = replace(RECIPE, rounds=6, rate=0.9, validate=True, validation_tol=0.001, name="trees")


class DriverDiesInMidTree(Exception):
    """The driver is lost before it asks for the splits of a tree's lower nodes."""


@pytest.fixture
def dies(monkeypatch):
    """``dies(n)``: the driver does when it asks for splits the n-th time from now; ``dies(0)``: never."""
    search = OnFleet.best_splits

    def die(at):
        searches = []

        def dying(fleet, growth, recipe):
            searches.append(1)
            if len(searches) == at:
                raise DriverDiesInMidTree
            return search(fleet, growth, recipe)

        monkeypatch.setattr(OnFleet, "best_splits", dying)

    return die


def grow(ps, spark, recipe=NAMED, workers=2, on_step=lambda step: None):
    """Train on the table, a third of whose rows are held out."""
    x, y = table()
    held = np.arange(len(y)) % 3 == 0
    rows = [(row.tolist(), float(label), bool(out)) for row, label, out in zip(x, y, held, strict=True)]
    frame = spark.createDataFrame(rows, "features array<double>, label double, held boolean").repartition(workers)
    columns = ColumnNames(validation="held")
    return train(ps, Table(frame, columns, workers), PROBLEM, recipe, facts_of(y[~held]), on_step)


@pytest.fixture(scope="module")
def expected(spark, tmp_path_factory):
    """What comes of a training that nothing happens to, and the checkpoints of one of two rounds."""
    folder = str(tmp_path_factory.mktemp("two"))
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=folder, checkpointEverySteps=1) as ps:
        whole = grow(ps, spark, replace(NAMED, name=""))
        assert len(grow(ps, spark, replace(NAMED, rounds=2)).forest.trees) == 2
    return whole, folder


def test_trees_when_the_driver_is_lost_then_another_one_comes_to_the_same_model_and_history(
    spark, tmp_path, dies, expected
):
    whole, _ = expected
    folder, reports = str(tmp_path), []
    dies(7)  # in the second tree
    with (
        PS2Context.getOrCreate(spark, servers=2, checkpointDir=folder, checkpointEverySteps=1) as ps,
        pytest.raises(DriverDiesInMidTree),
    ):
        grow(ps, spark)
    dies(0)
    with PS2Context.getOrCreate(spark, servers=3, restore=folder) as ps:
        # What is refused leaves the training as it is.
        with pytest.raises(
            ConfigError, match="'trees' in the checkpoint is another one: depth was 4, and is 3; seed was 0, a"
        ):
            grow(ps, spark, replace(NAMED, depth=3, seed=5))
        with pytest.raises(NotFoundError, match="the checkpoint holds no training 'others'"):
            grow(ps, spark, replace(NAMED, name="others"))
        made = grow(ps, spark, workers=1, on_step=reports.append)
    assert digest(made.forest) == digest(whole.forest)
    assert made.history.objective == pytest.approx(whole.history.objective, rel=1e-12)
    assert made.history.validation == pytest.approx(whole.history.validation, rel=1e-12)
    assert (made.history.steps, made.history.reason) == (whole.history.steps, whole.history.reason)
    assert [report.number for report in reports] == list(range(2, whole.history.steps + 1))
    with PS2Context.getOrCreate(spark, servers=1, restore=folder) as ps:
        fewer = grow(ps, spark, replace(NAMED, rounds=1))  # than there are
    assert (len(fewer.forest.trees), fewer.history.steps) == (1, 1)
    assert digest(fewer.forest) == digest(replace(whole.forest, trees=whole.forest.trees[:1]))


def test_trees_when_more_rounds_are_wanted_than_there_are_then_they_are_those_of_one_training(spark, expected):
    whole, folder = expected
    with PS2Context.getOrCreate(spark, servers=1, restore=folder) as ps:
        made = grow(ps, spark)
    assert digest(made.forest) == digest(whole.forest)
    assert made.history.objective == pytest.approx(whole.history.objective, rel=1e-12)
    assert made.history.steps == whole.history.steps


def test_trees_of_sparse_rows_when_other_servers_go_on_in_mid_tree_then_are_those_of_one_training(
    spark, tmp_path, dies
):
    """The histograms of the tree that grows are cut for other servers, their marks too: for fewer, then for more."""
    x, y = sparse_table()
    rows, facts, problem = dealt(spark, x, y, 2, sparse=True), facts_of(y), Problem(Objective("logistic"), 60, (0.0,))
    named = replace(BY_LEAF, min_child_weight=0.1, name="trees")
    folder = {"checkpointDir": str(tmp_path), "checkpointEverySteps": 1}
    for fleet in ({"servers": 2}, {"servers": 1, "restore": str(tmp_path)}):
        dies(3)
        with PS2Context.getOrCreate(spark, **fleet, **folder) as ps, pytest.raises(DriverDiesInMidTree):
            train(ps, rows, problem, named, facts)
    dies(0)
    with PS2Context.getOrCreate(spark, servers=2, restore=str(tmp_path)) as ps:
        again = train(ps, rows, problem, named, facts).forest
        whole = train(ps, rows, problem, replace(named, name=""), facts).forest
    assert digest(again) == digest(whole)
    assert min(len(tree.leaves) for tree in whole.trees) > 5
