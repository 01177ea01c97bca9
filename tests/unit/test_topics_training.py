"""Topics sampled by workers and servers, however these share the counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from topics_training import PLAN, TOPICS, WORDS, arrays, documents, replayed, words_likelihood

from ps2.algorithms.frame.program import ProgramDriver
from ps2.algorithms.topics.sampling import SamplingProgram
from ps2.algorithms.topics.sampling_worker import NO_REQUEST, START
from ps2.algorithms.topics.shared_counts import SharedCounts
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record
from ps2.errors import ConfigError, InputError
from ps2.protocol.plain_data import decode
from tests.in_process import training_context
from tests.plans import changed

ROTATION = changed(PLAN, sync="rotation")


@pytest.fixture
def ps():
    with training_context() as ps:
        yield ps


@pytest.fixture
def fleet(monkeypatch):
    """What the training has had on the servers, and has not freed."""
    left = []
    monkeypatch.setattr(SharedCounts, "free", lambda shared: left.append(shared))  # noqa: PLW0108 - binds
    return left


def trained(ps, plan, workers=2, on_step=lambda step: None):
    counts = documents()
    plan = replace(plan, tokens=int(counts.sum()), workers=workers)
    return SamplingProgram.train(ps, arrays(counts, workers), plan, on_step)


@pytest.mark.parametrize("sync", ["ssp", "average", "rotation"])
def test_training_when_done_then_counts_cover_all_tokens(ps, fleet, sync):
    steps = []
    result = trained(ps, changed(PLAN, sync=sync), on_step=steps.append)
    assert result.model.counts.shape == (WORDS, TOPICS)
    assert result.model.counts.min() == 0
    np.testing.assert_array_equal(result.model.counts.sum(axis=1), documents().sum(axis=0))
    last = fleet[0].totals_ring.clock_rows(len(ps.reports[0]) - 1)
    np.testing.assert_array_equal(fleet[0].worker_totals.pull(last).sum(axis=0), result.model.counts.sum(axis=0))
    assert len(steps) == result.history.steps == PLAN.settings.maxIter
    assert result.history.objective[-1] < result.history.objective[0] - 0.1
    assert min(result.history.metrics["tokens_per_s"]) > 0
    assert steps[-1].metrics["log_likelihood"] == pytest.approx(-result.history.objective[-1] * documents().sum())
    assert steps[-1].metrics["log_likelihood"] < words_likelihood(result.model.counts, result.model.beta)


def test_rotation_when_seed_is_fixed_then_matches_serial_bitwise(ps):
    np.testing.assert_array_equal(trained(ps, ROTATION).model.counts, replayed(documents(), ROTATION, 2))


def test_rotation_when_turns_end_by_time_then_counts_are_full(ps):
    result = trained(ps, changed(ROTATION, budgetS=0.001))
    np.testing.assert_array_equal(result.model.counts.sum(axis=1), documents().sum(axis=0))


def test_alpha_when_it_is_fitted_then_topics_have_different_ones(ps):
    result = trained(ps, changed(PLAN, optimizeDocConcentration=True, maxIter=32))
    assert len(np.unique(result.model.alpha)) == TOPICS
    assert result.model.alpha.min() > 0


def test_local_when_seed_is_fixed_then_equals_servers_bitwise(ps):
    one = changed(PLAN, optimizeDocConcentration=True, maxIter=32)
    result, expected = (trained(ps, replace(one, is_local=is_local), workers=1) for is_local in (True, False))
    np.testing.assert_array_equal(result.model.counts, expected.model.counts)
    np.testing.assert_array_equal(result.model.alpha, expected.model.alpha)
    # Before the last iteration, the servers' counts may already have changes of the next one.
    assert result.history.objective[-1] == pytest.approx(expected.history.objective[-1], rel=1e-12)
    assert result.history.bytes == 0


@pytest.mark.parametrize("topics", [1, 70_000])
def test_training_when_topics_are_1_or_70000_then_all_have_one(ps, topics):
    result = trained(ps, changed(PLAN, k=topics, maxIter=1))
    np.testing.assert_array_equal(result.model.counts.sum(axis=1), documents().sum(axis=0))
    assert (result.model.counts[:, topics * 15 // 16 :] > 0).any()  # of 70,000, beyond 16 bits


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (-1, "features: 40 of 40 rows hold values that are no counts, such as -1 in row 0"),
        (0.5, "0.5 in row 0 of rdd_partition 0: feature 1 is a count, so expected a whole"),
    ],
)
def test_training_when_rows_are_no_counts_then_error_says_so(ps, wrong, message):
    counts = sp.csr_array(np.tile([1, wrong], (40, 1)))
    with pytest.raises(InputError, match=message):
        SamplingProgram.train(ps, arrays(counts, 2), replace(PLAN, vocabulary=2, tokens=1, workers=2))


class Driver:
    """The driver of two workers' training, which are not there: the test calls it after each of their clocks."""

    def __init__(self, plan, clocks=0, messages=()):
        names = CheckpointNames(plan.name, None, (clocks, clocks), messages)
        self.record = Record(lambda step: None)
        self.driver = ProgramDriver(SamplingProgram(replace(plan, tokens=100), self.record, names), names)
        self.driver.start()

    def end_clock(self, iteration, request=NO_REQUEST):
        """Return the driver's message after a clock in which an iteration has ended."""
        report = {"finished": iteration, "request": request, "likelihood": -50.0, "tokens": 100, "bytes": 0}
        return self.driver.on_clock(iteration, [report])


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_training_when_a_page_is_lost_then_no_iteration_is(lost):
    """A checkpoint within a call of ``on_step`` counts the clock, and lacks the message with its report."""
    plan = changed(PLAN, maxIter=3, is_local=True, name="mine")
    with training_context():
        first = Driver(plan)
        sent = [first.driver.message(), first.driver.on_clock(0), *(first.end_clock(step) for step in range(1, lost))]
    with training_context():
        other = Driver(plan, START + lost + 1, [decode(message.encoded) for message in sent])
        for iteration in range(lost + 1, 4):
            other.end_clock(iteration)
    assert np.isnan(other.record.objective).tolist() == [step == lost for step in (1, 2, 3)]
    assert other.driver.is_over


@pytest.mark.usefixtures("ps")
def test_likelihood_when_request_was_rolled_back_then_is_known():
    """The last clocks of a run with a staleness: the clock in which counts were to be rebuilt is after its end."""
    driver = Driver(changed(PLAN, maxIter=3, staleness=2, is_local=True))
    driver.driver.on_clock(0)
    driver.end_clock(1)
    driver.end_clock(2, request=1)
    driver.end_clock(3)
    assert np.isnan(driver.record.objective).tolist() == [False, True, True]
    for iteration in (1, 2, 3):
        driver.end_clock(iteration)
    assert driver.record.objective == [0.5] * 3


@pytest.mark.usefixtures("ps")
@pytest.mark.parametrize("before", [-1, 2])
def test_training_when_save_interval_changes_then_is_refused(before):
    """It decides which vectors there are."""
    plan = changed(PLAN, name="mine", checkpointInterval=before)
    message = Driver(plan).driver.message()
    with pytest.raises(ConfigError, match=f"is another one: checkpointInterval was {before}, and is 5"):
        Driver(changed(plan, checkpointInterval=5), 1, [decode(message.encoded)])
