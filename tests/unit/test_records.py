"""What a run notes of its workers stays bounded."""

from __future__ import annotations

import logging
import pickle

from ps2.rpc.run_control import ClockTimes, Logged
from ps2.run.records import Metrics, Timeline


def times(clock):
    return ClockTimes(clock, began=clock + 0.5, compute=1.0, pull=2.0, push=3.0, wait=4.0, block=clock, left=0.25)


def test_timeline_when_read_then_has_what_was_appended():
    timeline = Timeline()
    for clock in range(3):
        timeline.append(times(clock))
    assert list(timeline) == [times(0), times(1), times(2)]
    assert timeline[-1] == times(2)
    assert timeline[1:] == (times(1), times(2))


def test_timeline_when_full_then_keeps_newest_and_warns_once(caplog):
    timeline = Timeline(limit=10)
    with caplog.at_level(logging.WARNING):
        for clock in range(100):
            timeline.append(times(clock))
    assert len(timeline) <= 10
    assert timeline[-1] == times(99)
    assert timeline.dropped + len(timeline) == 100
    assert [record.message for record in caplog.records] == [
        "run: there are more than 10 clocks of a worker; only the newest are kept"
    ]


def test_metrics_when_full_then_keep_the_newest():
    metrics = Metrics(limit=4)
    for clock in range(9):
        metrics.append(1, Logged("loss" if clock % 2 else "rate", clock / 2, clock))
    assert metrics[-1] == (1, Logged("rate", 4.0, 8))
    assert len(metrics) + metrics.dropped == 9


def test_records_when_pickled_then_are_the_same():
    metrics = Metrics()
    metrics.append(0, Logged("loss", 0.1, 5))
    assert list(pickle.loads(pickle.dumps(metrics))) == [(0, Logged("loss", 0.1, 5))]
