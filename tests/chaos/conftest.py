"""Sparks, fleets and networks for scenarios; after each file, nothing of them may be left.

Whatever happens, the counting job must come to exactly what it would have come to undisturbed. A scenario also asserts
that what it is named after has happened.
"""

from __future__ import annotations

import os

import pytest
from faults import counting
from faults.counting import Job
from faults.proxy import Network
from faults.sparks import ENVIRONMENT, java, sparking, workers_on

from ps2 import DCV, PS2Context

os.environ.update(ENVIRONMENT)
os.environ.pop("SPARK_HOME", None)


@pytest.fixture(scope="session")
def jvm():
    """The Java process of all Sparks here."""
    with java():
        yield


@pytest.fixture(scope="session", autouse=True)
def counting_by_value():
    """Tasks cannot import the counting job: it is pickled with its code."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(counting)
    yield
    cloudpickle.unregister_pickle_by_value(counting)


@pytest.fixture(scope="module")
def spark(jvm, leaves_nothing):
    """Two slots in this process's Java, and four attempts a task."""
    with sparking("local[2,4]") as session:
        yield session


@pytest.fixture(scope="module")
def cluster(jvm, leaves_nothing):
    """Two executors of one slot each, in processes of their own, and speculation of what takes longer than others."""
    settings = {
        "spark.executor.memory": "1g",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.2",
        "spark.speculation.multiplier": "1.5",
        "spark.task.maxFailures": "6",
    }
    with workers_on("127.0.0.5", "127.0.0.6") as master, sparking(master, settings) as session:
        yield session


@pytest.fixture(scope="module")
def network(leaves_nothing):
    """The network between clients and servers of the fleet of this module: set its ``rules``."""
    return Network()


@pytest.fixture(scope="module")
def fleet(spark, network):
    """Two servers behind that network."""
    with network.between(), PS2Context.getOrCreate(spark, servers=2) as ps:
        yield ps


@pytest.fixture
def job(tmp_path):
    """``job(...)``: a counting job; arguments are fields of ``Job``."""
    return lambda **fields: Job(str(tmp_path), **fields)


@pytest.fixture
def counted():
    """``counted(spark, job)``: run a job on a new vector; return the distinct values that its columns come to."""

    def run(spark, job):
        total = DCV.dense(job.dim, dtype="int64")
        counting.count(spark.sparkContext, total, job)
        # Spark would try again, but whatever happens to servers and connections, no task fails of it.
        assert [attempt.failed for attempt in counting.attempts(job.folder) if attempt.failed] == []
        return counting.values_of(total)

    return run
