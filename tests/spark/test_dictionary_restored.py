"""A driver ends amid the training of a dictionary: another one goes on from the checkpoint, to the same dictionary."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import PS2Conf, PS2Context
from ps2.algorithms import DictionaryLearning
from ps2.algorithms.dictionary import trainer
from ps2.errors import ConfigError


@pytest.fixture(scope="module")
def frame(spark):
    rng = np.random.default_rng(2)
    x = rng.random((60, 30)) * (rng.random((60, 30)) < 0.3)
    return spark.createDataFrame([(row.tolist(),) for row in x], "features array<double>").repartition(2).cache()


def test_fit_when_driver_ends_then_next_one_finds_the_same(spark, frame, tmp_path, monkeypatch):
    folder, estimator = str(tmp_path), DictionaryLearning(k=8, regParam=0.1, maxIter=6, tol=0.0, seed=3, numWorkers=2)
    updated, taken = trainer._Driver._update, []

    def ended(self, state):
        updated(self, state)
        taken.append(1)
        if len(taken) == 4:
            raise KeyboardInterrupt

    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=folder, checkpointEverySteps=1, conf=PS2Conf(keep=1)):
        expected = estimator.fit(frame)
        monkeypatch.setattr(trainer._Driver, "_update", ended)
        with pytest.raises(KeyboardInterrupt):
            estimator.copy()._resumable("dictionary").fit(frame)
    monkeypatch.undo()
    with PS2Context.getOrCreate(spark, servers=1, restore=folder):
        with pytest.raises(ConfigError, match="'dictionary' in the checkpoint is another one: seed was 3, and is 5"):
            estimator.copy({estimator.seed: 5})._resumable("dictionary").fit(frame)
        found = estimator.copy()._resumable("dictionary").fit(frame)
    np.testing.assert_array_equal(found.dictionary, expected.dictionary)
    assert found.summary.objectiveHistory == expected.summary.objectiveHistory
