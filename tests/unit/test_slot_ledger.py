"""Runs get all their task slots at once, in the order of arrival."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from ps2.errors import SlotsError, StoppedError
from ps2.run.slots import SlotLedger


class Cluster:
    """A local Spark of four slots, as ``SparkBackend`` has it; ``other`` of them run other jobs."""

    master, is_local, other = "local[4]", True, 0

    def total_slots(self):
        return 4

    def running_tasks(self):
        return [self.other]


class Run:
    """A run in a thread: it waits for its slots, then holds them until ``end``."""

    def __init__(self, ledger, cluster, number, slots, timeout_s=30.0):
        self.has_slots, self._end, self.error = threading.Event(), threading.Event(), None
        self._call = lambda: ledger.holding(cluster, number, slots, timeout_s)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            with self._call():
                self.has_slots.set()
                self._end.wait(30)
        except (SlotsError, StoppedError) as error:
            self.error = error

    def end(self):
        self._end.set()
        self.thread.join(30)


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def ledger():
    return SlotLedger()


@pytest.fixture
def start(ledger, cluster):
    """``start(number, slots)``: start a run in a thread. At the end of the test, all runs end."""
    runs = []

    def begin(number, slots, **kwargs):
        runs.append(Run(ledger, cluster, number, slots, **kwargs))
        return runs[-1]

    yield begin
    for run in runs:
        run.end()


def test_slots_when_free_then_small_runs_are_side_by_side(start, ledger):
    runs = [start(number, 1) for number in range(4)]
    assert all(run.has_slots.wait(10) for run in runs)
    assert ledger.num_held == 4


def test_slots_when_a_part_is_free_then_none_is_used(start, ledger, caplog):
    caplog.set_level(logging.INFO, "ps2.run.slots")
    first = start(3, 3)
    assert first.has_slots.wait(10)
    second = start(4, 2)
    assert not second.has_slots.wait(0.5)
    assert ledger.num_held == 3
    first.end()
    assert second.has_slots.wait(10)
    assert caplog.messages == ["run: waits for 2 task slots: 3 of 4 are in use by run 3"]


def test_slots_when_a_large_run_waits_then_small_ones_come_later(start, until):
    first = start(0, 2)
    assert first.has_slots.wait(10)
    large = start(1, 4)
    small = start(2, 1)
    assert not small.has_slots.wait(0.5)
    first.end()
    assert large.has_slots.wait(10)
    assert not small.has_slots.is_set()
    large.end()
    assert small.has_slots.wait(10)


def test_slots_when_other_jobs_use_them_then_error_names_both(start, cluster):
    cluster.other = 3
    run = start(0, 2, timeout_s=0.3)
    run.thread.join(10)
    assert "has 1 free task slots after 0 s, and 2 are needed" in str(run.error)


def test_slots_when_there_can_never_be_enough_then_error_at_once(ledger, cluster):
    began_s = time.monotonic()
    with pytest.raises(SlotsError, match="has 4 free task slots after 0 s, and 5 are needed"):  # noqa: SIM117
        with ledger.holding(cluster, 0, 5, 30.0):
            pass
    assert time.monotonic() - began_s < 10


def test_stop_when_a_run_waits_then_it_is_told(start, ledger):
    assert start(0, 4).has_slots.wait(10)
    waiting = start(1, 1)
    ledger.stop()
    waiting.thread.join(10)
    assert isinstance(waiting.error, StoppedError)


def test_slots_when_a_waiting_run_fails_then_the_next_has_them(start, cluster):
    cluster.other = 2
    failing = start(0, 4, timeout_s=0.5)
    later = start(1, 2)
    failing.thread.join(10)
    assert isinstance(failing.error, SlotsError)
    assert later.has_slots.wait(10)
