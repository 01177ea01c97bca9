"""A worker's clocks with additions under way and budgets of time; coordinator and fleet are in this process."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from ps2 import DCV
from ps2.client import plans
from ps2.errors import LimitError, UsageError
from tests.fakes import FleetInProcess, RefusesForGood, installed, session_over

WAIT_S = 10.0


class HoldsQueuedUpdates:
    """Passes everything on; what the async_writer sends waits while ``open`` is not set."""

    def __init__(self, transport):
        self.transport = transport
        self.open = threading.Event()
        self.open.set()

    def exchange(self, requests):
        if threading.current_thread().name == "ps2-async_writer":
            assert self.open.wait(WAIT_S)
        return self.transport.exchange(requests)

    def __getattr__(self, name):
        return getattr(self.transport, name)


def read_of(vector):
    """While such a read is under way, no change of the vector leaves."""
    return plans.pull(vector._target(), 0, vector.dim)


@pytest.fixture
def fleet():
    return HoldsQueuedUpdates(FleetInProcess())


@pytest.fixture
def session(fleet):
    with installed(session_over(fleet)) as session:
        yield session
        fleet.open.set()
        session.dispatch.flush()


@pytest.fixture
def vector(session):
    return DCV.dense(10, dtype="float64")


@pytest.fixture
def start(start_worker):
    return start_worker


def ones(vector, wait=False):
    vector.add(np.ones(10), wait=wait)


# -- additions across clocks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("staleness", "applied"), [(1, [0, 0]), (2, [0, 0, 0]), (None, [0, 0, 0, 0, 0])])
def test_clock_when_additions_are_in_flight_then_obeys_staleness(start, fleet, vector, staleness, applied):
    worker, control = start(staleness)
    fleet.open.clear()
    for _ in worker.clocks(10):
        if len(control.arrivals) == len(applied):
            fleet.open.set()  # else it would wait at the end of this one
        ones(vector)
    assert [arrived for _, arrived in control.arrivals[: len(applied)]] == applied
    assert control.arrivals[-1] == (10, 10)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_clock_when_it_ends_then_only_staleness_are_in_flight(start, fleet, vector, staleness):
    worker, control = start(staleness)
    for _ in worker.clocks(20):
        ones(vector)
    assert all(applied >= clock - staleness for clock, applied in control.arrivals)
    assert vector.pull().tolist() == [20.0] * 10


def test_loop_when_it_ends_then_all_additions_are_applied(start, session, vector):
    worker, control = start(None)
    for _ in worker.clocks(3):
        ones(vector)
    assert session_over(session.network).dispatch.run([vector._plan("sum")]) == [30.0]
    assert control.run.applied() == [3]


def test_ids_when_clocks_are_in_flight_then_stay_unsettled(start, fleet, vector):
    worker, _ = start(2)
    fleet.open.clear()
    for t in worker.clocks(3):
        ones(vector)
        assert worker._loop.ids.settled == 0
        if t == 2:
            fleet.open.set()
    assert worker._loop.ids.settled == 6


def test_attempt_when_died_with_additions_then_next_counts_once(start, fleet, vector):
    worker, control = start(3)
    fleet.open.clear()
    for t in worker.clocks(10):
        ones(vector)
        if t == 2:
            break
    threading.Timer(0.05, fleet.open.set).start()  # what is under way gets through, what waits does not
    worker.end()
    control.die()
    worker, control = start(3, control.run)
    seen = []
    for t in worker.clocks(10):
        seen.append(t)
        ones(vector)
    assert seen == list(range(10))
    assert vector.pull().tolist() == [10.0] * 10


def test_addition_when_it_fails_then_clock_ends_with_its_error(start, session, vector, monkeypatch):
    worker, _ = start(3)
    monkeypatch.setattr(session.dispatch, "network", RefusesForGood(session.network, LimitError("no room"), times=1000))
    clocks = worker.clocks(2)
    next(clocks)
    ones(vector)
    session.async_writer.drain()
    with pytest.raises(LimitError, match="no room"):
        next(clocks)


def test_leave_when_loop_was_left_in_clock_then_worker_is_there(start, fleet, vector):
    worker, control = start(None)
    fleet.open.clear()
    for t in worker.clocks(10):
        ones(vector)
        if t == 4:
            break
    assert control.run.applied() == [0]
    fleet.open.set()
    worker._loop.session.dispatch.flush()
    control.leave()
    assert control.run.applied() == [4]


def test_additions_when_fleet_rolls_back_then_are_made_again(start, session, vector):
    worker, control = start(3)
    control.run.add_cut("checkpoint", control.run.cut())
    seen = []
    with session.async_writer.hold_back([read_of(vector)]) as reading:  # nothing leaves before the fleet rolls back
        clocks = worker.clocks(4)
        for _ in range(2):
            seen.append(next(clocks))
            ones(vector)
        control.run.roll_back(1, "checkpoint")
        seen.append(next(clocks))
        assert session.async_writer.flush_below(10) is None
    session.async_writer.forget(reading)
    for t in itertools.chain(seen[-1:], clocks):
        seen.append(t)
        ones(vector)
    assert seen == [0, 1, 0, 0, 1, 2, 3]
    assert vector.pull().tolist() == [4.0] * 10


# -- loops -----------------------------------------------------------------------------------------------------------


def test_loop_when_earlier_was_left_in_clock_then_resumes_there(start, vector):
    worker, _ = start()
    for t in worker.clocks(5):
        ones(vector, wait=True)
        if t == 2:
            break
    for _ in worker.clocks(5):
        ones(vector, wait=True)
    assert vector.pull().tolist() == [6.0] * 10


def test_loop_when_no_clocks_are_left_then_additions_still_count(start, vector):
    worker, _ = start()
    for n in (2, 2, 1):
        for _ in worker.clocks(n):
            pass
        ones(vector, wait=True)
    assert vector.pull().tolist() == [3.0] * 10


def test_attempt_when_died_after_loops_then_next_replays_them(start, vector):
    run = None
    for _ in range(2):
        worker, control = start(0, run)
        run, seen = control.run, []
        for n in (2, 4, 6):
            seen += worker.clocks(n)
            ones(vector, wait=True)
        worker.end()
        control.die()
    assert seen == []
    assert vector.pull().tolist() == [3.0] * 10


# -- reading what waits ----------------------------------------------------------------------------------------------


def test_pull_when_many_additions_are_queued_then_does_not_wait(start, session):
    start(1)
    large = DCV.dense(1 << 20, dtype="float64")
    with session.async_writer.hold_back([read_of(large)]) as reading:  # nothing leaves
        large.add(np.ones(1 << 20), wait=False)
        assert large.pull([0, 1 << 19]).tolist() == [1.0, 1.0]
        assert session.async_writer.is_backed_up
    session.async_writer.forget(reading)


# -- budgets ---------------------------------------------------------------------------------------------------------


def test_within_when_budget_is_spent_then_takes_no_unused_item(start, monkeypatch):
    worker, _ = start()
    items, now_s = iter(range(100)), [0.0]
    monkeypatch.setattr("ps2.run.clock_loop.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    finished = []
    for _ in worker.clocks(2, budgetS=1.0):
        for item in worker.within(items):
            finished.append(item)
            now_s[0] += 0.3
    assert finished == [0, 1, 2, 3, 4, 5, 6, 7]
    assert next(items) == 8


def test_within_when_first_item_takes_budget_then_is_only_one(start, monkeypatch):
    worker, _ = start()
    now_s = [0.0]
    monkeypatch.setattr("ps2.run.clock_loop.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    for _ in worker.clocks(1, budgetS=1.0):
        now_s[0] += 5
        assert worker.timeLeft == 0
        assert list(worker.within([1, 2, 3])) == [1]


def test_within_when_there_is_no_budget_then_all_items_come(start):
    worker, _ = start()
    for _ in worker.clocks(1):
        assert list(worker.within(range(5))) == [0, 1, 2, 3, 4]
        assert worker.timeLeft == float("inf")


def test_time_left_when_the_loop_is_over_then_it_has_no_end(start):
    worker, _ = start()
    for _ in worker.clocks(1, budgetS=0.001):
        pass
    assert worker.timeLeft == float("inf")


@pytest.mark.parametrize("budget", [0, -1, "1", True, float("nan")])
def test_clocks_when_budget_is_not_positive_then_is_refused(start, budget):
    with pytest.raises(UsageError, match="budgetS"):
        start()[0].clocks(3, budgetS=budget)


def test_within_when_it_is_given_no_items_then_it_is_refused(start):
    with pytest.raises(UsageError, match="within"):
        start()[0].within(5)
