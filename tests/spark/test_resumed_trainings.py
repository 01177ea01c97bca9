"""Drivers that resume a training, or repeat a clock, in one family alone; the rest is in ``test_every_training.py``.

Drivers of trees that are killed (-9) are in ``test_train_gbt.py``.
"""

from __future__ import annotations

from dataclasses import replace

import boosting
import numpy as np
import pytest
from boosting import PROBLEM, RECIPE, digest, facts_of, table
from faults import processes
from faults.while_training import DriverLost
from training import make, plan_of
from trainings import TRAININGS

from ps2 import DCV, PS2Conf, PS2Context
from ps2.algorithms.graph import LINE
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.trainer import train as train_linear
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table
from ps2.algorithms.trees.program import train
from ps2.algorithms.trees.quantiles import TURNS, Quantiles
from ps2.algorithms.trees.tree_matrices import HistogramMatrices
from ps2.storage import folders
from tests.plans import changed

pytestmark = pytest.mark.usefixtures("no_fleet")

TREES = changed(RECIPE, maxIter=6, stepSize=0.7, validationIndicatorCol="held", validationTol=0.001, name="trees")
LINEAR = plan_of("minibatch", optimizer="ftrl", maxIter=60, stepSize=0.5, validationIndicatorCol="held", name="linear")


# -- trainings of which the driver says when they end -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["clusters/k-means", "dictionary/dictionary"])
def test_training_when_extended_at_its_end_then_as_in_one_go(spark, tmp_path, name):
    """Of the last checkpoints, workers know in one that there is no more to do, and another one is of after STOP."""
    training, folder = TRAININGS[name], str(tmp_path)
    often = {"checkpointDir": folder, "checkpointEverySteps": 1, "conf": PS2Conf(keep=100)}
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        expected = training.on(ps, spark)(more=2)
    with PS2Context.getOrCreate(spark, servers=2, **often) as ps:
        training.on(ps, spark)(name="extended", on_step=lambda step: ps.checkpoint())
    for actual in folders.find(folder)[-5:]:
        with PS2Context.getOrCreate(spark, servers=1, restore=actual.url) as ps:
            result = training.on(ps, spark)(name="extended", more=2)
        training.check(result, expected, 0.0)


# -- trees -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def dies(monkeypatch):
    """``dies(n)``: the driver is lost when it asks for splits the n-th time from now; ``dies(0)``: never."""
    search = HistogramMatrices.best_splits

    def die(at):
        searches = []

        def dying(fleet, growth):
            searches.append(1)
            if len(searches) == at:
                raise DriverLost
            return search(fleet, growth)

        monkeypatch.setattr(HistogramMatrices, "best_splits", dying)

    return die


def grow(ps, spark, recipe=TREES, workers=2, sparse=False):
    """Train on the table, a third of whose rows are held out."""
    x, y = table()
    held = np.arange(len(y)) % 3 == 0
    frame = boosting.dealt(spark, x, y, workers, sparse, {"held": held.tolist()}).frame
    return train(ps, Table(frame, ColumnNames(validation="held"), workers), PROBLEM, recipe, facts_of(y[~held]))


@pytest.mark.nightly
def test_trees_when_lost_in_mid_tree_twice_then_same_model(spark, tmp_path, dies):
    """On other servers each time, fewer and then more, for which histograms and their marks are cut anew."""
    folder = str(tmp_path)
    often = {"checkpointDir": folder, "checkpointEverySteps": 1}
    for at, fleet in ((7, {"servers": 2}), (3, {"servers": 1, "restore": folder})):
        dies(at)
        with PS2Context.getOrCreate(spark, **fleet, **often) as ps, pytest.raises(DriverLost):
            grow(ps, spark, sparse=True)
    dies(0)
    with PS2Context.getOrCreate(spark, servers=2, restore=folder) as ps:
        resumed = grow(ps, spark, workers=1, sparse=True)
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        whole = grow(ps, spark, replace(TREES, name=""))
    assert digest(resumed.model) == digest(whole.model)
    assert resumed.history.objective == pytest.approx(whole.history.objective, rel=1e-12)
    assert resumed.history.validation == pytest.approx(whole.history.validation, rel=1e-12)
    assert (resumed.history.steps, resumed.history.reason) == (whole.history.steps, whole.history.reason)


def test_trees_when_resumed_with_fewer_rounds_then_the_first(spark, tmp_path):
    often = {"checkpointDir": str(tmp_path), "checkpointEverySteps": 1}
    with PS2Context.getOrCreate(spark, servers=2, **often) as ps:
        forest = grow(ps, spark, changed(TREES, maxIter=2)).model
    with PS2Context.getOrCreate(spark, servers=1, restore=str(tmp_path)) as ps:
        fewer = grow(ps, spark, changed(TREES, maxIter=1))
    assert (len(forest.trees), len(fewer.model.trees), fewer.history.steps) == (2, 1, 1)
    assert digest(fewer.model) == digest(replace(forest, trees=forest.trees[:1]))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::ps2.errors.CheckpointWarning")
