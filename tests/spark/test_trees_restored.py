"""A driver is lost while trees grow: another one goes on from the checkpoint, to the same trees.

One that is killed (-9) is in ``test_train_gbt.py``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from boosting import PROBLEM, RECIPE, dealt, digest, facts_of, table

from ps2 import PS2Context
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table
from ps2.algorithms.trees.driver_messages import DriverMessage, Task
from ps2.algorithms.trees.trainer import TreeMatrices, train
from ps2.errors import ConfigError, NotFoundError

NAMED = replace(RECIPE, rounds=6, rate=0.7, validate=True, validation_tol=0.001, name="trees")


class DriverDiesInMidTree(Exception):
    """The driver is lost before it asks for the splits of a tree's lower nodes."""


@pytest.fixture
def dies(monkeypatch):
    """``dies(n)``: the driver does when it asks for splits the n-th time from now; ``dies(0)``: never."""
    search = TreeMatrices.best_splits

    def die(at):
        searches = []

        def dying(fleet, growth, recipe):
            searches.append(1)
            if len(searches) == at:
                raise DriverDiesInMidTree
            return search(fleet, growth, recipe)

        monkeypatch.setattr(TreeMatrices, "best_splits", dying)

    return die


def grow(ps, spark, recipe=NAMED, workers=2, sparse=False, on_step=lambda step: None):
    """Train on the table, a third of whose rows are held out."""
    x, y = table()
    held = np.arange(len(y)) % 3 == 0
    frame = dealt(spark, x, y, workers, sparse, {"held": held.tolist()}).frame
    columns = ColumnNames(validation="held")
    return train(ps, Table(frame, columns, workers), PROBLEM, recipe, facts_of(y[~held]), on_step)


@pytest.fixture(scope="module")
def tasks():
    """What workers are told to do in the clocks of a training that nothing happens to."""
    return []


@pytest.fixture(scope="module")
def expected(spark, tasks, tmp_path_factory):
    """What comes of that training, and the checkpoints of one of two rounds."""
    folder, as_data = str(tmp_path_factory.mktemp("two")), DriverMessage.as_data

    def noting(message):
        tasks.append(message.task)
        return as_data(message)

    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=folder, checkpointEverySteps=1) as ps:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(DriverMessage, "as_data", noting)
            whole = grow(ps, spark, replace(NAMED, name=""))
        assert len(grow(ps, spark, replace(NAMED, rounds=2)).forest.trees) == 2
    return whole, folder


def test_trees_when_drivers_are_lost_then_same_model_and_history(spark, tmp_path, dies, expected):
    """On other servers each time, fewer and then more, for which histograms and their marks are cut anew."""
    whole, _ = expected
    folder, reports = str(tmp_path), []
    often = {"checkpointDir": folder, "checkpointEverySteps": 1}
    for at, fleet in ((7, {"servers": 2}), (3, {"servers": 1, "restore": folder})):
        dies(at)
        with PS2Context.getOrCreate(spark, **fleet, **often) as ps, pytest.raises(DriverDiesInMidTree):
            grow(ps, spark, sparse=True)
    dies(0)
    with PS2Context.getOrCreate(spark, servers=2, restore=folder) as ps:
        # What is refused leaves the training as it is.
        with pytest.raises(
            ConfigError, match="'trees' in the checkpoint is another one: depth was 4, and is 3; seed was 0, a"
        ):
            grow(ps, spark, replace(NAMED, depth=3, seed=5))
        with pytest.raises(NotFoundError, match="the checkpoint holds no training 'others'"):
            grow(ps, spark, replace(NAMED, name="others"))
        made = grow(ps, spark, workers=1, sparse=True, on_step=reports.append)
    assert digest(made.forest) == digest(whole.forest)
    assert made.history.objective == pytest.approx(whole.history.objective, rel=1e-12)
    assert made.history.validation == pytest.approx(whole.history.validation, rel=1e-12)
    assert (made.history.steps, made.history.reason) == (whole.history.steps, whole.history.reason)
    assert 1 < reports[0].number < whole.history.steps
    assert [report.number for report in reports] == list(range(reports[0].number, whole.history.steps + 1))


def test_trees_when_round_count_changes_then_match_one_training(spark, expected):
    whole, folder = expected
    with PS2Context.getOrCreate(spark, servers=1, restore=folder) as ps:
        fewer = grow(ps, spark, replace(NAMED, rounds=1))
    assert (len(fewer.forest.trees), fewer.history.steps) == (1, 1)
    assert digest(fewer.forest) == digest(replace(whole.forest, trees=whole.forest.trees[:1]))
    with PS2Context.getOrCreate(spark, servers=1, restore=folder) as ps:
        more = grow(ps, spark)
    assert digest(more.forest) == digest(whole.forest)
    assert more.history.objective == pytest.approx(whole.history.objective, rel=1e-12)
    assert more.history.steps == whole.history.steps


def test_trees_when_training_ends_early_then_no_extra_clock(expected, tasks):
    """The loss of rows held out comes with the root of the tree after: of that one nothing else is built."""
    whole, _ = expected
    grown = whole.history.steps
    assert len(whole.forest.trees) < grown < NAMED.rounds
    assert [tasks.count(task) for task in (Task.BEGIN, Task.ROOT, Task.STOP)] == [1, grown + 1, 1]
    assert tasks[-2:] == [Task.ROOT, Task.STOP]
    assert tasks.count(Task.NODES) + 3 + grown == len(tasks)
    assert tasks.count(Task.NODES) <= grown * NAMED.depth
