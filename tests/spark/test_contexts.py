"""Contexts that follow each other in one Spark session, whose Python workers live on."""

from __future__ import annotations

import pickle

import numpy as np
import psutil
import pytest

from ps2 import DCV, PS2Context
from ps2.errors import ConfigError, StoppedError


@pytest.fixture(scope="module")
def two_contexts(spark):
    """A vector of a stopped context, a job of its, and the context that runs now."""
    with PS2Context.getOrCreate(spark, servers=1):
        old = DCV.dense(3, dtype="float64").push([1.0, 2.0, 3.0])
        job = spark.sparkContext.parallelize([0], 1).map(lambda _: old.sum())
        assert job.collect() == [6.0]
    with PS2Context.getOrCreate(spark, servers=1) as new:
        yield old, job, new


def test_second_context_when_first_is_stopped_then_vectors_work(two_contexts, sc):
    fresh = DCV.dense(3, dtype="float64").push([1.0, 1.0, 1.0])
    sc.parallelize(range(4), 2).foreach(lambda _: fresh.add(np.ones(3)))
    assert fresh.pull().tolist() == [5.0, 5.0, 5.0]


def test_stopped_context_handle_when_used_in_driver_then_raises(two_contexts):
    with pytest.raises(StoppedError, match="was stopped"):
        two_contexts[0].pull()


def test_stopped_context_handle_when_in_closure_then_says_why(two_contexts, sc):
    old = two_contexts[0]
    with pytest.raises(pickle.PicklingError, match=r"StoppedError.* was stopped"):
        sc.parallelize([0], 1).map(lambda _: old.sum()).collect()


def test_stopped_context_job_when_rerun_then_tasks_raise_stopped(two_contexts):
    from ps2.run.spark.session import plain_errors

    with pytest.raises(StoppedError, match="was stopped"), plain_errors():
        two_contexts[1].collect()


def test_get_or_create_when_one_runs_then_it_is_the_same(two_contexts, spark):
    assert PS2Context.getOrCreate(spark) is two_contexts[2]


def test_get_or_create_when_other_servers_run_then_raises(two_contexts, spark):
    with pytest.raises(ConfigError, match="stop"):
        PS2Context.getOrCreate(spark, servers=2)


def test_get_or_create_when_called_in_task_then_points_to_driver(two_contexts, sc):
    def attempt(_):
        try:
            PS2Context.getOrCreate(servers=1)
        except ValueError as error:
            return str(error)

    (message,) = sc.parallelize([0], 1).map(attempt).collect()
    assert "belongs to the driver" in message


def test_contexts_when_many_follow_then_one_daemon_serves_all(spark, sc, two_contexts):
    """Spark keeps a daemon of Python workers for each environment of tasks, 100 MB each, until the session ends."""
    from pyspark import SparkContext

    def use():
        u = DCV.dense(3, dtype="float64").fill(1.0)
        sc.parallelize([0], 1).foreach(lambda _: u.add(np.ones(3)))
        (created,) = sc.parallelize([0], 1).map(lambda _: DCV.dense(4, dtype="float64").fill(1.0)).collect()
        assert (u.sum(), created.sum()) == (6.0, 4.0)

    def daemons():
        jvm = SparkContext._gateway.proc.pid
        everything = psutil.process_iter(["ppid", "cmdline"])  # a process that has just ended has no cmdline
        below = [one for one in everything if one.info["ppid"] == jvm]
        return {one.pid for one in below if any(text.endswith(".daemon") for text in one.info["cmdline"] or ())}

    two_contexts[2].stop()
    before = daemons()
    for _ in range(3):
        with PS2Context.getOrCreate(spark, servers=1):
            use()
    assert daemons() == before


def test_vector_when_made_in_task_without_context_then_stopped(spark, sc, two_contexts):
    from ps2.run.spark.session import plain_errors

    two_contexts[2].stop()
    with pytest.raises(StoppedError, match="no PS2Context"), plain_errors():
        sc.parallelize([0], 1).map(lambda _: DCV.dense(3)).collect()
