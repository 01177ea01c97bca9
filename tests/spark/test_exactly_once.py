"""A task that runs more than once counts once."""

from __future__ import annotations

import os

import numpy as np
import pytest

import ps2
from ps2 import DCV

pytestmark = pytest.mark.usefixtures("by_value")


@pytest.fixture
def total(ps):
    return DCV.dense(5, dtype="int64")


def die(how):
    """End this attempt of a task."""
    if how == "exit":
        os._exit(1)
    raise RuntimeError("this attempt dies")


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_task_when_its_first_attempt_adds_and_dies_then_its_adds_count_once(how, total, sc):
    from pyspark import TaskContext

    def work(rows):
        for row in rows:
            total.add(np.full(5, row))
        if TaskContext.get().attemptNumber() == 0:
            die(how)

    sc.parallelize([1, 2, 3, 4], 2).foreachPartition(work)
    assert total.pull().tolist() == [10] * 5


def test_a_task_when_it_dies_between_two_adds_then_both_count_once(total, sc):
    from pyspark import TaskContext

    def work(rows):
        total.add(np.full(5, 1))
        if TaskContext.get().attemptNumber() < 2:
            die("raise")
        total.add(np.full(5, 10))

    sc.parallelize([0], 1).foreachPartition(work)
    assert total.pull().tolist() == [11] * 5


def test_a_task_when_retried_after_a_batch_then_the_batch_counts_once(total, sc):
    from pyspark import TaskContext

    def work(rows):
        with ps2.batch():
            total.add(np.ones(5, np.int64))
            total.mul(3)
        if TaskContext.get().attemptNumber() == 0:
            die("raise")

    sc.parallelize([0], 1).foreachPartition(work)
    assert total.pull().tolist() == [3] * 5


def test_a_task_when_retried_after_map_partitions_then_it_gets_the_first_attempts_result(total, sc):
    from pyspark import TaskContext

    def bump(values):
        values += 1
        return int(values.sum())

    def work(rows):
        result = total.zip().mapPartitions(bump).sum()
        if TaskContext.get().attemptNumber() == 0:
            die("raise")
        yield result

    assert sc.parallelize([0], 1).mapPartitions(work).collect() == [5]


def test_two_attempts_of_a_task_when_both_run_to_the_end_then_their_adds_count_once(total, sc):
    from pyspark import TaskContext

    def work(rows):
        # What speculation does: another worker is told the same stage and partition.
        TaskContext.get()._partitionId = 0
        total.add(np.ones(5, np.int64))
        total.add(np.full(5, 10))

    sc.parallelize(range(2), 2).foreachPartition(work)
    assert total.pull().tolist() == [11] * 5


def test_two_jobs_when_they_have_the_same_partitions_then_both_count(total, sc):
    rows = sc.parallelize(range(2), 2)
    rows.foreach(lambda _: total.add(np.ones(5, np.int64)))
    rows.foreach(lambda _: total.add(np.ones(5, np.int64)))
    assert total.pull().tolist() == [4] * 5


def test_one_rdd_when_computed_by_two_jobs_then_both_count(total, sc):
    def work(rows):
        total.add(np.ones(5, np.int64))
        yield from rows

    rows = sc.parallelize(range(2), 2).mapPartitions(work)
    rows.count()
    rows.count()
    assert total.pull().tolist() == [4] * 5


def test_two_python_workers_when_they_serve_one_task_then_both_count(total, spark):
    from pyspark.sql import functions

    def count(i):
        total.add(np.ones(5, np.int64))
        return i

    def work(rows):
        for _ in rows:
            total.add(np.full(5, 10))

    counted = functions.udf(count, "long", useArrow=False)
    spark.range(0, 4, 1, 2).select(counted("id")).rdd.foreachPartition(work)
    assert total.pull().tolist() == [44] * 5


def test_two_python_workers_when_their_task_is_retried_then_both_count_once(total, spark):
    from pyspark import TaskContext
    from pyspark.sql import functions

    def count(i):
        total.add(np.ones(5, np.int64))
        return i

    def work(rows):
        for _ in rows:
            total.add(np.full(5, 10))
        if TaskContext.get().attemptNumber() == 0:
            die("raise")

    counted = functions.udf(count, "long", useArrow=False)
    spark.range(0, 4, 1, 2).select(counted("id")).rdd.foreachPartition(work)
    assert total.pull().tolist() == [44] * 5


def test_a_task_when_its_threads_add_then_every_add_counts_once(total, sc):
    from concurrent.futures import ThreadPoolExecutor

    from pyspark import TaskContext

    def work(rows):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: total.add(np.ones(5, np.int64)), range(20)))
        if TaskContext.get().attemptNumber() == 0:
            die("raise")

    sc.parallelize([0], 1).foreachPartition(work)
    assert total.pull().tolist() == [20] * 5
