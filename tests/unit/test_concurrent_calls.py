"""All servers are asked at the same time, and what cannot pass by itself is what the caller hears of."""

from __future__ import annotations

import threading

import pytest

from ps2.errors import RecoveryError, UnavailableError
from ps2.transport.concurrent_calls import MAX_CALLS, call_concurrently


def test_calls_when_more_than_limit_then_answers_keep_order():
    under_way, most, lock = 0, 0, threading.Lock()

    def call(number):
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        threading.Event().wait(0.002)
        with lock:
            under_way -= 1
        return number * 10

    assert call_concurrently(range(3 * MAX_CALLS), call) == [number * 10 for number in range(3 * MAX_CALLS)]
    assert 1 < most <= MAX_CALLS


def test_calls_when_each_waits_for_all_then_run_concurrently():
    barrier = threading.Barrier(MAX_CALLS, timeout=20)
    assert len(call_concurrently(range(MAX_CALLS), lambda _: barrier.wait())) == MAX_CALLS


def test_error_when_some_are_transient_then_other_one_is_raised():
    finished = []

    def call(number):
        finished.append(number)
        if number == 0:
            raise UnavailableError("nobody answers")
        if number == 2:
            raise RecoveryError("the disk is full")

    with pytest.raises(RecoveryError, match="full"):
        call_concurrently(range(4), call)
    assert sorted(finished) == [0, 1, 2, 3]


def test_caller_when_it_waits_then_meanwhile_is_called():
    calls, over = [], threading.Event()

    def meanwhile():
        calls.append(1)
        over.set()

    call_concurrently([0], lambda _: over.wait(20), meanwhile)
    assert calls


def test_nothing_when_asked_then_nothing_is_answered():
    assert call_concurrently([], str) == []
