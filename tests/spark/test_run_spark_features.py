"""What Spark offers to tasks and jobs is there in ``ps.run``: broadcasts, accumulators, files, groups, properties."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import StoppedError

pytestmark = pytest.mark.usefixtures("by_value")

ROWS = 4


@pytest.fixture(params=["rdd", "frame"])
def data(request, spark, sc):
    """Four rows for two workers."""
    return sc.parallelize(range(ROWS), 2) if request.param == "rdd" else spark.range(0, ROWS, 1, 2)


def test_run_when_function_holds_broadcast_then_workers_get_it(ps, sc, data):
    table = sc.broadcast(np.arange(1000))
    assert list(ps.run(data, lambda worker, rows: int(table.value.sum()))) == [499500] * 2


def test_run_when_data_is_dealt_out_then_broadcast_still_arrives(ps, sc, data):
    table = sc.broadcast({"a": 1})
    assert list(ps.run(data, lambda worker, rows: table.value, workers=1)) == [{"a": 1}]


def test_run_when_rows_use_another_broadcast_then_both_arrive(ps, spark, sc):
    ours, theirs = sc.broadcast(2), sc.broadcast(3)
    rdd = sc.parallelize(range(2), 2).map(lambda i: i + theirs.value)
    assert list(ps.run(rdd, lambda worker, rows: [ours.value * row for row in rows])) == [[6], [8]]


def test_run_when_function_is_large_then_broadcast_still_arrives(ps, sc, data):
    table, ballast = sc.broadcast(7), bytes(2 << 20)  # Spark broadcasts functions of more than 1 MiB
    assert list(ps.run(data, lambda worker, rows: table.value + len(ballast))) == [7 + (2 << 20)] * 2


def test_run_when_workers_count_then_accumulator_has_sum(ps, sc, data):
    counter = sc.accumulator(0)

    def work(worker, rows):
        for _ in worker.clocks(3):
            counter.add(worker.rank + 1)

    ps.run(data, work)
    assert counter.value == 3 * (1 + 2)


def test_a_run_when_a_file_was_added_then_workers_read_it(ps, sc, data, tmp_path):
    path = tmp_path / f"words-{tmp_path.name}.txt"
    path.write_text("hello")
    sc.addFile(str(path))

    def work(worker, rows, name=path.name):
        from pyspark import SparkFiles

        with open(SparkFiles.get(name)) as file:
            return file.read()

    assert list(ps.run(data, work)) == ["hello"] * 2


def test_a_run_when_a_module_was_added_then_workers_import_it(ps, sc, data, tmp_path, monkeypatch):
    name = "added_for_" + type(data).__name__.lower()
    path = tmp_path / f"{name}.py"
    path.write_text("answer = 42\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    sc.addPyFile(str(path))

    def work(worker, rows):
        from importlib import import_module

        return import_module(name).answer

    assert list(ps.run(data, work)) == [42] * 2


def test_run_when_caller_has_local_properties_then_tasks_do_too(ps, sc, data):
    properties = {
        "spark.job.description": "training",
        "spark.scheduler.pool": "batch",
        "spark.jobGroup.id": "nightly",
        "mine": "x",
    }

    def work(worker, rows):
        from pyspark import TaskContext

        return {name: TaskContext.get().getLocalProperty(name) for name in properties}

    for name, value in properties.items():
        sc.setLocalProperty(name, value)
    try:
        assert list(ps.run(data, work)) == [properties] * 2
    finally:
        for name in properties:
            sc.setLocalProperty(name, None)


def test_run_when_job_group_is_cancelled_then_next_one_works(ps, sc, data):
    total = DCV.dense(2, dtype="int64")
    running = threading.Event()

    def work(worker, rows):
        for _ in worker.clocks(1_000_000):
            total.add([1, 1])

    def cancel():
        assert running.wait(30)
        sc.cancelJobGroup("nightly")

    sc.setJobGroup("nightly", "training")
    canceller = threading.Thread(target=cancel)
    canceller.start()
    began_s = time.monotonic()
    try:
        with pytest.raises(StoppedError, match=r"Spark cancelled the job.*nightly"):
            ps.run(data, work, onClock=lambda clock: running.set(), timeoutS=60)
    finally:
        canceller.join()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            sc.setLocalProperty(name, None)
    assert time.monotonic() - began_s < 30
    assert list(ps.run(data, lambda worker, rows: worker.rank)) == [0, 1]


def test_run_when_ctrl_c_comes_then_cancels_and_next_works(ps, sc, data):
    total = DCV.dense(2, dtype="int64")

    def work(worker, rows):
        for _ in worker.clocks(1_000_000):
            total.add([1, 1])

    def interrupt(clock):
        if clock == 1:  # from another thread: this one is in the middle of a run, as with a key that is pressed
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        ps.run(data, work, onClock=interrupt, timeoutS=60)
    assert not sc.statusTracker().getActiveJobsIds()
    before = total.pull()
    assert list(ps.run(data, lambda worker, rows: worker.rank)) == [0, 1]
    np.testing.assert_array_equal(total.pull(), before)
