"""A driver ends amid online variational Bayes: another one goes on from the checkpoint, to the same topics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from topics_training import TOPICS, WORDS, dealt, documents

from ps2 import PS2Conf, PS2Context
from ps2.algorithms.topics.online import train_online
from ps2.algorithms.topics.options import OnlineOptions
from ps2.errors import ConfigError

RECIPE = OnlineOptions(TOPICS, WORDS, iterations=6, beta=0.05, offset=2.0, fraction=0.5, seed=3, name="topics")
END = 4


def end(step):
    if step.number == END:
        raise KeyboardInterrupt


def trained(ps, spark, recipe, on_step=lambda step: None):
    return train_online(ps, dealt(spark, documents(), 2), recipe, on_step)


@pytest.mark.parametrize("recipe", [RECIPE, replace(RECIPE, sync="average", local_batches=3)], ids=lambda one: one.sync)
def test_online_when_driver_ends_then_next_finds_same_topics(spark, tmp_path, recipe):
    folder = str(tmp_path)
    with PS2Context.getOrCreate(
        spark, servers=2, checkpointDir=folder, checkpointEverySteps=1, conf=PS2Conf(keep=1)
    ) as ps:
        expected = trained(ps, spark, replace(recipe, name=""))
        with pytest.raises(KeyboardInterrupt):
            trained(ps, spark, recipe, on_step=end)
    with PS2Context.getOrCreate(spark, servers=1, restore=folder) as ps:
        with pytest.raises(ConfigError, match="'topics' in the checkpoint is another one: seed was 3, and is 4"):
            trained(ps, spark, replace(recipe, seed=4))
        found = trained(ps, spark, recipe)
    np.testing.assert_allclose(found.counts, expected.counts, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.alpha, expected.alpha, rtol=1e-4)
    # It knows of its own iterations alone.
    np.testing.assert_allclose(found.history.objective, expected.history.objective[END - 1 :], rtol=1e-4)
