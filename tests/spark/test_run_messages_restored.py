"""What ``onClock`` and the workers tell each other when the fleet rolls back, and when another driver goes on."""

from __future__ import annotations

import os
import signal
import time

import pytest

from ps2 import DCV, STOP, Message, PS2Context
from ps2.storage import folders

WORKERS, WAIT_S = 2, 60.0


@pytest.fixture
def rows(sc):
    return sc.parallelize(range(WORKERS), WORKERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def ps(spark, folder):
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=folder, checkpointEverySteps=2) as context:
        yield context


def kill_a_server(context):
    os.kill(next(iter(context._coordinator.fleet.launcher.pids())), signal.SIGKILL)


def test_run_when_the_fleet_rolls_back_then_tells_the_same_again(ps, by_value, rows):
    """The journal, the reports and STOP roll back with the vectors: all is as if nothing had happened."""
    total, calls = DCV.dense(1, dtype="int64").fill(0), []

    def work(worker, held):
        seen, epoch = [], worker.epoch
        for clock in worker.clocks(100):
            if worker.epoch != epoch:
                seen, epoch = [], worker.epoch
            seen += worker.messages
            assert len(seen) == clock
            total.add([1], [0])
            worker.report(clock + worker.rank, merge="concat")
        return worker.clock, seen + worker.messages

    def on_clock(clock, reports):
        calls.append(clock)
        if calls.count(4) == 1 and clock == 5:
            kill_a_server(ps)
        sum = int(total.pull()[0])  # waits for the server
        if clock == 7:
            return STOP
        return Message([clock, reports[0], sum])

    result = ps.run(rows, work, onClock=on_clock, read=lambda worker, rows: list(rows), timeoutS=WAIT_S)
    expected = [[clock, [clock, clock + 1], 2 * clock + 2] for clock in range(7)]
    assert list(result) == [(8, expected)] * WORKERS
    assert calls.count(4) == 2
    assert ps.recoveries[-1].rolledBack


def test_run_when_a_new_driver_restores_it_then_hears_the_same(spark, ps, by_value, rows, folder, tmp_path):
    """One checkpoint is of the middle of a run, one of its end by STOP."""

    def work(worker, _):
        before = worker.messages
        return before, [(clock, worker.messages) for clock in worker.clocks(100)], worker.messages

    def on_clock(clock):
        if clock == 4:
            assert ps.checkpoint(str(tmp_path)) is None  # until this call has returned its message
        return STOP if clock == 5 else Message([clock])

    ps.run(rows, work, onClock=on_clock, timeoutS=WAIT_S)
    (cut,) = folders.find(str(tmp_path))
    ps.stop()
    with PS2Context.getOrCreate(spark, servers=1, restore=cut.url) as restored:
        assert restored.nextStep == 5
        result = restored.run(rows, work, onClock=on_clock, firstClock=5, timeoutS=WAIT_S)
        assert list(result) == [([], [(5, [[0], [1], [2], [3], [4]])], [])] * WORKERS
    with PS2Context.getOrCreate(spark, servers=1, restore=folder, checkpointDir=str(tmp_path / "on")) as restored:
        assert restored.nextStep == 6
        result = restored.run(rows, work, onClock=on_clock, firstClock=6, timeoutS=WAIT_S)
        assert list(result) == [([], [], [[0], [1], [2], [3], [4]])] * WORKERS


def test_run_when_workers_were_ahead_then_new_driver_is_told(spark, by_value, rows, tmp_path):
    """A checkpoint holds what workers have reported in clocks that ``onClock`` was not called for."""
    folder = str(tmp_path)

    def work(worker, _):
        for clock in worker.clocks(9):
            worker.report(10 * clock + worker.rank, merge="concat")
        return worker.messages

    def on_clock(clock, reports):
        calls.append((clock, reports[0]))
        deadline_s = time.monotonic() + WAIT_S
        while clock == 4 and min(ps._coordinator.active_runs.newest.applied()) < 6 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return Message([clock])

    calls = []
    with PS2Context.getOrCreate(spark, servers=1, checkpointDir=folder, checkpointEverySteps=5) as ps:
        ps.run(rows, work, onClock=on_clock, staleness=1, timeoutS=WAIT_S)
    assert [clock for clock, _ in calls] == list(range(9))
    calls.clear()
    again = str(tmp_path / "again")
    with PS2Context.getOrCreate(spark, servers=1, restore=folder, checkpointDir=again) as ps:
        assert ps.nextStep == 6
        result = ps.run(rows, work, onClock=on_clock, staleness=1, firstClock=6, timeoutS=WAIT_S)
    assert calls == [(clock, [10 * clock, 10 * clock + 1]) for clock in range(5, 9)]
    assert [messages[:7] for messages in result] == [[[clock] for clock in range(7)]] * WORKERS
