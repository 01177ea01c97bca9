"""What the driver measures of a run's workers before they join and after they have returned."""

from __future__ import annotations

import time

import psutil
import pytest

from ps2.rpc.run_control import StartTimes
from ps2.run.rank_leases import RankLease
from ps2.run.spans import Spans
from ps2.run.task import python_ages_s
from ps2.run.timeline import ended, to_table


def lease(rank, attempt):
    return RankLease(rank, attempt, 1, lambda: None)


@pytest.fixture
def spans():
    """Of a run whose job was submitted at second 1."""
    return Spans({"spark": 0.75, "coordinator": 0.25}, 1.0)


@pytest.mark.parametrize(
    ("start", "imports_s"),
    [
        (StartTimes(2.0, 0.0, 0.5), 2.0),
        (StartTimes(1.0, 3.0, 0.5), 3.0),  # the daemon was started for this run, too
        (StartTimes(1.0, 60.0, 0.5), 1.0),  # the daemon was there before
        (StartTimes(50.0, 60.0, 0.5), 0.0),  # so was the process
    ],
)
def test_start_when_python_is_younger_than_job_then_is_imports(spans, start, imports_s):
    times = spans.joined(lease(0, 7), 0, start, 5.0)
    assert (times.began, times.imports, times.connect, times.coordinator) == (0.0, imports_s, 0.5, 0.25)
    assert times.spark == 0.75 + 4.0 - 0.5 - imports_s


def test_start_when_attempt_reconnects_then_counts_once(spans):
    assert spans.joined(lease(0, 7), 0, StartTimes(), 5.0) is not None
    assert spans.joined(lease(0, 7), 3, StartTimes(), 6.0) is None


def test_start_when_a_task_was_lost_then_is_from_its_end_on(spans):
    spans.joined(lease(0, 7), 0, StartTimes(), 5.0)
    spans.record_loss(0, 8.0)
    again = spans.joined(lease(0, 8), 4, StartTimes(1.0, 0.0, 0.25), 10.0)
    assert (again.clock, again.began, again.imports, again.connect, again.spark) == (4, 8.0, 1.0, 0.25, 0.75)


def test_end_when_workers_return_apart_then_all_is_divided(spans):
    spans.record_return(0, 10.0)
    spans.record_return(1, 12.0)
    spans.record_call("on_clock", 12.25, 13.0)
    spans.over_s, spans.ended_s = 13.5, 15.0
    (first, last), (_, late_last) = (to_table(times) for times in spans.times_after_return([5, 5], 15.5))
    assert (first.began, first.wait, first.onClock, first.coordinator) == (10.0, 2.0, 0.75, 0.75)
    assert (last.began, last.spark, last.coordinator) == (13.5, 1.5, 0.5)
    assert last == late_last
    assert ended(to_table(spans.times_after_return([5, 5], 15.5)[0])).tolist() == [13.5, 15.5]


def test_end_when_a_worker_never_returned_then_has_no_times(spans):
    spans.record_return(0, 10.0)
    spans.over_s = 11.0
    assert spans.times_after_return([5, 3], 12.0) == [[], []]


def test_age_of_python_then_is_since_its_start():
    began_s = psutil.Process().create_time()
    assert python_ages_s()[0] == pytest.approx(time.time() - began_s, abs=2.0)
