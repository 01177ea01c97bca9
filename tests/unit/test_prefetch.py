"""Reads in the background: when they are sent, and what their results hold. The fleet is in this process."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ps2 import DCV
from ps2.client import plans
from ps2.config import RetryConfig
from ps2.errors import OutOfRangeError, UnavailableError, UsageError
from tests.fakes import FailsBeforeSending, FleetInProcess, installed, sent, session_over


@pytest.fixture
def fleet():
    return FleetInProcess()


@pytest.fixture
def other(fleet):
    """The session of another worker."""
    return session_over(fleet)


@pytest.fixture
def session(fleet):
    with installed(session_over(fleet)) as session:
        yield session
        session.dispatch.flush()


@pytest.fixture
def vector(session):
    return DCV.dense(10, dtype="float64")


def change(other, vector, value):
    """Another worker adds."""
    other.dispatch.run([plans.push(vector._target(), "push_add", np.full(10, float(value)), 0, 10)])


def test_prefetch_when_clock_is_allowed_then_reads_at_once(prefetches, vector, other):
    ahead = sent(prefetches.begin(vector, None, 1))
    change(other, vector, 1)
    prefetches.enter(6, 6, 0)
    assert ahead.result().tolist() == [0.0] * 10


def test_prefetch_when_clock_is_not_allowed_then_reads_on_entry(prefetches, vector, other):
    ahead = prefetches.begin(vector, None, 2)
    assert not ahead.is_started
    change(other, vector, 1)
    prefetches.enter(6, 7, 0)
    assert ahead.is_started
    assert ahead.result().tolist() == [1.0] * 10


def test_prefetch_when_result_precedes_send_then_is_pulled(prefetches, vector):
    vector.add(2)
    assert prefetches.begin(vector, None, 2).result().tolist() == [2.0] * 10


def test_prefetch_when_used_in_later_clock_then_is_pulled_again(prefetches, vector, other):
    ahead = sent(prefetches.begin(vector, None, 1))
    change(other, vector, 1)
    prefetches.enter(7, 9, 0)
    assert ahead.result().tolist() == [1.0] * 10


def test_prefetch_when_fleet_rolled_back_then_is_pulled_again(prefetches, vector, other):
    ahead = sent(prefetches.begin(vector, None, 1))
    change(other, vector, 1)
    prefetches.enter(3, 6, 1)
    assert ahead.result().tolist() == [1.0] * 10


def test_prefetch_when_barrier_passed_then_is_pulled_again(prefetches, vector, other):
    ahead = sent(prefetches.begin(vector, None, 1))
    change(other, vector, 1)
    prefetches.record_sync()
    assert ahead.result().tolist() == [1.0] * 10


def test_prefetch_when_worker_adds_after_read_then_sees_own_add(prefetches, vector):
    ahead = sent(prefetches.begin(vector, np.array([3, 1, 3]), 1))
    vector.add([5.0, 7.0], [3, 9], wait=False)
    vector.sub(np.arange(10.0), wait=False)
    assert ahead.result().tolist() == [2.0, -1.0, 2.0]


@pytest.mark.parametrize(
    "write",
    [lambda u: u.fill(4), lambda u: u.zero().add(4, wait=False), lambda u: u.push(np.full(10, 4.0))],
    ids=["fill", "add_scalar", "push"],
)
def test_prefetch_when_worker_overwrites_then_is_pulled_again(prefetches, vector, write):
    ahead = sent(prefetches.begin(vector, None, 1))
    write(vector)
    assert ahead.result().tolist() == [4.0] * 10


def test_prefetch_when_other_vector_changes_then_stays_valid(prefetches, vector, fleet):
    sibling = vector.derive()
    ahead = sent(prefetches.begin(vector, None, 1))
    sibling.fill(1)
    before = len(fleet.sent)
    assert not ahead.result().any()
    assert len(fleet.sent) == before


def test_prefetch_when_additions_are_queued_then_sees_them(prefetches, session, vector):
    with session.async_writer.hold_back([plans.pull(vector._target(), 0, 10)]) as reading:  # nothing leaves
        vector.add(np.ones(10), wait=False)
        vector.add(np.ones(10), wait=False)
        ahead = prefetches.begin(vector, None, 1)
    session.async_writer.forget(reading)
    assert ahead.result().tolist() == [2.0] * 10


def test_result_when_called_twice_then_is_same_array(prefetches, vector):
    ahead = prefetches.begin(vector, None, 1)
    assert ahead.result() is ahead.result()


def test_indices_when_caller_changes_them_then_reads_originals(prefetches, vector):
    vector.push(np.arange(10.0))
    indices = np.array([1, 2])
    ahead = prefetches.begin(vector, indices, 2)
    indices[:] = 0
    assert ahead.result().tolist() == [1.0, 2.0]


def test_prefetch_when_sparse_and_worker_adds_then_sees_own_adds(prefetches, session):
    clicks = DCV.sparse(2**40, dtype="int64").add([1, 2], [7, 2**39])
    ahead = sent(prefetches.begin(clicks, [2**39, 7, 8], 1))
    clicks.add([10, 10], [8, 7], wait=False)
    assert ahead.result().tolist() == [2, 11, 10]


def test_prefetch_when_the_read_fails_then_the_result_says_why(prefetches, session, vector, monkeypatch):
    faulty = FailsBeforeSending(session.network, times=10**6)
    monkeypatch.setattr(session.dispatch, "network", faulty)
    monkeypatch.setattr(session.dispatch, "retry", RetryConfig(total_s=0.0, first_pause_s=0.001))
    with pytest.raises(UnavailableError, match="refused"):
        prefetches.begin(vector, None, 1).result()


def test_threads_when_prefetches_are_closed_then_end(prefetches, vector):
    for _ in range(3):
        prefetches.begin(vector, None, 1)
    prefetches.close()
    assert all(thread.name != "ps2-prefetch" for thread in threading.enumerate())


@pytest.mark.parametrize("ahead", [-1, 1.5, True, None])
def test_prefetch_when_ahead_is_no_clock_count_then_is_refused(prefetches, vector, ahead):
    with pytest.raises(UsageError, match="ahead"):
        prefetches.begin(vector, None, ahead)


def test_prefetch_when_sparse_without_indices_then_is_refused(prefetches, session):
    with pytest.raises(UsageError, match="indices"):
        prefetches.begin(DCV.sparse(100), None, 1)


def test_prefetch_when_index_is_out_of_range_then_is_refused(prefetches, vector):
    with pytest.raises(OutOfRangeError):
        prefetches.begin(vector, [10], 1)


def test_prefetch_when_more_is_allowed_mid_clock_then_is_read(prefetches, vector, other):
    ahead = prefetches.begin(vector, None, 2)
    change(other, vector, 1)
    prefetches.allow(7, 0)
    assert sent(ahead).is_started
    change(other, vector, 1)
    prefetches.enter(7, 7, 0)
    assert ahead.result().tolist() == [1.0] * 10


def test_prefetch_when_other_epoch_allows_more_then_is_not_read(prefetches, vector):
    ahead = prefetches.begin(vector, None, 2)
    prefetches.allow(7, 1)
    assert not ahead.is_started


def test_prefetch_when_result_precedes_permission_then_not_sent(prefetches, vector):
    ahead = prefetches.begin(vector, None, 2)
    ahead.result()
    prefetches.allow(7, 0)
    assert not ahead.is_started
