"""A program with a Spark of its own, another one after the other: a cluster of two hosts, four slots, no workers.

    SPARK_LOCAL_DIRS=FOLDER/local python own_sparks_app.py FOLDER

It prints one line of JSON: what ``test_own_sparks.py`` asserts on. On the cluster there is a speculative copy, a stage
that is retried, and then a second SparkContext. Spark runs no copy of a task on the host of the first, so the workers
have a loopback address each.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from pyspark import TaskContext
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from boosting import digest, trained
from faults.sparks import java, workers_on

from ps2 import DCV, PS2Context
from ps2.errors import PS2Error

folder = Path(sys.argv[1])
WAIT_S = 60.0


def until(tell):
    deadline_s = time.monotonic() + WAIT_S
    while not tell():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(0.05)


def speculate(sc):
    """Return the sums of a job one of whose tasks is slow, so that a copy of it runs; and which attempts ran."""
    total = DCV.dense(4, dtype="int64")

    def work(rdd_partition, rows):
        attempt = TaskContext.get().attemptNumber()
        (folder / f"copy-{rdd_partition}-{attempt}").touch()
        scratch = total.derive()
        scratch.push(np.full(4, 10**rdd_partition))
        total.add(scratch)
        if rdd_partition == 0 and attempt == 0:
            until((folder / "copy-0-1").exists)
        total.zip(scratch).mapPartitions(lambda t, s: t.__iadd__(s) is None)
        total.add([10**rdd_partition] * 4)

    sc.parallelize(range(4), 4).mapPartitionsWithIndex(lambda index, rows: work(index, rows) or []).collect()
    return total.pull().tolist(), sorted(path.name for path in folder.glob("copy-*"))


def retry_a_stage(sc):
    """Return the sums of a job whose shuffle files are lost, and the last attempt of each of its stages, from 0."""
    total = DCV.dense(4, dtype="int64")

    def count(level, rdd_partition, rows):
        rows = list(rows)
        scratch = total.derive().fill(10**level)
        total.add(scratch)
        if level == 1 and (folder / "lost").exists():
            (folder / "again").touch()
        # In each attempt until then, as Spark may run a copy of a slow one: one that succeeds would end the job.
        if level == 2 and rdd_partition == 0 and not (folder / "again").exists():
            (folder / "lost").touch()
            for path in (folder / "local").rglob("shuffle_*"):
                path.unlink(missing_ok=True)
            raise RuntimeError("the shuffle files are lost")
        return [(key + 1, value) for key, value in rows]

    def counted(level):
        return lambda rdd_partition, rows: count(level, rdd_partition, rows)

    rows = sc.parallelize([(key, 1) for key in range(8)], 2)
    for level in range(2):
        rows = rows.mapPartitionsWithIndex(counted(level)).partitionBy(2)
    rows.mapPartitionsWithIndex(counted(2)).collect()
    tracker = sc.statusTracker()
    stages = sorted(tracker.getJobInfo(max(tracker.getJobIdsForGroup())).stageIds)

    def last_attempts():
        return [tracker.getStageInfo(stage).currentAttemptId for stage in stages]

    until(lambda: any(last_attempts()))  # Spark may tell late
    return total.pull().tolist(), last_attempts()


def session(master):
    created = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.cores.max", "2")
        .config("spark.speculation", "true")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.interval", "100ms")
        .getOrCreate()
    )
    created.sparkContext.setLogLevel("OFF")
    return created


def count_once(sc):
    total = DCV.dense(4, dtype="int64")
    sc.parallelize(range(2), 2).foreachPartition(lambda rows: total.add(np.ones(4, np.int64)))
    return total.pull().tolist()


def run_twice_and_count_once(master):
    """Return what tasks that run twice have added, and what is left of them; and a SparkContext that came after."""
    said, spark = {}, session(master)
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        ps.waitForSlots(2, timeout=60)
        said["copied"], said["copies"] = speculate(spark.sparkContext)
        said["retried"], said["stages"] = retry_a_stage(spark.sparkContext)
        spark.stop()
        second = session("local[4]")
        PS2Context.getOrCreate(second)
        said["second"] = count_once(second.sparkContext)
        scopes = lambda: sum(ps._coordinator.fleet.control.status(address).applied_scopes for address in ps.servers)  # noqa: E731
        drivers = 2 * 4  # the driver's own, on each shard of the four vectors at most
        until(lambda: scopes() <= drivers)
        said["scopes"] = scopes()
    return said, second


def grow_trees(spark):
    """Return digests of trees that four workers grow on one and on three servers, and two workers on two."""
    digests = []
    for servers, workers in ((1, 4), (3, 4), (2, 2)):
        with PS2Context.getOrCreate(spark, servers=servers) as ps:
            digests.append(digest(trained(ps, spark, workers, sparse=servers == 3).model))
    return digests


def refusal(call):
    """Return how a call fails: the class of the error, and its message."""
    try:
        call()
    except PS2Error as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def be_without_workers(master):
    """Return how waiting for slots ends on a cluster without workers; and when Spark, and then PS2, was stopped."""
    said, spark = {}, session(master)
    ps = PS2Context.getOrCreate(spark, servers=1)
    said["no workers"] = refusal(lambda: ps.waitForSlots(1, timeout=1))
    spark.stop()
    said["spark stopped"] = refusal(lambda: ps.waitForSlots(1, timeout=3))
    ps.stop()
    said["context stopped"] = refusal(lambda: ps.waitForSlots(1, timeout=3))
    said["created on a stopped spark"] = refusal(lambda: PS2Context.getOrCreate(spark, servers=1))
    return said


with java():
    with workers_on("127.0.0.1", "127.0.0.2") as master:
        said, spark = run_twice_and_count_once(master)
    said["trees"] = grow_trees(spark)
    spark.stop()
    with workers_on(master="127.0.0.1") as master:
        said |= be_without_workers(master)
print(json.dumps(said))
