"""Training and fleet are two YARN applications; data and checkpoints are on HDFS."""

from __future__ import annotations

import re
import time

import fsspec
import numpy as np
import pytest

from ps2 import DCV, PS2Conf, PS2Context

MEMORY = 64 << 20
DIM = 1000
WORKERS = 2
CLOCKS = 30
pytestmark = pytest.mark.nightly


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
    ) as made:
        yield made


def fleet_of(ps):
    """The application's id, as its containers are named after it."""
    place = ps._coordinator.fleet.launcher.locations()[0]
    return "application_" + re.search(r"container_(?:e\d+_)?(\d+_\d+)_", place)[1]


def counted(ps, sc, weight, on_clock, clock_s=0.0):
    """Let two workers add 1 everywhere in each of the clocks, which take so long at least."""

    def work(worker, rows):
        assert sum(rows) > 0
        for _ in worker.clocks(CLOCKS):
            weight.add([1] * DIM)
            time.sleep(clock_s)

    return ps.run(sc.parallelize(range(1, 100), WORKERS), work, workers=WORKERS, onClock=on_clock)


def test_servers_when_fleet_runs_then_status_names_container(ps):
    places = ps._coordinator.fleet.launcher.locations()
    assert len(set(places.values())) == 3
    assert all(re.fullmatch(r"container container_\S+ on \S+:\d+", place) for place in places.values())


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


def test_run_when_server_container_is_killed_then_stays_exact(ps, sc, processes):
    weight = DCV.dense(DIM, dtype="int64")
    before = ps._coordinator.fleet.launcher.locations()
    killed = []

    def on_clock(t):
        if t == 5:
            ps.checkpoint()
        if t == 10 and not killed:
            executors = processes("CoarseGrainedExecutorBackend", fleet_of(ps), "org.apache.spark")
            killed.append(next(process for process in executors if process.name() == "java"))
            killed[0].kill()

    counted(ps, sc, weight, on_clock)
    assert killed
    np.testing.assert_array_equal(weight.pull(), np.full(DIM, WORKERS * CLOCKS))
    assert ps.recoveries[-1].source == "checkpoint"
    assert ps.recoveries[-1].rolledBack
    assert len(set(before.values()) & set(ps._coordinator.fleet.launcher.locations().values())) == 2


@pytest.mark.parametrize("words", [("python", "launchers.spark_app"), ("java", "ExecutorLauncher")])
def test_run_when_driver_or_master_is_killed_then_stays_exact(ps, sc, processes, words):
    weight = DCV.dense(DIM, dtype="int64")
    program, *said = words
    killed, before = [], len(ps.recoveries)

    def on_clock(t):
        if t == 5:
            ps.checkpoint()
        if t == 10 and not killed:
            found = [process for process in processes(*said) if process.name().startswith(program)]
            # Those of the training are older.
            killed.append(max(found, key=lambda process: process.create_time()))
            killed[0].kill()

    # The containers' end is noticed a moment later, and is to be within the run.
    counted(ps, sc, weight, on_clock, clock_s=0.4)
    assert killed
    np.testing.assert_array_equal(weight.pull(), np.full(DIM, WORKERS * CLOCKS))
    assert len(ps.recoveries) > before
    assert ps.recoveries[-1].rolledBack


def test_stop_when_servers_are_in_containers_then_none_is_left(ps, processes, until):
    application = fleet_of(ps)
    assert processes(application)
    ps.stop()
    until(lambda: not processes(application), "its containers have ended", 30)
    assert not processes("ps2.cli.main", "server")
