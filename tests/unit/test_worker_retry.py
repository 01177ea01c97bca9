"""A worker whose call fails because the fleet rolled back runs again in the same attempt."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import RolledBack
from ps2.run.clocks import Clocks
from ps2.run.state import RunState
from tests.blocking_run import BlockingRun
from tests.fakes import FleetInProcess, installed, session_over


@pytest.fixture
def fleet():
    return FleetInProcess()


@pytest.fixture
def session(fleet):
    with installed(session_over(fleet)) as session:
        yield session


@pytest.fixture
def run():
    """A run of one worker, whose first checkpoint is that of its beginning."""
    listener = SimpleNamespace(clock_due=lambda: None, logged=lambda *_: None, failed=lambda: None)
    run = BlockingRun(RunState(1, Clocks(1, 0), listener))
    run.add_cut("beginning", run.cut())
    return run


class Ends(Exception):
    pass


def two_loops(worker, seen, act):
    """Go through clocks 0 to 3 in two loops."""
    seen.append("begins")
    for end in (2, 4):
        for clock in worker.clocks(end):
            seen.append(clock)
            act(clock)


def test_work_when_the_fleet_rolled_back_after_loop_then_anew(start_worker, run):
    worker, _ = start_worker(run=run)
    seen = []

    def roll_back(clock):
        if clock == 3 and seen.count(3) == 1:
            run.pause()
            run.roll_back(1, "beginning")

    worker._loop.run_with_rollbacks(lambda: two_loops(worker, seen, roll_back))
    assert seen == ["begins", 0, 1, 2, 3, "begins", 0, 1, 2, 3]
    assert (worker.epoch, worker.clock) == (1, 4)


def test_work_when_it_fails_as_the_fleet_rolled_back_then_anew(start_worker, run):
    worker, _ = start_worker(run=run)
    seen = []

    def fail(clock):
        if clock == 2 and seen.count(2) == 1:
            run.roll_back(1, "beginning")
            raise IndexError("read half of it before, and half of it after")

    worker._loop.run_with_rollbacks(lambda: two_loops(worker, seen, fail))
    assert seen == ["begins", 0, 1, 2, "begins", 0, 1, 2, 3]


def test_work_when_it_fails_by_itself_then_its_error_is_raised(start_worker, run):
    worker, _ = start_worker(run=run)
    seen = []

    def fail(clock):
        raise Ends

    with pytest.raises(Ends):
        worker._loop.run_with_rollbacks(lambda: two_loops(worker, seen, fail))
    assert seen == ["begins", 0]


def test_work_when_it_fails_after_rollback_then_twice_at_most(start_worker, run):
    worker, _ = start_worker(run=run)
    seen = []

    def fail(clock):
        if seen.count(1) == 1 and clock == 1:
            run.roll_back(1, "beginning")
        elif clock == 1:
            raise Ends

    with pytest.raises(Ends):
        worker._loop.run_with_rollbacks(lambda: two_loops(worker, seen, fail))
    assert seen.count("begins") == 2


def test_work_when_done_anew_then_its_changes_have_the_same_ids(start_worker, run, session):
    worker, _ = start_worker(run=run)
    total, beginnings = DCV.dense(4), []

    def work():
        total.add(np.ones(4, np.float32))  # before any clock, and after it was made
        beginnings.append(worker._loop.ids.number)
        for clock in worker.clocks(2):
            total.add(np.ones(4, np.float32))
            if clock == 1 and len(beginnings) == 1:
                run.roll_back(1, "beginning")
                raise RolledBack("the fleet rolled back to a checkpoint")

    worker._loop.run_with_rollbacks(work)
    # This fleet has kept what came before: all that is made again counts once.
    assert total.pull().tolist() == [3.0] * 4
    assert beginnings == [2, 2]


def test_work_when_done_anew_then_says_why_in_the_log(start_worker, run, caplog):
    worker, _ = start_worker(run=run)
    seen = []

    def fail(clock):
        if len(seen) == 2:
            run.roll_back(1, "beginning")
            raise Ends("what it met")

    with caplog.at_level(logging.WARNING, "ps2.run.clock_loop"):
        worker._loop.run_with_rollbacks(lambda: two_loops(worker, seen, fail))
    assert [record.message for record in caplog.records] == ["rank 0 rolls back to clock 0 with the fleet: what it met"]
