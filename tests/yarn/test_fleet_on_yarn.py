"""Training and fleet are two YARN applications; data and checkpoints are on HDFS."""

from __future__ import annotations

import re

import fsspec
import numpy as np
import pytest
from faults.processes import is_dead, kill

from ps2 import DCV, PS2Conf, PS2Context
from ps2.coordinator.launchers.containers import spark_app

MEMORY = 64 << 20
DIM = 1000
WORKERS = 2
CLOCKS = 30
# YARN takes its time to end the containers of an application that has lost its driver or its master.
END_S = 60
# The first test starts the cluster.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def ps(spark, cluster):
    """Three servers in containers, and checkpoints on HDFS."""
    with PS2Context.getOrCreate(
        spark,
        3,
        launcher="spark",
        memoryLimit=MEMORY,
        checkpointDir=f"{cluster.webhdfs}/checkpoints",
        conf=PS2Conf(startTimeoutS=120),
    ) as created:
        yield created


def containers_of(ps):
    """The names of the servers' containers."""
    return [server.status.container for server in ps.status().servers]


def fleet_of(ps):
    """The application's id, as its containers are named after it."""
    return "application_" + re.search(r"container_(?:e\d+_)?(\d+_\d+)_", containers_of(ps)[0])[1]


@pytest.fixture
def executors(ps, processes):
    """``executors()``: the pid of each executor (a JVM) of the fleet, and all pids below it: the server's, too."""

    def found():
        hits = processes("CoarseGrainedExecutorBackend", fleet_of(ps), "org.apache.spark")
        below = {one.pid: [child.pid for child in one.children(recursive=True)] for one in hits if one.name() == "java"}
        assert len(below) == 3
        assert all(below.values())
        return below

    return found


def counted_while_killing(ps, sc, until, choose):
    """Let two workers add 1 everywhere in each clock; in one of them kill a process, and wait for those with it.

    Args:
        choose: returns the pid of the process to kill, and those of servers and others that are to end with it.
    """
    weight, killed = DCV.dense(DIM, dtype="int64"), []

    def work(worker, rows):
        assert sum(rows) > 0
        for _ in worker.clocks(CLOCKS):
            weight.add([1] * DIM)

    def on_clock(t):
        if t == 5:
            ps.checkpoint()
        if t == 10 and not killed:
            victim, others = choose()
            killed.append(victim)
            kill(victim)
            until(lambda: all(map(is_dead, others)), "all that ran in its containers has ended", END_S)

    ps.run(sc.parallelize(range(1, 100), WORKERS), work, workers=WORKERS, onClock=on_clock)
    assert killed
    np.testing.assert_array_equal(weight.pull(), np.full(DIM, WORKERS * CLOCKS))


def test_servers_when_fleet_runs_then_status_names_container(ps):
    assert len(set(containers_of(ps))) == 3
    assert all(re.fullmatch(r"container_\S+", container) for container in containers_of(ps))
    assert all(re.fullmatch(r"\S+:\d+", server.status.node) for server in ps.status().servers)


def test_token_when_fleet_runs_then_is_in_no_argv_and_on_no_disk(ps, cluster, processes):
    assert not processes(ps._coordinator.token)
    files = [path for path in cluster.logs.rglob("*") if path.is_file() and path.stat().st_size < 1 << 20]
    assert len(files) > 10
    assert not [path for path in files if ps._coordinator.token.encode() in path.read_bytes()]


def test_training_when_data_is_on_hdfs_then_save_is_exact(ps, spark, cluster):
    path = f"{cluster.hdfs}/data/numbers"
    spark.range(1, 1001).write.mode("overwrite").parquet(path)
    total = DCV.dense(DIM, dtype="int64")
    spark.read.parquet(path).rdd.map(lambda row: row.id - 1).foreachPartition(
        lambda ids: total.add([1] * len(found := list(ids)), found)
    )
    np.testing.assert_array_equal(total.pull(), np.ones(DIM))
    saved = f"{cluster.webhdfs}/models/total"
    total.save(saved)
    np.testing.assert_array_equal(DCV.load(saved).pull(), np.ones(DIM))
    assert fsspec.core.url_to_fs(saved)[0].exists("/models/total/manifest.json")


def test_run_when_server_container_is_killed_then_stays_exact(ps, sc, executors, until):
    before = containers_of(ps)
    counted_while_killing(ps, sc, until, lambda: next(iter(executors().items())))
    assert ps.recoveries[-1].source == "checkpoint"
    assert ps.recoveries[-1].rolledBack
    assert len(set(before) & set(containers_of(ps))) == 2


@pytest.mark.parametrize("words", [("python", spark_app.__name__), ("java", "ExecutorLauncher")])
def test_run_when_driver_or_master_is_killed_then_stays_exact(ps, sc, processes, executors, until, words):
    program, message = words
    before = len(ps.recoveries)

    def choose():
        found = [process for process in processes(message) if process.name().startswith(program)]
        assert found, f"no process to kill: {words}"
        # Those of the training are older.
        youngest = max(found, key=lambda process: process.create_time())
        return youngest.pid, [pid for executor, below in executors().items() for pid in (executor, *below)]

    counted_while_killing(ps, sc, until, choose)
    assert len(ps.recoveries) > before
    assert ps.recoveries[-1].rolledBack


def test_stop_when_servers_are_in_containers_then_none_is_left(ps, processes, executors, until):
    application, below = fleet_of(ps), [pid for pids in executors().values() for pid in pids]
    ps.stop()
    until(lambda: not processes(application) and all(map(is_dead, below)), "its containers have ended", END_S)
