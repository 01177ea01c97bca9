"""A driver ends amid the training of a metric: another one goes on from the checkpoint, to the same metric."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import PS2Conf, PS2Context
from ps2.algorithms import MetricLearning
from ps2.algorithms.metric import trainer
from ps2.errors import ConfigError


@pytest.fixture(scope="module")
def labelled(spark):
    x = np.random.default_rng(2).normal(size=(60, 6))
    rows = [(one.tolist(), float(number % 2)) for number, one in enumerate(x)]
    return spark.createDataFrame(rows, "features array<double>, label double").repartition(2).cache()


def test_fit_when_driver_ends_then_next_one_finds_same_metric(spark, labelled, tmp_path, monkeypatch):
    folder, estimator = str(tmp_path), MetricLearning(rank=2, maxIter=6, miniBatchFraction=0.5, numWorkers=2, seed=4)
    steps = trainer._Driver._step
    taken = []

    def ended(self):
        steps(self)
        taken.append(1)
        if len(taken) == 4:
            raise KeyboardInterrupt

    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=folder, checkpointEverySteps=1, conf=PS2Conf(keep=1)):
        expected = estimator.fit(labelled).metric
        monkeypatch.setattr(trainer._Driver, "_step", ended)
        with pytest.raises(KeyboardInterrupt):
            estimator.copy()._resumable("metric").fit(labelled)
    monkeypatch.undo()
    with PS2Context.getOrCreate(spark, servers=1, restore=folder):
        with pytest.raises(ConfigError, match="'metric' in the checkpoint is another one: seed was 4, and is 5"):
            estimator.copy({estimator.seed: 5})._resumable("metric").fit(labelled)
        found = estimator.copy()._resumable("metric").fit(labelled).metric
    np.testing.assert_allclose(found.components, expected.components, rtol=1e-7)
