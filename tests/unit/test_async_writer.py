"""The async_writer of a run: what leaves when, what is waited for, what is told."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from ps2.client import blocks, plans
from ps2.client.async_writer import AsyncWriter
from ps2.client.plans import Target
from ps2.errors import LimitError
from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from ps2.protocol.messages import RequestId

TARGET = Target(1, MatrixSpec(10, 2, "float64"), Route(0, (0, 10), ("a",)), (0,))


def addition(value):
    return plans.push(TARGET, "push_add", np.full(10, float(value)), 0, 10)


class Sends:
    """Notes what it is given to send; waits for ``release`` first; what holds -1 fails. ``reached``: it was called."""

    def __init__(self):
        self.sent = []
        self.reached, self.release = threading.Event(), threading.Event()
        self.release.set()

    def __call__(self, mutations):
        self.reached.set()
        assert self.release.wait(10)
        values = [plan.operations[0].arrays[0][0] for plan, _ in mutations]
        self.sent.append(values)
        return [LimitError("no room") for value in values if value == -1]


@pytest.fixture
def sends():
    return Sends()


@pytest.fixture
def box(sends):
    async_writer = AsyncWriter(sends)
    async_writer.numbers = iter(range(1000))
    yield async_writer
    sends.release.set()
    async_writer.discard()


def put(box, value, clock=0):
    box.put(addition(value), lambda: RequestId("run", next(box.numbers)), clock)


@contextmanager
def nothing_leaves(box):
    with box.hold_back([plans.pull(TARGET, 0, 10)]) as reading:
        yield
    box.forget(reading)


def test_adds_when_several_are_queued_then_they_leave_together(box, sends):
    with nothing_leaves(box):
        for value in (1, 5, 3):
            put(box, value)
    box.flush()
    assert sends.sent == [[1, 5, 3]]


def test_flush_below_when_only_later_clocks_open_then_returns(box, sends):
    with nothing_leaves(box):
        put(box, 1, clock=4)
        put(box, 1, clock=3)
        assert box.flush_below(3) == 3


def test_flush_below_when_nothing_is_open_then_it_returns_none(box):
    put(box, 1)
    box.flush()
    assert box.flush_below(5) is None


def test_flush_below_when_earlier_clock_is_open_then_waits(box, sends, until):
    sends.release.clear()
    put(box, 1, clock=2)
    thread = threading.Thread(target=box.flush_below, args=(3,))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    sends.release.set()
    until(lambda: not thread.is_alive(), "flush_below returns")


def test_flush_below_when_later_clock_failed_then_raises(box):
    put(box, -1, clock=7)
    box.drain()
    with pytest.raises(LimitError, match="no room"):
        box.flush_below(0)


def test_discard_when_additions_wait_then_they_never_leave(box, sends):
    with nothing_leaves(box):
        put(box, 1)
        box.discard()
    box.flush()
    assert sends.sent == []


def test_discard_when_one_is_under_way_then_it_waits_for_it(box, sends):
    sends.release.clear()
    put(box, 1)
    assert sends.reached.wait(10)
    threading.Timer(0.05, sends.release.set).start()
    box.discard()
    assert sends.sent == [[1]]


def test_read_when_additions_wait_then_they_are_laid_over_it(box):
    read = plans.pull(TARGET, 0, 10)
    with nothing_leaves(box):
        put(box, 2)
        with box.hold_back([read]) as reading:
            read.operations[0].into[:] = 1
            put(box, 3)
        box.forget(reading)
        put(box, 100)
        reading.add_missing()
    assert read.merge([]).tolist() == [6.0] * 10


def test_read_when_an_addition_is_under_way_then_it_waits_for_it(box, sends):
    sends.release.clear()
    put(box, 2)
    assert sends.reached.wait(10)
    threading.Timer(0.05, sends.release.set).start()
    with box.hold_back([plans.pull(TARGET, 0, 10)]):
        assert sends.sent == [[2]]


def test_read_when_an_addition_is_elsewhere_then_both_travel(box, sends, until):
    elsewhere = Target(2, TARGET.spec, TARGET.route, (0,))
    with box.hold_back([plans.pull(elsewhere, 0, 10)]):
        put(box, 2)
        until(lambda: sends.sent == [[2]], "the addition leaves during the read")


def test_read_when_blocks_differ_then_only_its_own_waits(box, sends, until):
    spec = MatrixSpec(10, 2, "float64", layout="column")
    target = Target(1, spec, TARGET.route, (0, 1))
    with box.hold_back([blocks.pull(target, np.array([4, 5]))]):
        for column, value in ((5, 3.0), (6, 2.0)):
            plan = blocks.add(target, np.array([column]), np.full((1, 2), value))
            box.put(plan, lambda: RequestId("run", next(box.numbers)), 0)
        until(lambda: sends.sent, "the addition elsewhere leaves")
        assert [value.tolist() for (value,) in sends.sent] == [[2.0, 2.0]]


def test_thread_when_nothing_waits_then_it_ends(box, until):
    put(box, 1)
    box.flush()
    until(lambda: all(thread.name != "ps2-async_writer" for thread in threading.enumerate()), "no thread sends")


def test_settled_when_older_is_answered_then_tells_if_it_failed(box, sends):
    put(box, 1)
    assert box.has_settled_below(1, 10)
    put(box, -1)
    assert box.has_settled_below(1, 10) is False
    with pytest.raises(LimitError):
        box.flush()


def test_settled_when_it_takes_too_long_then_it_is_not_known(box, sends):
    sends.release.clear()
    put(box, 1, clock=4)
    assert box.has_settled_below(4, 0.0)
    assert box.has_settled_below(5, 0.0) is None
    sends.release.set()
    assert box.has_settled_below(5, 10)
