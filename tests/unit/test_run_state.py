"""A run, with a thread for each worker, as the servicer has it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from ps2.errors import InputError, RecoveryError, StoppedError, WorkerError
from ps2.protocol.journal_file import PendingReports
from ps2.rpc.run_control import ClockTimes, Logged, Report
from ps2.run.clocks import MAX_ROLLBACKS, Clocks
from ps2.run.journal import Journal
from ps2.run.state import RunState
from tests.blocking_run import BlockingRun

POINT = (1, 0)  # in clock 0


class Recorder:
    """A listener that keeps what happens."""

    def __init__(self):
        self.due, self.metrics, self.ended = 0, [], threading.Event()

    def clock_due(self):
        self.due += 1

    def logged(self, rank, metric):
        self.metrics.append((rank, metric))

    def failed(self):
        self.ended.set()


class Workers:
    """Asks a run in threads, one call at a time of each worker."""

    def __init__(self, run, pool):
        self.run, self._pool = run, pool
        self.leases = {}

    def join(self, rank, attempt=None):
        self.leases[rank] = self.run.new_lease(rank, rank if attempt is None else attempt)
        return self._pool.submit(self.run.acquire_rank, self.leases[rank])

    def gone(self, rank):
        self.run.release_rank(self.leases[rank])

    def arrive(self, rank, clock):
        return self._pool.submit(self.run.arrive, self.leases[rank], clock, clock, 0)

    def barrier(self, rank, point=POINT):
        return self._pool.submit(self.run.barrier, self.leases[rank], point, 0)

    def once(self, rank, point=POINT):
        return self._pool.submit(self.run.once, self.leases[rank], point, 0)

    def leave(self, rank, clock=0):
        return self._pool.submit(self.run.leave, self.leases[rank], clock, b"%d" % rank, self.run.epoch)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(64) as created:
        yield created


@pytest.fixture
def start(pool):
    """``start(workers, staleness, calls)``: a run whose workers have joined."""
    runs = []

    def make(workers, staleness=0, calls=False):
        run = BlockingRun(RunState(workers, Clocks(workers, staleness, calls=calls), Recorder()))
        runs.append(run)
        asking = Workers(run, pool)
        for rank in range(workers):
            asking.join(rank).result(5)
        return asking

    yield make
    for run in runs:
        run.fail(StoppedError("the test is over"))


def blocked(workers):
    return set(workers.run.blocked) | set(workers.run.clocks.waiting)


def test_arrive_when_all_have_come_then_all_enter(start):
    workers = start(3)
    entries = [workers.arrive(rank, 1) for rank in range(3)]
    assert [entry.result(5).clock for entry in entries] == [1, 1, 1]


def test_arrive_when_onclock_is_slow_then_its_wait_is_separate(start, monkeypatch, until):
    now_s = [0.0]
    for module in ("state", "requests"):
        monkeypatch.setattr(f"ps2.run.{module}.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    workers = start(2, calls=True)
    early = workers.arrive(0, 1)
    until(lambda: 0 in workers.run.clocks.waiting, "rank 0 waits")
    now_s[0] = 2.0  # for the other one
    late = workers.arrive(1, 1)
    until(lambda: len(workers.run.clocks.waiting) == 2, "rank 1 waits")
    assert workers.run.call_due() == (0, 0)
    now_s[0] = 5.0  # for onClock
    workers.run.record_call("on_clock", 2.0)
    now_s[0] = 5.5
    workers.run.record_call("checkpoint", 5.0)
    now_s[0] = 5.75  # for nothing that was measured
    workers.run.called_back(0)
    waits = [entry.result(5) for entry in (early, late)]
    assert [(one.others, one.on_clock, one.checkpoint) for one in waits] == [(2.0, 3.0, 0.5), (0.0, 3.0, 0.5)]


def test_clocks_when_many_workers_make_many_then_none_is_blocked(start):
    workers = start(32)

    def work(rank):
        for clock in range(1, 21):
            entry = workers.run.arrive(workers.leases[rank], clock, clock, 0)
            assert entry.clock == clock
            workers.run.barrier(workers.leases[rank], (2 * clock + 1, 0), 0)
        return workers.run.leave(workers.leases[rank], 20, b"", 0)

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(work, range(32), timeout=30))


def test_sit_when_another_attempt_is_present_then_waits_for_exit(start, until):
    workers = start(1)
    first = workers.leases[0]
    second = workers.join(0, attempt=7)
    until(lambda: workers.run.leases.waiting, "the second attempt waits")
    workers.run.release_rank(first)
    assert second.result(5).clock == 0


def test_sit_when_attempt_reconnects_then_old_stream_is_told(start, until):
    workers = start(2)
    old = workers.arrive(0, 1)
    until(lambda: 0 in blocked(workers), "rank 0 waits")
    assert workers.join(0).result(5).clock == 1
    with pytest.raises(StoppedError, match="this attempt of rank 0 has lost its rank"):
        old.result(5)


def test_sit_when_older_stream_arrives_late_then_waits(start, until):
    workers = start(1)
    old = workers.run.new_lease(0, 0)
    workers.join(0).result(5)
    workers._pool.submit(workers.run.acquire_rank, old)
    until(lambda: workers.run.leases.waiting, "the older one waits")
    assert workers.arrive(0, 0).result(5).clock == 0


def test_arrive_when_attempt_reconnects_and_asks_then_answers(start):
    workers = start(2)
    workers.arrive(1, 1)
    workers.arrive(0, 1).result(5)
    workers.join(0).result(5)
    assert workers.arrive(0, 1).result(5).clock == 1


def test_ask_when_another_attempt_has_the_place_then_says_so(start):
    workers = start(1)
    old = workers.leases[0]
    workers.gone(0)
    workers.join(0, attempt=7).result(5)
    with pytest.raises(StoppedError, match="this attempt of rank 0 has lost its rank"):
        workers.run.arrive(old, 1, 1, 0)


def test_note_when_a_message_comes_twice_then_counts_once(start):
    workers = start(1)
    lease, metric = workers.leases[0], Logged("loss", 0.5, 0)
    for number in (1, 1, 2):
        workers.run.record(lease, number, [metric], ClockTimes(0, 0, 0, 0, 0, 0))
    assert list(workers.run.metrics) == workers.run.listener.metrics == [(0, metric)] * 2
    assert len(workers.run.timeline[0]) == 1 + 2  # the first is of before it has joined


# -- who waits forever --------------------------------------------------------------------------------------------


def test_run_when_one_is_at_barrier_and_other_at_clock_then_ends(start):
    workers = start(2)
    asks = [workers.barrier(0), workers.arrive(1, 1)]
    assert workers.run.listener.ended.wait(5)
    assert isinstance(workers.run.error, WorkerError)
    assert str(workers.run.error) == (
        "workers wait for each other forever: rank 0 waits at a barrier in clock 0; rank 1 waits before clock 1"
    )
    for ask in asks:
        with pytest.raises(StoppedError, match="forever"):
            ask.result(5)


def test_run_when_one_is_at_barrier_and_other_returns_then_ends(start, until):
    workers = start(3, staleness=None)
    workers.barrier(0)
    until(lambda: 0 in blocked(workers), "rank 0 waits")
    workers.leave(1)
    assert workers.run.listener.ended.wait(5)
    assert "rank 0 waits at a barrier in clock 0; ranks [1] have returned" in str(workers.run.error)


def test_run_when_barrier_follows_a_return_then_ends(start, until):
    workers = start(2, staleness=None)
    workers.leave(1)
    until(lambda: workers.run.results, "rank 1 has returned")
    workers.barrier(0)
    assert workers.run.listener.ended.wait(5)


def test_run_when_maker_returns_without_value_then_ends(start, until):
    workers = start(2)
    assert workers.once(0).result(5) is None
    workers.once(1)
    until(lambda: 1 in blocked(workers), "rank 1 waits")
    workers.leave(0)
    assert workers.run.listener.ended.wait(5)
    assert "rank 1 waits for a value that another worker computes in clock 0" in str(workers.run.error)


def test_run_when_the_other_one_is_between_attempts_then_goes_on(start, until):
    workers = start(2)
    ask = workers.barrier(0)
    until(lambda: 0 in blocked(workers), "rank 0 waits")
    workers.gone(1)
    workers.join(1, attempt=7).result(5)
    workers.barrier(1).result(5)
    ask.result(5)


def test_run_when_one_makes_value_then_others_may_wait(start, until):
    workers = start(2)
    assert workers.once(0).result(5) is None
    ask = workers.once(1)
    until(lambda: 1 in blocked(workers), "rank 1 waits")
    assert workers.run.once_made(workers.leases[0], POINT, b"value", 0) == b"value"
    assert ask.result(5) == b"value"


def test_run_when_a_call_is_under_way_then_all_may_wait(start, until):
    workers = start(2, staleness=1, calls=True)
    workers.arrive(0, 1).result(5)
    workers.arrive(1, 1).result(5)
    assert workers.run.call_due() == (0, 0)
    asks = [workers.barrier(0, (3, 0)), workers.arrive(1, 3)]
    until(lambda: blocked(workers) == {0, 1}, "both wait")
    assert workers.run.error is None
    workers.run.called_back(0)
    assert "forever" in str(workers.run.error)
    for ask in asks:
        with pytest.raises(StoppedError):
            ask.result(5)


def test_run_when_released_workers_still_sleep_then_continues(start):
    workers = start(2)
    for number in range(200):
        asks = [workers.barrier(rank, (1, number)) for rank in range(2)]
        asks[1].result(5)
        # Rank 0 may still be asleep, and must not count as one that waits.
        again = workers.barrier(1, (1, number + 1))
        asks[0].result(5)
        assert workers.run.error is None
        workers.barrier(0, (1, number + 1)).result(5)
        again.result(5)


# -- values --------------------------------------------------------------------------------------------------------


def test_once_when_maker_fails_then_next_attempt_makes_it(start, until):
    workers = start(2)
    workers.once(0).result(5)
    ask = workers.once(1)
    until(lambda: 1 in blocked(workers), "rank 1 waits")
    workers.run.fail_attempt(workers.leases[0], 0, "ValueError", fatal=False)
    workers.gone(0)
    workers.join(0, attempt=7).result(5)
    assert workers.once(0).result(5) is None
    workers.run.once_made(workers.leases[0], POINT, b"value", 0)
    assert ask.result(5) == b"value"


def test_once_made_when_it_comes_twice_then_the_first_counts(start):
    workers = start(1)
    workers.once(0).result(5)
    assert workers.run.once_made(workers.leases[0], POINT, b"one", 0) == b"one"
    assert workers.run.once_made(workers.leases[0], POINT, b"two", 0) == b"one"


def test_fail_attempt_when_fatal_then_the_run_ends(start):
    workers = start(1)
    workers.run.fail_attempt(workers.leases[0], 0, "InputError: rank 0 has no rows", fatal=True)
    assert isinstance(workers.run.error, InputError)
    assert str(workers.run.error) == "rank 0 has no rows"


# -- the end -------------------------------------------------------------------------------------------------------


def test_leave_when_others_have_not_then_waits_for_them(start, until):
    workers = start(2)
    first = workers.leave(0)
    until(lambda: workers.run.results, "rank 0 has returned")
    assert not first.done()
    assert workers.leave(1).result(5)
    assert first.result(5)


def test_leave_when_calls_are_due_then_waits_for_them(start, until):
    workers = start(1, staleness=None, calls=True)
    workers.arrive(0, 2).result(5)
    ask = workers.leave(0, 2)
    until(lambda: workers.run.results, "it has returned")
    for clock in (0, 1):
        assert not ask.done()
        assert workers.run.call_due() == (clock, 0)
        workers.run.called_back(clock)
    assert ask.result(5)


def test_leave_when_connection_breaks_then_attempt_is_told_done(start, until):
    workers = start(2)
    workers.leave(0)
    until(lambda: workers.run.results, "rank 0 has returned")
    again = workers.join(0)
    assert workers.leave(1).result(5)
    assert again.result(5).done


def test_fail_when_workers_wait_anywhere_then_all_are_told(start, until):
    workers = start(4)
    asks = [workers.leave(0), workers.arrive(1, 0), workers.join(2, attempt=7), workers.arrive(3, 0)]
    until(lambda: workers.run.leases.waiting and workers.run.results, "they wait")
    workers.run.fail(StoppedError("stopped"))
    for ask in (asks[0], asks[2]):
        with pytest.raises(StoppedError, match="the run has ended: stopped"):
            ask.result(5)


# -- rolling back --------------------------------------------------------------------------------------------------


def test_roll_back_when_one_returned_then_is_told_and_expected(start, until):
    workers = start(2)
    workers.run.add_cut("checkpoint", workers.run.cut())
    ask = workers.leave(0)
    until(lambda: workers.run.results, "rank 0 has returned")
    workers.run.roll_back(1, "checkpoint")
    assert not ask.result(5)
    assert workers.run.results == {}
    assert workers.run.clocks.unfinished == 2


def test_roll_back_when_all_have_left_then_changes_nothing(start):
    workers = start(1)
    assert workers.leave(0).result(5)
    workers.run.roll_back(1, "unknown")
    assert workers.run.results == {0: b"0"}


def test_roll_back_when_workers_block_each_other_then_all_resume(start, until):
    workers = start(4, staleness=1)
    for rank in range(4):
        workers.arrive(rank, 1).result(5)
    workers.run.add_cut("checkpoint", workers.run.cut())
    assert workers.once(3, (3, 1)).result(5) is None
    waiting = [workers.arrive(0, 3), workers.barrier(1, (3, 0)), workers.once(2, (3, 1))]
    until(lambda: blocked(workers) == {0, 1, 2}, "three wait")
    workers.run.roll_back(1, "checkpoint")
    assert waiting[0].result(5).clock == 1
    assert waiting[0].result(5).epoch == 1
    waiting[1].result(5)
    assert waiting[2].result(5) is None, "it makes the value for itself"
    assert workers.run.once_made(workers.leases[2], (3, 1), b"lost", 0) == b"lost"
    assert workers.run.points.value((3, 1)) is None
    assert workers.arrive(1, 2).result(5).clock == 1


def test_roll_back_when_call_was_in_flight_then_is_made_again(start):
    workers = start(1, staleness=1, calls=True)
    workers.arrive(0, 1).result(5)
    workers.run.add_cut("checkpoint", workers.run.cut())
    assert workers.run.call_due() == (0, 0)
    workers.run.roll_back(1, "checkpoint")
    workers.run.called_back(0)
    assert workers.run.clocks.called == 0
    assert workers.run.arrive(workers.leases[0], 1, 1, 1).clock == 1
    assert workers.run.call_due() == (0, 1)


def test_cut_when_a_call_is_under_way_then_counts_it(start):
    workers = start(1, staleness=1, calls=True)
    workers.arrive(0, 1).result(5)
    workers.run.call_due()
    assert workers.run.cut().called == 1


def test_checkpoint_when_asked_in_a_call_then_noted_until_end(start):
    workers = start(1, staleness=1, calls=True)
    assert not workers.run.request_checkpoint(None, None)
    workers.arrive(0, 1).result(5)
    workers.run.call_due()
    with ThreadPoolExecutor(1) as other:
        assert not other.submit(workers.run.request_checkpoint, None, None).result(5)
    assert workers.run.request_checkpoint("there", 3)
    assert (workers.run.take_requested(), workers.run.take_requested()) == ([("there", 3)], [])
    assert workers.run.request_checkpoint("there", 4)
    workers.run.called_back(0)
    assert workers.run.call_due() is None
    assert workers.run.take_requested() == []


def test_holding_calls_when_one_is_due_then_it_begins_later(start):
    workers = start(1, staleness=1, calls=True)
    with workers.run.holding_calls() as is_free:
        assert is_free
        workers.arrive(0, 1).result(5)
        announced = workers.run.listener.due
        assert workers.run.call_due() is None
    assert workers.run.listener.due == announced + 1
    assert workers.run.call_due() == (0, 0)
    with workers.run.holding_calls() as is_free:
        assert not is_free


def test_cut_when_workers_are_ahead_then_next_driver_hears_it(start):
    """Clock 1 is finished, and ``onClock`` was not called for it; rank 0 has finished clock 2, which is done again."""
    workers = start(2, staleness=2, calls=True)
    lease = workers.leases
    for rank, clocks in ((0, 3), (1, 2)):
        reports = [Report(clock, "sum", b"%d" % rank) for clock in range(clocks)]
        workers.run.report_log.add(rank, reports, 0)
    for rank in range(2):
        workers.run.arrive(lease[rank], 2, 2, 0)
    assert workers.run.call_due() == (0, 0)
    workers.run.called_back(0)
    workers.run.arrive(lease[0], 3, 3, 0)
    cut = workers.run.cut()
    assert (cut.called, cut.first) == (1, 2)
    again = RunState(2, Clocks(2, 2, first=2, calls=True), Recorder(), first=2)
    again.resume(Journal.from_bytes(cut.saved(), "here"))
    assert again.call_due() == (1, 0)
    assert again.reports(1) == {rank: [Report(1, "sum", b"%d" % rank)] for rank in range(2)}
    again.called_back(1)
    assert (again.call_due(), again.reports(2), again.cut().called) == (None, {}, 2)


def test_go_on_when_run_begins_elsewhere_then_nothing_is_pending(start):
    pending = PendingReports(1, 2, ((0, 1, "sum", b"0"),))
    again = RunState(1, Clocks(1, 1, first=3, calls=True), Recorder(), first=3)
    again.resume(Journal(pending=pending))
    assert (again.call_due(), again.reports(1)) == (None, {})


def test_ahead_when_others_reported_applied_then_answers(start, pool):
    workers = start(2, staleness=1)
    for rank in range(2):
        workers.run.arrive(workers.leases[rank], 1, 0, 0)
    asked = pool.submit(workers.run.poll_progress, 0, 0, 1, 2, 0)
    assert workers.run.poll_progress(1, 1, 1, 2, 0) == (2, 0)
    assert asked.result(5) == (2, 0)
    assert workers.run.applied() == [1, 1]


def test_ahead_when_others_are_slow_then_answers_their_progress(start, monkeypatch):
    monkeypatch.setattr("ps2.run.requests.PROGRESS_TIMEOUT_S", 0.01)
    workers = start(2, staleness=1)
    assert workers.run.poll_progress(0, 0, 0, 2, 0) == (1, 0)


def test_ahead_when_its_worker_fails_then_it_answers_at_once(start, pool, monkeypatch):
    monkeypatch.setattr("ps2.run.requests.PROGRESS_TIMEOUT_S", 60.0)
    workers = start(2, staleness=1)
    asked = pool.submit(workers.run.poll_progress, 0, 0, 0, 2, 0)
    workers.run.fail_attempt(workers.leases[0], 0, "Error", False)
    assert asked.result(5) == (1, 0)


def test_ahead_when_fleet_rolled_back_then_ignores_report(start):
    workers = start(2, staleness=1)
    for rank in range(2):
        workers.run.arrive(workers.leases[rank], 1, 0, 0)
    workers.run.add_cut("checkpoint", workers.run.cut())
    workers.run.roll_back(1, "checkpoint")
    assert workers.run.poll_progress(0, 0, 1, 2, 0) == (1, 1)
    assert workers.run.applied() == [0, 0]


def test_ahead_when_another_attempt_holds_rank_then_is_refused(start):
    workers = start(1, staleness=1)
    with pytest.raises(StoppedError, match="attempt 7 of rank 0"):
        workers.run.poll_progress(0, 7, 0, 1, 0)


def test_roll_back_when_no_progress_then_ends_with_count(start):
    workers = start(1)
    workers.run.add_cut("checkpoint-7", workers.run.cut())
    went_on = [workers.run.roll_back(epoch, "checkpoint-7") for epoch in range(1, MAX_ROLLBACKS + 2)]
    assert went_on == [*[True] * MAX_ROLLBACKS, False]
    assert isinstance(workers.run.error, RecoveryError)
    assert f"rolled back {MAX_ROLLBACKS + 1} times to checkpoint checkpoint-7 (clock 0)" in str(workers.run.error)


# -- the call at the end -------------------------------------------------------------------------------------------


def test_leave_when_the_end_is_called_for_then_waits_for_that(start, until):
    workers = start(2)
    workers.run.calls_end = True
    asks = [workers.leave(0), workers.leave(1)]
    until(lambda: workers.run.end_due() == 0, "all have returned")
    assert not any(ask.done() for ask in asks)
    assert workers.run.listener.due == 1
    workers.run.end_called(0)
    assert [ask.result(5) for ask in asks] == [True, True]
    assert workers.run.end_due() is None


def test_end_when_called_before_the_fleet_rolled_back_then_again(start, until):
    workers = start(1)
    workers.run.calls_end = True
    workers.run.add_cut("checkpoint", workers.run.cut())
    ask = workers.leave(0)
    until(lambda: workers.run.end_due() == 0, "it has returned")
    workers.run.pause()
    workers.run.end_called(0)
    workers.run.roll_back(1, "checkpoint")
    assert not ask.result(5)
    workers.run.end_called(0)
    assert workers.run.end_due() is None
    workers.join(0).result(5)
    workers.leave(0)
    until(lambda: workers.run.end_due() == 1, "it has returned once more")
