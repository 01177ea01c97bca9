"""A run without enough task slots is an error that names both numbers, never a hang."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import SlotsError
from ps2.run.slots import SlotCounts

CLOCKS = 3


@pytest.fixture
def rows(sc):
    return sc.parallelize(range(4), 2)


def test_run_when_other_job_has_all_slots_then_names_both(ps, rows, busy, monkeypatch):
    monkeypatch.setattr("ps2.run.runs.SLOTS_TIMEOUT_S", 1.0)
    with pytest.raises(SlotsError, match="has 0 free task slots after 1 s, and 2 are needed"):
        ps.run(rows, lambda worker, rows: None, workers=2)


def test_run_when_no_worker_gets_slot_then_names_both_numbers(ps, rows, busy, monkeypatch):
    # As if another job had been quicker.
    monkeypatch.setattr("ps2.run.slots.count_slots", lambda *_: SlotCounts(2, 2, 2))
    monkeypatch.setattr("ps2.run.job_monitor.START_TIMEOUT_S", 2.0)
    with pytest.raises(SlotsError, match=r"2 workers need a task slot each, and Spark at local\[2,4\] has 2"):
        ps.run(rows, lambda worker, rows: None, workers=2)


def test_run_when_earlier_stage_is_slow_then_waits_for_it(ps, sc, monkeypatch):
    monkeypatch.setattr("ps2.run.job_monitor.START_TIMEOUT_S", 4.0)
    total = DCV.dense(10, dtype="int64")

    def slowly(row):
        time.sleep(2.5)  # of two rows each task
        return row, row

    def work(worker, rows):
        for _ in worker.clocks(CLOCKS):
            total.add(np.ones(10, np.int64))

    ps.run(sc.parallelize(range(4), 2).map(slowly).groupByKey(2), work, workers=2)
    assert np.unique(total.pull()).tolist() == [2 * CLOCKS]
