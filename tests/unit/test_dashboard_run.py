"""A run as the live page shows it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from ps2.dashboard.run_view import MAX_BARS, MAX_SHOWN, RunWatcher
from ps2.dashboard.series import MAX_POINTS, ClockMeans, downsample
from ps2.dashboard.snapshot import to_json
from ps2.rpc.run_control import ClockTimes, Logged
from ps2.run.clocks import Clocks
from ps2.run.state import RunState
from ps2.run.timeline import NAMES


class Silent:
    """A listener that nobody needs."""

    def clock_due(self):
        pass

    def logged(self, rank, metric):
        pass

    def failed(self):
        pass


class Watched:
    """A run with a worker for each rank, and what looks at it."""

    def __init__(self, workers, staleness=0, calls=False):
        self.run = RunState(workers, Clocks(workers, staleness, calls=calls), Silent())
        self.watcher = RunWatcher(self.run, 7)
        self.leases = [self.run.leases.new(rank, rank, lambda: None) for rank in range(workers)]
        for lease in self.leases:
            self.run.leases.grant(lease)
        self.notes = 0

    def ended(self, rank, clock, compute_s, **logged):
        """Note a clock that a worker has ended."""
        self.notes += 1
        metrics = [Logged(name, value, clock) for name, value in logged.items()]
        times = ClockTimes(clock, 0.5 * clock, compute_s, 0.02, 0.03, 0.1)
        self.run.record(self.leases[rank], self.notes, metrics, times)

    def arrive(self, rank, clock):
        self.run.arrived_s[rank] = time.monotonic()
        self.run.apply(lambda: self.run.clocks.arrive(rank, clock, clock))

    def look(self):
        return self.watcher.view()


def test_run_when_workers_wait_then_each_state_is_told():
    watched = Watched(3)
    watched.run.clocks.leave(2, 1)
    watched.arrive(0, 1)
    view = watched.look()
    assert [worker.state for worker in view.shown] == ["wait", "working", "returned"]
    assert view.shown[0].why == "before clock 1"
    assert view.states == {"wait": 1, "working": 1, "returned": 1}


def test_run_when_onclock_is_due_then_workers_wait_for_it():
    watched = Watched(2, calls=True)
    for rank in range(2):
        watched.arrive(rank, 1)
    view = watched.look()
    assert [(worker.state, worker.why) for worker in view.shown] == [("onClock", "onClock of clock 0")] * 2


def test_run_when_a_task_is_lost_then_its_rank_has_none():
    watched = Watched(2)
    watched.run.fail_attempt(watched.leases[1], 0, "Traceback\nValueError: no", fatal=False)
    watched.run.release_rank(watched.leases[1])
    view = watched.look()
    assert view.shown[1].state == "no task"
    assert view.shown[1].failures == 1
    assert watched.run.lost_attempts[0][1:] == (1, 0, "ValueError: no")


def test_sums_when_looked_at_twice_then_count_once():
    watched = Watched(2)
    for clock in range(3):
        for rank in range(2):
            watched.ended(rank, clock, 0.2)
        view = watched.look()
    result = {name: part for name, part in zip((*NAMES, "other"), view.parts, strict=True) if part}
    assert result == pytest.approx({"wait": 0.6, "pull": 0.12, "compute": 1.2, "push": 0.18, "other": 0.6})
    assert [worker.clocks for worker in view.shown] == [3, 3]
    assert [bar.clock for bar in view.shown[0].bars] == [0, 1, 2]


def test_worker_when_it_is_slow_then_is_a_straggler():
    watched = Watched(4)
    for rank in range(4):
        watched.ended(rank, 0, 0.9 if rank == 2 else 0.2)
    view = watched.look()
    assert view.stragglers == (2,)
    assert view.shown[2].slowdown == pytest.approx(0.95 / 0.25)


def test_time_left_when_loops_have_an_end_then_is_of_the_pace(monkeypatch):
    watched = Watched(2)
    now_s = [watched.run.began_s]
    monkeypatch.setattr("ps2.dashboard.run_view.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    watched.run.until = 1 << 40
    for clock in range(4):
        now_s[0] += 2.0
        for rank in range(2):
            watched.ended(rank, clock, 0.2)
            watched.arrive(rank, clock + 1)
        assert watched.look().left_s is None  # one that ends by STOP
    watched.run.until = 10
    assert watched.look().left_s == pytest.approx(6 * 2.0)


def test_clocks_when_they_are_many_then_share_bars():
    watched = Watched(1)
    for clock in range(1000):
        watched.ended(0, clock, 0.001)
    bars = watched.look().shown[0].bars
    assert len(bars) <= MAX_BARS
    assert bars[-1].clock == 999


def test_workers_when_they_are_500_then_the_slowest_are_shown():
    watched = Watched(500)
    for clock in range(20):
        for rank in range(500):
            watched.ended(rank, clock, 2.0 if rank == 321 else 0.2, loss=0.5)
    watched.look()
    view = watched.look()
    assert len(view.shown) == MAX_SHOWN
    assert 321 in [worker.rank for worker in view.shown]
    assert len(to_json(view)) < 300_000


def test_logged_numbers_when_workers_log_then_are_means_by_clock():
    watched = Watched(2)
    for clock in range(3):
        watched.ended(0, clock, 0.1, loss=1.0 + clock)
        watched.ended(1, clock, 0.1, loss=3.0 + clock)
    (series,) = watched.look().series
    assert (series.name, series.at, series.values) == ("loss", (0, 1, 2), (2.0, 3.0, 4.0))


def test_means_when_run_rolls_back_then_later_clocks_go():
    means = ClockMeans(10)
    means.add(np.arange(10, 14), np.ones(4))
    means.roll_back(12)
    means.add(np.array([12]), np.array([5.0]))
    assert means.to_series("loss").values == (1.0, 1.0, 5.0)
    assert means.to_series("loss").at == (10, 11, 12)


def test_series_when_it_is_long_then_extremes_stay():
    values = np.zeros(100_000)
    values[54_321], values[9] = 7.0, np.nan
    series = downsample("loss", np.arange(100_000), values)
    assert len(series.at) <= MAX_POINTS
    assert max(series.values) == 7.0
    assert (series.at[0], series.at[-1]) == (0, 99_999)
