"""A program with a cluster of two hosts: a speculative copy, a stage that is retried, a second SparkContext.

    python exactly_once_app.py FOLDER PORT

It prints one line of JSON: what ``test_cluster_retries.py`` asserts on. Spark runs no copy of a task on the host of the
first, so the workers have a loopback address each.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyspark
from pyspark import TaskContext
from pyspark.sql import SparkSession

from ps2 import DCV, PS2Context

folder, port = Path(sys.argv[1]), int(sys.argv[2])
WAIT_S = 60.0
HOME = Path(pyspark.__file__).parent


def until(tell):
    deadline_s = time.monotonic() + WAIT_S
    while not tell():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(0.05)


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def cluster():
    """Run a master, at ``port``, and two workers; yield the master's address."""
    deploy = "org.apache.spark.deploy"
    master = f"spark://127.0.0.1:{port}"
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for number in (1, 2):
        work = ["--work-dir", str(folder / f"work{number}"), "--cores", "1", "--memory", "1g", "--webui-port", "0"]
        commands.append([f"{deploy}.worker.Worker", "--host", f"127.0.0.{number}", *work, master])
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(folder / "local"), "SPARK_HOME": str(HOME)}
    environment.pop("SPARK_LOCAL_IP", None)
    with contextlib.ExitStack() as ending:
        for command in commands:
            process = subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), *command],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            ending.callback(process.wait)
            ending.callback(process.kill)
            if command is commands[0]:
                until(lambda: listens(port))
        yield master


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
    made = (
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
    made.sparkContext.setLogLevel("OFF")
    return made


def count_once(sc):
    total = DCV.dense(4, dtype="int64")
    sc.parallelize(range(2), 2).foreachPartition(lambda rows: total.add(np.ones(4, np.int64)))
    return total.pull().tolist()


said = {}
with cluster() as master:
    spark = session(master)
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        ps.waitForSlots(2, timeout=60)
        said["copied"], said["copies"] = speculate(spark.sparkContext)
        said["retried"], said["stages"] = retry_a_stage(spark.sparkContext)
        spark.stop()
        second = session("local[2]")
        PS2Context.getOrCreate(second)
        said["second"] = count_once(second.sparkContext)
        scopes = lambda: sum(ps._coordinator.fleet.control.status(address).applied_scopes for address in ps.servers)  # noqa: E731
        drivers = 2 * 4  # the driver's own, on each shard of the four vectors at most
        until(lambda: scopes() <= drivers)
        said["scopes"] = scopes()
        second.stop()
print(json.dumps(said))
