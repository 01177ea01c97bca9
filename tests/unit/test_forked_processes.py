"""Processes that a task or a driver has forked are refused, whatever they have inherited."""

from __future__ import annotations

import threading

import pytest

from ps2.client import sessions, task
from ps2.client.fleet import Access, FleetRef, seal, token_id
from ps2.errors import StoppedError, UsageError
from tests.fakes import MASTER, FleetInProcess, session_over
from tests.forks import in_child

ACCESS = Access("secret", "app")
REF = FleetRef("forked", MASTER, token_id=token_id("secret", None))
REFUSED = "UsageError: vectors work in a task or a driver itself"


@pytest.fixture
def a_task(in_task):
    """A task of a fleet; its session is closed in the end."""
    in_task(access=ACCESS, fleet=REF)
    yield
    sessions.uninstall(REF.id)
    sessions._stopped.discard(REF.id)


def test_session_of_when_forked_before_task_has_one_then_refused(a_task):
    assert in_child(lambda: sessions.session_of(REF)).startswith(REFUSED)


def test_session_of_when_forked_after_task_has_one_then_refused(a_task):
    sessions.session_of(REF)
    assert in_child(lambda: sessions.session_of(REF)).startswith(REFUSED)


def test_current_session_when_forked_by_a_task_then_usage_error(a_task):
    assert in_child(sessions.current_session).startswith(REFUSED)


def test_session_of_when_task_child_forks_then_usage_error(a_task):
    def fork_again():
        raise UsageError(in_child(lambda: sessions.session_of(REF)))

    assert in_child(fork_again).startswith(f"UsageError: {REFUSED}")


def test_session_of_when_forked_before_any_task_then_is_made(in_task):
    """As pyspark's daemon forks its workers."""

    def be_a_worker():
        in_task(access=ACCESS, fleet=REF)
        sessions.session_of(REF).close()

    assert in_child(be_a_worker) == ""


def test_session_of_when_forked_during_creation_then_usage_error(a_task):
    with sessions._lock:
        assert in_child(lambda: sessions.session_of(REF)).startswith(REFUSED)


def test_session_of_when_child_has_task_environ_then_refused(monkeypatch):
    monkeypatch.setenv(task.ACCESS_VARIABLE, seal(ACCESS))
    with pytest.raises(UsageError, match="vectors work in a task or a driver itself"):
        sessions.session_of(REF)


def test_current_session_when_forked_by_driver_then_usage_error():
    sessions.install(session_over(FleetInProcess()))
    try:
        assert in_child(sessions.current_session).startswith(REFUSED)
    finally:
        sessions.uninstall("fleet")
        sessions._stopped.discard("fleet")


def test_current_session_when_no_task_or_driver_then_stopped():
    with pytest.raises(StoppedError, match="there is no PS2Context here"):
        sessions.current_session()


def test_session_when_inherited_by_child_then_all_uses_fail():
    session = session_over(FleetInProcess())
    for use in (
        lambda: session.dispatch.run([]),
        session.dispatch.flush,
        lambda: session.async_writer,
        lambda: session.dispatch.run_later(None),
    ):
        assert in_child(use).startswith(REFUSED)


def test_session_of_when_task_threads_ask_then_they_share_it(a_task):
    result = []
    threads = [threading.Thread(target=lambda: result.append(sessions.session_of(REF))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(result) == 4
    assert len(set(map(id, result))) == 1
