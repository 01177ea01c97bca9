"""Threads of the driver that have begun runs: each handles the fleet's rollbacks, and its queued changes, by itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from ps2.client import plans
from ps2.client.plans import Target
from ps2.errors import RolledBack
from ps2.matrix.partition import MatrixSpec
from tests.fakes import FleetInProcess, session_over

WAIT_S = 30.0


@pytest.fixture
def session():
    return session_over(FleetInProcess(servers=1))


@pytest.fixture
def target(session):
    """Row 0 of a matrix of 10 columns."""
    info = session.new_matrix(MatrixSpec(10, 2, dtype="float64"))
    return Target(info.id, info.spec, info.route, (0,))


@pytest.fixture
def other():
    """``other(call)``: call in another thread, always the same one; return the result, or raise the error."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda call: thread.submit(call).result(WAIT_S)


def begin_run(session):
    session.rollbacks.remember_thread(begins_run=True)


def raises_rollback(session):
    """Whether a check in the calling thread raises RolledBack."""
    try:
        session.check_epoch((0, None))
    except RolledBack:
        return True
    return False


def test_rollback_when_two_threads_have_runs_then_both_raise(session, other):
    begin_run(session)
    other(lambda: begin_run(session))
    session.rollbacks.record(1, 7)
    assert [raises_rollback(session), raises_rollback(session)] == [True, False]
    assert [other(lambda: raises_rollback(session)), other(lambda: raises_rollback(session))] == [True, False]


def test_rollback_when_no_thread_has_a_run_then_one_raises(session, other):
    session.rollbacks.record(1, 7)
    assert [raises_rollback(session), other(lambda: raises_rollback(session))] == [True, False]


def test_rollback_when_thread_made_vectors_then_its_run_raises(session, target, other):
    session.rollbacks.record(1, 7)
    other(lambda: begin_run(session))
    assert other(lambda: raises_rollback(session))
    assert not raises_rollback(session)
    begin_run(session)  # the vectors of this thread are older than the rollback
    assert raises_rollback(session)


def test_acknowledge_when_a_newer_rollback_is_known_then_raises(session):
    begin_run(session)
    session.rollbacks.record(2, 9)
    session.acknowledge(1, 7)
    assert (session.epoch, raises_rollback(session), session.epoch) == (1, True, 2)


def test_async_add_when_other_thread_is_ahead_then_own_error(session, target, other):
    begin_run(session)
    other(lambda: begin_run(session))
    add = plans.push(target, "push_add", np.ones(10), 0, 10)
    session.rollbacks.record(1, 7)
    session.dispatch.run_later(add)
    session.dispatch.writer.drain()
    assert other(lambda: raises_rollback(session))
    other(session.dispatch.flush)  # the error belongs to this thread
    (values,) = other(partial(session.dispatch.run, [plans.pull(target, 0, 10)]))
    assert not values.any()
    with pytest.raises(RolledBack):
        session.dispatch.flush()
