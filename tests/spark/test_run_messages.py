"""What ``onClock`` tells the workers, and they tell it: messages, STOP and reports."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV, STOP, Message
from ps2.errors import UsageError, WorkerError

WORKERS, CLOCKS, WAIT_S = 2, 6, 60.0


@pytest.fixture
def rows(sc):
    return sc.parallelize(range(WORKERS), WORKERS)


def heard(worker, clocks=CLOCKS):
    """Return what a worker found in each clock, and after the last one: (message, messages)."""
    result = [(worker.message, worker.messages)]
    for _ in worker.clocks(clocks):
        result.append((worker.message, worker.messages))
    return [*result, (worker.message, worker.messages)]


def test_message_when_onclock_returns_one_then_all_have_it(ps, by_value, rows):
    def tell(clock):
        return Message(clock=clock, half=np.full(2, clock / 2)) if clock != 2 else DCV

    def work(worker, _):
        return [(message and (message["clock"], message["half"].tolist()), len(all)) for message, all in heard(worker)]

    def of(clock):
        return clock, [clock / 2] * 2

    expected = [(None, 0), (None, 0), (of(0), 1), (of(1), 1), (of(1), 0), (of(3), 1), (of(4), 1), (of(5), 1)]
    assert list(ps.run(rows, work, onClock=tell, timeoutS=WAIT_S)) == [expected] * WORKERS


def test_messages_when_a_worker_reads_them_late_then_has_all(ps, by_value, rows):
    def work(worker, _):
        for clock in worker.clocks(CLOCKS):
            if clock == 4:
                read = worker.messages
        return read, worker.messages

    result = ps.run(rows, work, onClock=Message, timeoutS=WAIT_S)
    assert list(result) == [([0, 1, 2, 3], [4, 5])] * WORKERS


def test_messages_when_workers_may_be_ahead_then_come_in_order(ps, by_value, rows):
    def work(worker, _):
        seen = []
        for clock in worker.clocks(20):
            assert clock - 3 <= (-1 if worker.message is None else worker.message)
            seen += worker.messages
        return seen + worker.messages

    for seen in ps.run(rows, work, staleness=2, onClock=Message, timeoutS=WAIT_S):
        assert seen == list(range(len(seen)))
        assert len(seen) >= 18


def test_messages_when_they_exceed_one_answer_then_all_come(ps, by_value, rows, monkeypatch):
    monkeypatch.setattr("ps2.run.requests.LIMIT_BYTES", 1000)

    def work(worker, _):
        for _ in worker.clocks(CLOCKS):
            pass
        return [(len(text), text[0]) for text in worker.messages]

    result = ps.run(rows, work, onClock=lambda clock: Message(str(clock) * 600), timeoutS=WAIT_S)
    assert list(result) == [[(600, str(clock)) for clock in range(CLOCKS)]] * WORKERS


@pytest.mark.parametrize("staleness", [0, 2, None])
def test_stop_when_returned_then_all_loops_end_alike(ps, by_value, rows, staleness):
    counts, calls = DCV.dense(WORKERS, dtype="int64").fill(0), []

    def work(worker, _):
        for _ in worker.clocks(1000):
            counts.add([1], [worker.rank], wait=False)
        ended = worker.clock
        assert list(worker.clocks(2000)) == []
        worker.barrier()
        return ended, counts.pull().tolist()

    def on_clock(clock):
        calls.append(clock)
        return STOP if clock >= 3 else None

    (end, totals), other = ps.run(rows, work, staleness=staleness, onClock=on_clock, timeoutS=WAIT_S)
    assert other == (end, totals)
    assert totals == [end] * WORKERS
    assert calls == list(range(end))
    assert end == 4 if staleness == 0 else end >= 4
    if staleness:
        assert end <= 4 + staleness


def test_stop_when_in_a_rotation_then_ends_it(ps, by_value, rows):
    def work(worker, _):
        turns = [worker.clock for _ in worker.rotate(4, rotations=100)]
        return turns, worker.clock

    result = ps.run(rows, work, staleness=1, onClock=lambda clock: STOP if clock == 5 else None, timeoutS=WAIT_S)
    ends = {end for _, end in result}
    assert len(ends) == 1
    assert ends <= {6, 7}


def test_run_when_the_one_before_was_stopped_then_goes_on(ps, by_value, rows):
    def work(worker, _):
        return list(worker.clocks(CLOCKS)), worker.messages

    ps.run(rows, work, onClock=lambda clock: STOP if clock == 2 else Message(clock), timeoutS=WAIT_S)
    assert ps.nextStep == 3
    result = ps.run(rows, work, onClock=Message, firstClock=3, timeoutS=WAIT_S)
    assert list(result) == [([3, 4, 5], [0, 1, 3, 4, 5])] * WORKERS
    (result, _) = ps.run(rows, work, onClock=lambda clock: None, timeoutS=WAIT_S)
    assert result == (list(range(CLOCKS)), [])


def test_reports_when_merged_then_onclock_has_them(ps, by_value, rows):
    seen = []

    def work(worker, _):
        for clock in worker.clocks(3):
            worker.report({"rows": 1, "loss": np.array([0.1 * worker.rank])})
            worker.report(10 * clock + worker.rank, merge="max")
            if clock == 1:
                worker.report([worker.rank], merge="concat")

    def on_clock(clock, reports):
        seen.append((clock, reports[0]["rows"], reports[0]["loss"].tolist(), *reports[1:]))

    ps.run(rows, work, onClock=on_clock, timeoutS=WAIT_S)
    assert seen == [(0, 2, [0.1], 1), (1, 2, [0.1], 11, [0, 1]), (2, 2, [0.1], 21)]


def test_reports_when_workers_are_ahead_then_kept_by_clock(ps, by_value, rows):
    seen = []

    def work(worker, _):
        for clock in worker.clocks(20):
            worker.report(clock)

    ps.run(rows, work, staleness=3, onClock=lambda clock, reports: seen.append((clock, reports)), timeoutS=WAIT_S)
    assert seen == [(clock, [2 * clock]) for clock in range(20)]


def test_report_when_nobody_takes_it_then_is_refused(ps, by_value, rows):
    def work(worker, _):
        for _ in worker.clocks(2):
            worker.report(1)

    with pytest.raises(WorkerError, match=r"report: expected a run with onClock\(clock, reports\)"):
        ps.run(rows, work, onClock=lambda clock, other=None: None, timeoutS=WAIT_S)


def test_report_when_the_worker_is_in_no_clock_then_is_refused(ps, by_value, rows):
    with pytest.raises(WorkerError, match="report: call it in a clock"):
        ps.run(rows, lambda worker, _: worker.report(1), onClock=lambda clock, reports: None, timeoutS=WAIT_S)


def test_reports_when_they_do_not_fit_then_the_run_ends(ps, by_value, rows):
    def work(worker, _):
        for _ in worker.clocks(2):
            worker.report(np.zeros(1 + worker.rank))

    with pytest.raises(WorkerError, match="clock 0: rank 1 differs from rank 0"):
        ps.run(rows, work, onClock=lambda clock, reports: None, timeoutS=WAIT_S)


def test_message_when_it_is_no_plain_data_then_onclock_raises(ps, by_value, rows):
    def work(worker, _):
        return list(worker.clocks(2))

    with pytest.raises(UsageError, match=r"Message\['a'\]: expected None, a bool"):
        ps.run(rows, work, onClock=lambda clock: Message(a=object()), timeoutS=WAIT_S)
