"""A task that runs more than once counts once."""

from __future__ import annotations

import os

import numpy as np
import pytest

import ps2
from ps2 import DCV

pytestmark = pytest.mark.usefixtures("by_value")
SETTLED_S = 30.0


@pytest.fixture
def total(ps):
    return DCV.dense(5, dtype="int64")


def die(how):
    """End this attempt of a task."""
    if how == "exit":
        os._exit(1)
    raise RuntimeError("this attempt dies")


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_task_when_first_attempt_adds_and_dies_then_counts_once(how, total, sc):
    from pyspark import TaskContext

    def work(rows):
        for row in rows:
            total.add(np.full(5, row))
        if TaskContext.get().attemptNumber() == 0:
            die(how)

    sc.parallelize([1, 2, 3, 4], 2).foreachPartition(work)
    assert total.pull().tolist() == [10] * 5


def test_task_when_it_dies_between_two_adds_then_both_count_once(total, sc):
    from pyspark import TaskContext

    def work(rows):
        total.add(np.full(5, 1))
        if TaskContext.get().attemptNumber() < 2:
            die("raise")
        total.add(np.full(5, 10))

    sc.parallelize([0], 1).foreachPartition(work)
    assert total.pull().tolist() == [11] * 5


def test_task_when_retried_after_batch_then_batch_counts_once(total, sc):
    from pyspark import TaskContext

    def work(rows):
        with ps2.batch():
            total.add(np.ones(5, np.int64))
            total.mul(3)
        if TaskContext.get().attemptNumber() == 0:
            die("raise")

    sc.parallelize([0], 1).foreachPartition(work)
    assert total.pull().tolist() == [3] * 5


def test_task_when_retried_after_map_partitions_then_same_result(total, sc):
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


def test_task_attempts_when_both_finish_then_adds_count_once(total, sc):
    from pyspark import TaskContext

    def work(rows):
        # What speculation does: another worker is told the same stage and partition.
        TaskContext.get()._partitionId = 0
        total.add(np.ones(5, np.int64))
        total.add(np.full(5, 10))

    sc.parallelize(range(2), 2).foreachPartition(work)
    assert total.pull().tolist() == [11] * 5


def test_jobs_when_partitions_are_equal_then_both_count(total, sc):
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


def test_python_workers_when_two_serve_one_task_then_both_count(total, spark):
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


def test_python_workers_when_their_task_retries_then_count_once(total, spark):
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


def test_task_when_retried_in_broadcast_worker_then_counts_once(total, sc):
    """A worker unpickles a broadcast once: the task before has, the retried one does not."""
    from pyspark import TaskContext

    shared = sc.broadcast([total.derive(), total])

    def work(rows):
        shared.value[1].add(np.ones(5, np.int64))
        shared.value[0].add(np.ones(5, np.int64))
        if TaskContext.get().attemptNumber() == 0:
            die("raise")

    sc.parallelize(range(2), 2).foreachPartition(lambda rows: shared.value[1].add(np.full(5, 10)))
    sc.parallelize(range(2), 2).foreachPartition(work)
    assert (total.pull()[0], shared.value[0].pull()[0]) == (22, 2)


# -- vectors made in tasks -------------------------------------------------------------------------------------------


def used_rows(ps, vector):
    return len(ps._coordinator.fleet.master._catalog.get(vector._matrix).used)


def test_task_when_it_makes_vectors_and_dies_midway_then_exact(total, sc):
    from pyspark import TaskContext

    def work(rows):
        attempt = TaskContext.get().attemptNumber()
        for row in rows:
            scratch = total.derive()
            if attempt == 0:
                die("raise")
            scratch.push(np.full(5, row))
            scratch.add(np.arange(5), np.arange(5))
            scratch.zip().mapPartitions(lambda values: values.__imul__(2) is None)
            total.add(scratch)
            if attempt == 1:
                die("exit")
            del scratch
            own = DCV.dense(5, dtype="int64").fill(row)
            total.add(own.pull())
            own.free()
            if attempt == 2:
                die("raise")

    sc.parallelize([1, 100], 2).foreachPartition(work)
    assert total.pull().tolist() == [3 * 101 + 2 * 2 * column for column in range(5)]


def test_task_row_when_freed_in_dying_attempt_then_next_has_it(total, sc):
    """The first attempt's writes are not repeated, so its row must not be another's meanwhile."""
    from pyspark import TaskContext

    def work(rows):
        scratch = total.derive().fill(7)
        if TaskContext.get().attemptNumber() == 0:
            scratch.free()
            total.derive()  # with this call the master hears of rows whose handles are gone, too
            die("raise")
        yield scratch.pull().tolist()

    assert sc.parallelize([0], 1).mapPartitions(work).collect() == [[7] * 5]


def test_task_row_when_second_attempt_returns_it_then_lives_on(ps, total, sc, until):
    from pyspark import TaskContext

    def work(rows):
        created = total.derive().fill(7)
        if TaskContext.get().attemptNumber() == 0:
            die("raise")
        yield created

    (created,) = sc.parallelize([0], 1).mapPartitions(work).collect()
    sc.parallelize(range(2), 2).foreachPartition(lambda rows: total.derive())
    stage = max(
        stage for job in range(10_000) if (info := sc.statusTracker().getJobInfo(job)) for stage in info.stageIds
    )
    until(
        lambda: ps._coordinator.application.stages[-1]._master_informed.below > stage, "the stages are over", SETTLED_S
    )
    total.derive()
    assert created.pull().tolist() == [7] * 5


def test_task_rows_when_handles_are_gone_then_freed_at_stage_end(ps, total, sc, until):
    def work(rows):
        for _ in range(10):
            total.derive().fill(1)

    sc.parallelize(range(2), 2).foreachPartition(work)
    # The last handle of each worker is told of with that worker's next call for rows.
    until(lambda: used_rows(ps, total) <= 1 + 2, "rows taken back", SETTLED_S)


# -- what is remembered ----------------------------------------------------------------------------------------------


def test_ids_when_many_jobs_ran_then_only_driver_ids_are_kept(ps, total, sc, until):
    def scopes():
        return sum(ps._coordinator.fleet.control.status(address).applied_scopes for address in ps.servers)

    for _ in range(30):
        sc.parallelize(range(4), 4).foreachPartition(lambda rows: total.add(np.ones(5, np.int64)))
    # Of each shard of a vector here, the driver's session.
    shards = sum(len(ps._coordinator.fleet.control.status(address).matrices) for address in ps.servers)
    until(lambda: scopes() <= shards, "ids of finished stages dropped", SETTLED_S)
    assert total.pull().tolist() == [120] * 5


def test_a_task_when_its_stage_is_over_then_its_adds_are_refused(ps, total, sc):
    from pyspark import TaskContext

    from ps2.errors import StoppedError

    def work(rows):
        yield TaskContext.get().stageId()

    (stage,) = sc.parallelize([0], 1).mapPartitions(work).collect()
    for address in ps.servers:
        ps._coordinator.fleet.control.end_stages(address, ps._coordinator.application.stages[-1]._series, stage + 1, [])

    def zombie(rows):
        TaskContext.get()._stageId = stage
        total.add(np.ones(5, np.int64))

    with pytest.raises(Exception, match=f"stage {stage} of .* is over") as raised:
        sc.parallelize([0], 1).foreachPartition(zombie)
    assert StoppedError.__name__ in str(raised.value)
    assert total.pull().tolist() == [0] * 5
