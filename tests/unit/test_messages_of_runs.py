"""What a run keeps of messages, STOP and reports, when the fleet rolls back and when attempts end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ps2.rpc.run_control import Report
from ps2.run import requests
from ps2.run.clocks import Clocks
from ps2.run.journal import Stopped
from ps2.run.requests import WorkerRequests
from ps2.run.state import RunState

LISTENER = SimpleNamespace(clock_due=lambda: None, logged=lambda *_: None, failed=lambda: None)


class Driven:
    """A run whose workers ask without threads: ``arrive`` returns the answer, or None if it has to wait."""

    def __init__(self, workers, staleness=0):
        self.run = RunState(workers, Clocks(workers, staleness, calls=True), LISTENER)
        self.requests = WorkerRequests(self.run)
        self.leases = [self.run.leases.new(rank, rank, lambda: None) for rank in range(workers)]
        self.asking = {}
        for lease in self.leases:
            assert answer(self.requests.acquire_rank(lease)) is not None

    def arrive(self, rank, clock, *reports, epoch=0):
        created = [Report(clock - 1, "sum", report) for report in reports]
        self.asking[rank] = self.requests.arrive(self.leases[rank], clock, clock, epoch, created)
        return answer(self.asking[rank])

    def entered(self, rank):
        return answer(self.asking[rank])

    def call(self, message=None, stop=False):
        """Call for the clock that is due, which returns something."""
        clock, epoch = self.run.call_due()
        self.run.publish(clock, epoch, message, stop)
        self.run.called_back(clock)
        return clock


def answer(request):
    try:
        next(request)
    except StopIteration as done:
        return done.value
    return None


@pytest.fixture
def two():
    return Driven(2)


def messages(driven, epoch=0, begin=0):
    return answer(driven.requests.messages(driven.leases[0], begin, 9, epoch))


def test_message_when_call_has_returned_then_comes_with_clock(two):
    two.arrive(0, 1)
    two.arrive(1, 1)
    two.call(b"first")
    entries = [two.entered(rank) for rank in range(2)]
    assert [(entry.messages, entry.message, entry.end) for entry in entries] == [(1, b"first", None)] * 2


def test_messages_when_fleet_rolls_back_then_later_ones_are_gone(two):
    for clock, message in ((1, b"a"), (2, b"b")):
        two.arrive(0, clock)
        two.arrive(1, clock)
        if clock == 2:
            two.run.add_cut("before b", two.run.cut())
        two.call(message)
    two.run.roll_back(1, "before b")
    assert messages(two, epoch=1) == [b"a"]
    assert messages(two, epoch=0) == [b"a", b"b"]  # of a worker that does not know yet
    assert two.arrive(0, 3, epoch=0) is None
    two.arrive(1, 3, epoch=0)
    two.call(b"c")
    assert two.entered(0).message == b"c"
    assert messages(two, epoch=1) == [b"a", b"c"]


def test_message_when_fleet_rolled_back_during_call_then_none(two):
    two.run.add_cut("beginning", two.run.cut())
    two.arrive(0, 1)
    two.arrive(1, 1)
    clock, epoch = two.run.call_due()
    two.run.roll_back(1, "beginning")
    two.run.publish(clock, epoch, b"late", stop=True)
    assert (messages(two, epoch=1), two.run.journal.stopped) == ([], None)


def test_messages_when_they_are_long_then_come_in_parts(two, monkeypatch):
    monkeypatch.setattr(requests, "LIMIT_BYTES", 10)
    for clock in range(1, 5):
        two.arrive(0, clock)
        two.arrive(1, clock)
        two.call(bytes([clock]) * (11 if clock == 3 else 5))
        two.entered(0), two.entered(1)
    assert [len(messages(two, begin=begin)) for begin in range(5)] == [2, 1, 1, 1, 0]


def test_stop_when_a_worker_is_ahead_then_all_come_as_far():
    ahead = Driven(2, staleness=2)
    for clock in (1, 2):
        assert ahead.arrive(0, clock).end is None
    assert ahead.arrive(1, 1).end is None
    ahead.call(stop=True)
    assert ahead.run.journal.stopped == Stopped(0, 3)
    assert [ahead.arrive(1, clock).end for clock in (2, 3)] == [3, 3]


def test_stop_when_the_fleet_rolls_back_then_is_taken_back(two):
    two.run.add_cut("beginning", two.run.cut())
    two.arrive(0, 1)
    two.arrive(1, 1)
    two.call(stop=True)
    assert two.entered(0).end == 1
    two.run.roll_back(1, "beginning")
    assert two.arrive(0, 1, epoch=0).end is None


def test_reports_when_attempt_restarts_then_count_once(two):
    assert two.arrive(0, 1, b"once") is None
    two.run.release_rank(two.leases[0])
    two.leases[0] = two.run.leases.new(0, 7, lambda: None)
    answer(two.requests.acquire_rank(two.leases[0]))
    two.arrive(0, 1)
    two.arrive(1, 1, b"other")
    assert {rank: [one.value for one in mine] for rank, mine in two.run.reports(0).items()} == {
        0: [b"once"],
        1: [b"other"],
    }


def test_reports_when_fleet_rolls_back_then_those_of_cut_stay(two):
    two.arrive(0, 1, b"before the cut")
    two.run.add_cut("within clock 0", two.run.cut())
    two.arrive(1, 1, b"after it")
    two.call()
    assert two.run.reports(0) == {}
    two.run.roll_back(1, "within clock 0")
    assert [report.value for report in two.run.reports(0)[0]] == [b"before the cut"]
    assert list(two.run.reports(0)) == [0]
    two.arrive(1, 0, epoch=0)
    two.arrive(1, 1, b"again", epoch=1)
    assert [report.value for report in two.run.reports(0)[1]] == [b"again"]
    assert two.call() == 0


def test_reports_when_worker_missed_rollback_then_dropped(two):
    two.run.add_cut("beginning", two.run.cut())
    two.run.roll_back(1, "beginning")
    two.arrive(0, 1, b"of before", epoch=0)
    assert two.run.reports(0) == {}
