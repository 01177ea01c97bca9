"""A worker's session when the fleet rolls back to a checkpoint: it reads what is there now, and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.client import plans
from ps2.client.plans import Target
from ps2.client.task import RunIds
from ps2.errors import RolledBack
from ps2.matrix.partition import MatrixSpec
from tests.fakes import FleetInProcess, session_over

ONES = np.ones(10)


@pytest.fixture
def fleet():
    return FleetInProcess(servers=2)


@pytest.fixture
def target(fleet):
    """Row 0 of a matrix of 10 columns on two servers."""
    info = session_over(fleet).new_matrix(MatrixSpec(10, 2, dtype="float64"))
    return Target(info.id, info.spec, info.route, (0,))


@pytest.fixture
def session(fleet):
    """One that has just found out that the fleet has rolled back once."""
    created = session_over(fleet)
    with created.in_run(RunIds("runs", 0, rank=1)):
        created.rollbacks.newest = (1, 3)
        yield created


def add_ones(target):
    return plans.push(target, "push_add", ONES, 0, 10)


def value(session, target):
    return np.unique(session.dispatch.run([plans.pull(target, 0, 10)])[0]).tolist()


def test_an_add_when_the_fleet_has_rolled_back_then_is_dropped(session, target):
    assert session.dispatch.run([add_ones(target)]) == [None]
    assert value(session, target) == [0.0]


def test_async_add_when_fleet_rolled_back_then_is_dropped(session, target):
    session.dispatch.run_later(add_ones(target))
    session.dispatch.flush()
    assert value(session, target) == [0.0]


def test_batch_when_fleet_rolled_back_then_reads_are_answered(session, target):
    _, result = session.dispatch.run([add_ones(target), plans.pull(target, 0, 10)])
    assert result.tolist() == [0.0] * 10


@pytest.mark.parametrize("told", [False, True])
def test_change_with_answer_when_fleet_rolled_back_then_raises(told, session, target):
    if told:
        value(session, target)
    with pytest.raises(RolledBack):
        session.dispatch.run([plans.push_pull(target, ONES)])


def test_add_when_worker_acknowledged_rollback_then_counts(session, target):
    session.dispatch.run([add_ones(target)])
    session.resume(1)
    session.dispatch.run([add_ones(target)])
    assert value(session, target) == [1.0]


def test_async_add_when_worker_is_told_before_send_then_dropped(fleet, target):
    session = session_over(fleet)
    with session.in_run(RunIds("runs", 0, rank=1)):
        with session.async_writer._changed:  # nothing leaves meanwhile
            session.rollbacks.newest = (1, 3)
            session.dispatch.run_later(add_ones(target))
        session.resume(1)
        assert value(session, target) == [0.0]


def test_numbers_when_changes_are_dropped_then_they_are_used_up(session, target):
    before = session.ids.next().number
    session.dispatch.run([add_ones(target)])
    assert session.ids.next().number == before + 2