def test_trees_when_servers_die_in_cut_points_then_same_bits(spark, tmp_path, monkeypatch):
    """Each time all roll back to the clock before, which is done again, with what the driver does after it."""
    taken = []

    def dying(step):
        take = getattr(Quantiles, step)

        def taking(quantiles, *given):
            taken.append(step)
            result = take(quantiles, *given)
            if taken.count(step) == 1:
                processes.kill(processes.servers_of(ps)[0])
                ps.vector("kept").pull()  # waits until all have rolled back
            return result

        return taking

    steps = {"number_values": 1, "find_many": 1, "find_heavy": TURNS - 1, "cut": 1}
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(tmp_path), checkpointEverySteps=1) as ps:
        whole = boosting.trained(ps, spark)
        for step in steps:
            monkeypatch.setattr(Quantiles, step, dying(step))
        DCV.dense(2, name="kept")
        resumed = boosting.trained(ps, spark)
        assert [each.rolledBack for each in ps.recoveries] == [True] * 4
    assert taken == [step for step, times in steps.items() for _ in range(times + 1)]
    assert digest(resumed.model) == digest(whole.model)


# -- linear models -----------------------------------------------------------------------------------------------------


def fit(ps, frame, facts, dies_after=None):
    def on_step(report):
        if report.number == dies_after:
            raise DriverLost

    table = Table(frame, ColumnNames(validation="held"), 2)
    return train_linear(ps, table, Problem("logistic", 5, l1=0.001, l2=0.01), LINEAR, facts, on_step)


def test_linear_when_driver_is_lost_then_another_has_the_best(spark, tmp_path):
    """One dies before the end, another after STOP: of the latter's checkpoint no clock is left to do.

    Rows held out have random labels: after some steps, the model gets worse for them.
    """
    rows, held = make(cuts=(20,)), np.arange(60) % 3 == 0
    noisy = held & (np.random.default_rng(3).random(60) < 0.4)
    rows = replace(rows, y=np.where(noisy, 1 - rows.y, rows.y), c=np.ones(60), held=held)
    frame, facts, folder = rows.frame(spark), rows.facts(2), str(tmp_path)
    often = {"checkpointDir": folder, "checkpointEverySteps": 1}
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        whole = fit(ps, frame, facts)
        expected, steps = whole.weight.pull(), whole.history.steps
    assert "held out" in whole.history.reason
    assert 2 < steps < LINEAR.settings.maxIter
    with PS2Context.getOrCreate(spark, servers=2, **often) as ps, pytest.raises(DriverLost):
        fit(ps, frame, facts, dies_after=steps)
    for _ in ("some clocks are left", "none is left"):
        with PS2Context.getOrCreate(spark, servers=1, restore=folder, **often) as ps:
            resumed = fit(ps, frame, facts)
            np.testing.assert_allclose(resumed.weight.pull(), expected, rtol=1e-12)
            assert resumed.history.validation == pytest.approx(whole.history.validation, rel=1e-12)
            assert resumed.history.reason == whole.history.reason


# -- embeddings --------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_line_when_both_orders_are_running_then_each_resumes(spark, tmp_path):
    pairs = [(a, b) for a in range(12) for b in range(a + 1, 12) if a // 6 == b // 6]
    edges = spark.createDataFrame(pairs, "src long, dst long").coalesce(1).persist()
    line = LINE(vectorSize=8, maxIter=12, stepSize=0.2, numWorkers=1)._resumable("pairs")
    folder = str(tmp_path)
    with PS2Context.getOrCreate(spark, servers=1, checkpointDir=folder, checkpointEverySteps=7, conf=PS2Conf(keep=100)):
        whole = line.fit(edges).summary.history
    checkpoints = {folders.read_manifest(result.url).step: result.url for result in folders.find(folder)}
    # The worker may have been a clock ahead; the second order begins after 12 steps.
    first, last = min(step for step in checkpoints if step), max(step for step in checkpoints if step < 24)
    assert 7 <= first < 12 < last
    for step in (first, last):
        with PS2Context.getOrCreate(spark, servers=2, restore=checkpoints[step]) as ps:
            assert ps.nextStep == step
            again = line.fit(edges)
        assert again.summary.history.steps == 24
        assert again.summary.history.objective[:step] == whole.objective[:step]
        assert again.embedding.vectors.shape == (12, 8)
