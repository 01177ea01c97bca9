"""Topics found by workers and servers."""

from __future__ import annotations

import numpy as np
import pytest
from topics_training import RECIPE, TOPICS, WORDS, documents, trained

from ps2 import PS2Context


@pytest.fixture(scope="module")
def ps(spark):
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        yield ps


def test_training_when_done_then_counts_are_those_of_all_tokens(ps, spark):
    found = trained(ps, spark)
    assert found.counts.shape == (WORDS, TOPICS)
    assert found.counts.min() == 0
    np.testing.assert_array_equal(found.counts.sum(axis=1), documents().sum(axis=0))


def test_training_when_done_then_topics_are_likelier_than_in_the_beginning(ps, spark):
    steps = []
    found = trained(ps, spark, on_step=steps.append)
    assert len(steps) == found.history.steps == RECIPE.iterations
    assert found.history.objective[-1] < found.history.objective[0] - 0.1
    assert {step.told["tokens_per_s"] > 0 for step in steps} == {True}
