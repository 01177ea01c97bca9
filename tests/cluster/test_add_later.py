"""``add(..., wait=False)``: it returns at once, counts once, and what fails is told at the next chance."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import ps2
from ps2 import DCV
from ps2.client import async_writer
from ps2.client.sessions import session_of
from ps2.errors import ShapeError


@pytest.fixture
def slowed(ps, monkeypatch):
    """``slowed(vector)``: an event that what the async_writer sends waits for."""
    release = threading.Event()

    def slow(vector):
        transport = session_of(vector._fleet).network
        exchange = transport.exchange

        def wait_then_exchange(requests):
            if threading.current_thread().name == "ps2-async_writer":
                assert release.wait(10)
            return exchange(requests)

        monkeypatch.setattr(transport, "exchange", wait_then_exchange)
        return release

    yield slow
    release.set()


def test_adds_when_not_awaited_then_later_pull_sees_all(ps):
    u, keys = DCV.dense(1000, dtype="float64"), np.arange(0, 1000, 7)
    for _ in range(200):
        u.add(np.ones(keys.size), keys, wait=False).sub(0.25, wait=False)
    expected = np.full(1000, -50.0)
    expected[keys] += 200
    assert u.pull().tolist() == expected.tolist()


def test_add_when_not_awaited_then_returns_before_sending(ps, slowed):
    u = DCV.dense(10)
    release = slowed(u)
    assert u.add(1, wait=False) is u
    release.set()
    assert u.sum() == 10


def test_add_when_caller_changes_array_then_old_values_count(ps, slowed):
    u, values, keys = DCV.dense(10), np.ones(3, np.float32), np.array([1, 2, 3])
    release = slowed(u)
    u.add(values, keys, wait=False)
    values[:] = 100
    keys[:] = 9
    release.set()
    assert u.pull().tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("flush", [lambda u: u.flush(), lambda u: ps2.flush()], ids=["vector", "module"])
def test_flush_when_it_returns_then_everything_is_applied(ps, statuses, flush):
    u = DCV.dense(10)
    before = sum(status.requests for status in statuses())
    for _ in range(5):
        u.add(1, wait=False)
    flush(u)
    assert sum(status.requests for status in statuses()) - before == 10
    ps.flush()


def test_vector_when_dropped_with_add_pending_then_row_is_held(ps, slowed):
    u = DCV.dense(10)
    release = slowed(u)
    u.derive().add(1, wait=False)
    threading.Timer(0.2, release.set).start()
    assert u.derive().sum() == 0


def test_addition_when_in_a_batch_then_it_travels_with_it(ps, requests_by):
    u = DCV.dense(10)

    def batched():
        with ps.batch():
            u.add(1, wait=False).add(2)

    assert requests_by(batched) == [1, 1]
    assert u.sum() == 30


def test_additions_when_the_window_is_full_then_the_caller_waits(ps, slowed, monkeypatch):
    monkeypatch.setattr(async_writer, "WINDOW_PLANS", 2)
    u = DCV.dense(10)
    release, created = slowed(u), []

    def make():
        for number in range(4):
            u.add(1, wait=False)
            created.append(number)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join(0.5)
    assert len(created) == 2
    release.set()
    thread.join(10)
    assert u.sum() == 40


def test_add_when_call_is_invalid_then_fails_at_once(ps):
    with pytest.raises(ShapeError, match="expected shape"):
        DCV.dense(10).add([1.0, 2.0], wait=False)


def test_thread_when_nothing_is_left_to_send_then_it_ends(ps, until):
    DCV.dense(10).add(1, wait=False).flush()
    until(lambda: all(thread.name != "ps2-async_writer" for thread in threading.enumerate()), "no thread sends")
