"""Where a worker's time goes: every second counts once, for the innermost call."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from ps2.client.stopwatch import KINDS, Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """``clock(seconds)``: let time pass."""
    now_s = [100.0]
    monkeypatch.setattr("ps2.client.stopwatch.time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def pass_by(seconds):
        now_s[0] += seconds

    return pass_by


@pytest.fixture
def stopwatch(clock):
    stopwatch = Stopwatch()
    stopwatch.reset()
    return stopwatch


def test_time_when_pull_waits_for_additions_then_counts_as_push(stopwatch, clock):
    with stopwatch.running("pull"):
        clock(1)
        with stopwatch.running("push"):
            clock(2)
        clock(4)
    clock(8)
    assert stopwatch.seconds == {**dict.fromkeys(KINDS, 0.0), "pull": 5.0, "push": 2.0}


def test_time_when_a_pull_is_within_a_pull_then_it_counts_once(stopwatch, clock):
    with stopwatch.running("pull"), stopwatch.running("pull"):
        clock(1)
    assert stopwatch.seconds["pull"] == 1.0


def test_time_when_another_thread_calls_then_it_does_not_count(stopwatch, clock):
    def call():
        with stopwatch.running("pull"):
            clock(1)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert stopwatch.seconds["pull"] == 0.0


def test_time_when_a_call_raises_then_it_counts(stopwatch, clock):
    def fail():
        clock(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), stopwatch.running("push"):
        fail()
    with stopwatch.running("pull"):
        clock(2)
    assert stopwatch.seconds == {**dict.fromkeys(KINDS, 0.0), "pull": 2.0, "push": 1.0}
