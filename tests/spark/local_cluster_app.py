"""A program with executors of its own: Figure 3's loop, then an executor that is killed in the middle of a job.

    python local_cluster_app.py FOLDER

It prints one line of JSON: what ``test_local_cluster.py`` asserts on.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from pyspark.sql import SparkSession

from ps2 import DCV, PS2Context
from ps2.coordinator.application import driver_secret

DIM, STEPS, PARTITIONS, LR = 30, 5, 4, 0.1
folder = sys.argv[1]
release, events = f"{folder}/release", Path(folder, "events")


def train(sc):
    """Return the weights that the fleet came to, and those of NumPy."""
    rng = np.random.default_rng(1)
    xs = rng.normal(size=(80, DIM))
    rows = [(float(x.sum() > 0), x) for x in xs]
    data = sc.parallelize(rows, PARTITIONS).cache()
    weight = DCV.dense(DIM, 4, "float64")
    velocity, square, gradient = weight.derive(), weight.derive(), weight.derive()

    def compute(part):
        w = weight.pull()
        gradient.add(sum((1 / (1 + np.exp(-(x @ w))) - y) * x for y, x in part))

    for step in range(1, STEPS + 1):
        gradient.zero()
        data.foreachPartition(compute)
        gradient.div(len(rows))
        weight.zip(velocity, square, gradient).apply("adam", lr=LR, beta1=0.9, beta2=0.999, eps=1e-8, step=step)
    return weight.pull()


def survive(sc):
    """Return the sum of a job's adds, one of whose executors is killed, and how many attempts the tasks needed."""
    total = DCV.dense(1, dtype="int64")
    attempts = sc.accumulator(0)

    def work(rdd_partition, rows):
        from pyspark import TaskContext

        total.add([10**rdd_partition])
        attempt = TaskContext.get().attemptNumber()
        Path(folder, f"added-{rdd_partition}-{attempt}").touch()
        while not os.path.exists(release):
            time.sleep(0.05)
        total.add([5 * 10**rdd_partition])
        attempts.add(1 + attempt)

    def kill():
        while not (Path(folder, "added-0-0").exists() and Path(folder, "added-1-0").exists()):
            time.sleep(0.05)
        victim = executors()[0]
        victim.kill()
        while victim.is_running() and victim.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.05)
        Path(release).touch()

    killer = threading.Thread(target=kill)
    killer.start()
    sc.parallelize(range(PARTITIONS), PARTITIONS).mapPartitionsWithIndex(
        lambda rdd_partition, rows: work(rdd_partition, rows) or []
    ).collect()
    killer.join()
    return int(total.sum()), attempts.value


def logs(sc, ps):
    """Return, by rank, where the live page says that the workers' executors keep their logs."""

    def find(clock):
        if clock > 1:
            return
        deadline_s = time.monotonic() + 30
        while True:
            shown = ps._coordinator.monitoring.watcher.snapshot().run.shown
            if all(worker.log for worker in shown) or time.monotonic() > deadline_s:
                result.extend(worker.log for worker in shown)
                return
            time.sleep(0.1)

    result = []
    ps.run(sc.parallelize(range(2), 2), lambda worker, rows: list(worker.clocks(2)), onClock=find)
    return result


def processes():
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def command_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""


def executors():
    return [process for process in processes() if "CoarseGrainedExecutorBackend" in command_of(process)]


def secrets_in_log(secrets):
    """Return the names of secrets that are in the event log, which is of all jobs."""
    text = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert text.count("SparkListenerJobEnd") > STEPS
    return [name for name, secret in secrets.items() if secret in text]


events.mkdir()
spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", events.as_uri())
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
said = {}
with PS2Context.getOrCreate(spark, servers=2) as ps:
    ps.waitForSlots(2, timeout=60)
    secrets = {"token": ps._coordinator.token, "driver": driver_secret()}
    said["weights"] = train(spark.sparkContext).tolist()
    said["token in argv"] = [command for command in map(command_of, processes()) if ps._coordinator.token in command]
    said["executors"] = len(executors())
    said["logs"] = logs(spark.sparkContext, ps)
    said["total"], said["attempts"] = survive(spark.sparkContext)
spark.stop()
said["in event log"] = secrets_in_log(secrets)
print(json.dumps(said))
