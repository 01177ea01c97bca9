"""Topics found by workers and servers, however these share the counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from topics_training import OPTIONS, TOPICS, WORDS, documents, replayed, trained, words_likelihood

from ps2.algorithms.topics import trainer

ROTATION = replace(OPTIONS, sync="rotation")


@pytest.fixture
def shares(monkeypatch):
    """The tokens of each topic at the end, as the workers sum them up."""
    found = []

    def fitted(driver, original=trainer._Driver.fitted):
        fleet = driver._fleet
        last = fleet.shares_ring.of_clock(trainer.FIRST_CLOCK + len(driver._record._marks) - 1)
        found.append(fleet.shares.pull(last).sum(axis=0))
        return original(driver)

    monkeypatch.setattr(trainer._Driver, "fitted", fitted)
    return found


@pytest.mark.parametrize("sync", ["ssp", "average", "rotation"])
def test_training_when_done_then_counts_cover_all_tokens(ps, spark, shares, sync):
    steps = []
    found = trained(ps, spark, replace(OPTIONS, sync=sync), on_step=steps.append)
    assert found.counts.shape == (WORDS, TOPICS)
    assert found.counts.min() == 0
    np.testing.assert_array_equal(found.counts.sum(axis=1), documents().sum(axis=0))
    np.testing.assert_array_equal(shares[0], found.counts.sum(axis=0))
    assert len(steps) == found.history.steps == OPTIONS.iterations
    assert found.history.objective[-1] < found.history.objective[0] - 0.1
    assert min(found.history.metrics["tokens_per_s"]) > 0
    assert steps[-1].metrics["log_likelihood"] == pytest.approx(-found.history.objective[-1] * documents().sum())
    assert steps[-1].metrics["log_likelihood"] < words_likelihood(found.counts, found.beta)


def test_rotation_when_seed_is_fixed_then_matches_serial_bitwise(ps, spark):
    found = trained(ps, spark, ROTATION)
    np.testing.assert_array_equal(found.counts, replayed(documents(), ROTATION, 2))


def test_rotation_when_turns_end_by_time_then_counts_are_full(ps, spark):
    found = trained(ps, spark, replace(ROTATION, budget_s=0.001))
    np.testing.assert_array_equal(found.counts.sum(axis=1), documents().sum(axis=0))


def test_alpha_when_it_is_fitted_then_topics_have_different_ones(ps, spark):
    found = trained(ps, spark, replace(OPTIONS, optimize_alpha=True, iterations=32))
    assert len(np.unique(found.alpha)) == TOPICS
    assert found.alpha.min() > 0


def test_local_when_seed_is_fixed_then_equals_servers_bitwise(ps, spark):
    one = replace(OPTIONS, optimize_alpha=True, iterations=32)
    found, expected = (trained(ps, spark, replace(one, via=via), workers=1) for via in ("local", "servers"))
    np.testing.assert_array_equal(found.counts, expected.counts)
    np.testing.assert_array_equal(found.alpha, expected.alpha)
    # Before the last iteration, the servers' counts may already have changes of the next one.
    assert found.history.objective[-1] == pytest.approx(expected.history.objective[-1], rel=1e-12)
    assert found.history.bytes == 0
