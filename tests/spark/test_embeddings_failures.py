"""Servers and drivers die while vectors are learned: the training goes on from its checkpoint."""

from __future__ import annotations

from dataclasses import replace

import embedding_training
import pytest
from embedding_training import RECIPE, margin, trained
from faults import processes
from pyspark import cloudpickle

from ps2 import PS2Conf, PS2Context
from ps2.algorithms.graph import LINE
from ps2.errors import ConfigError
from ps2.storage import folders


@pytest.fixture(scope="module", autouse=True)
def helpers_by_value():
    cloudpickle.register_pickle_by_value(embedding_training)
    yield
    cloudpickle.unregister_pickle_by_value(embedding_training)


class Stopped(Exception):
    """The driver ends here."""


@pytest.mark.parametrize("via", ["auto", "servers"])
def test_training_when_driver_is_lost_then_next_one_continues(spark, tmp_path, via):
    named, folder = replace(RECIPE, name="walks", via=via), str(tmp_path)

    def stop(report):
        if report.number == 2:
            raise Stopped

    with PS2Context.getOrCreate(spark, servers=1, checkpointDir=folder, checkpointEverySteps=3) as ps:
        with pytest.raises(Stopped):
            trained(ps, named, on_step=stop)
        ps.stop()
    with PS2Context.getOrCreate(spark, servers=2, restore=folder) as ps:
        with pytest.raises(ConfigError, match="'walks' in the checkpoint is another one: size was 16, and is 17"):
            trained(ps, replace(named, size=17))
        steps = []
        found = trained(ps, named, on_step=steps.append)
    assert [step.number for step in steps] == [2, 3]
    assert found.history.steps == RECIPE.epochs
    assert margin(found) > 0.5


def test_training_when_server_dies_then_rolls_back_and_continues(spark, tmp_path):
    steps = []

    def kill(report):
        steps.append(report.number)
        if len(steps) == 2:
            processes.kill(processes.servers_of(ps)[0])

    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(tmp_path), checkpointEverySteps=3) as ps:
        found = trained(ps, replace(RECIPE, via="servers"), on_step=kill)
        assert ps.recoveries[-1].rolledBack
    assert steps[-1] == found.history.steps == RECIPE.epochs
    assert margin(found) > 0.5


def test_line_when_both_orders_are_running_then_each_continues(spark, tmp_path):
    pairs = [(a, b) for a in range(12) for b in range(a + 1, 12) if a // 6 == b // 6]
    edges = spark.createDataFrame(pairs, "src long, dst long").coalesce(1).persist()
    line = LINE(vectorSize=8, maxIter=12, stepSize=0.2, numWorkers=1)._resumable("pairs")
    folder = str(tmp_path)
    with PS2Context.getOrCreate(spark, servers=1, checkpointDir=folder, checkpointEverySteps=7, conf=PS2Conf(keep=100)):
        whole = line.fit(edges).summary.history
    checkpoints = {folders.read_manifest(found.url).step: found.url for found in folders.find(folder)}
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
