"""One YARN and HDFS cluster, and one training on it, for all tests here: ``make yarn-test`` runs them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest
from faults.sparks import ENVIRONMENT, sparking

from tests.yarn.minicluster import JARS, running

REPO = Path(__file__).resolve().parents[2]
# Of containers: what small machines have.
SMALL = {
    # Spark's jars are on every node, as they are on any cluster that runs Spark often.
    "spark.yarn.jars": f"local:{JARS}/*",
    "spark.executorEnv.PYTHONPATH": str(REPO),
    "spark.yarn.am.memory": "512m",
    "spark.executor.memory": "512m",
}

os.environ.update(ENVIRONMENT)
os.environ.pop("SPARK_HOME", None)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Three nodes, and the queues default and small."""
    jars = (
        os.environ.get("PS2_HADOOP_JARS")
        or subprocess.run([REPO / "scripts" / "hadoop-jars"], check=True, capture_output=True, text=True).stdout.strip()
    )
    with running(tmp_path_factory.mktemp("cluster"), Path(jars)) as started:
        os.environ["HADOOP_CONF_DIR"] = str(started.conf)
        yield started


@pytest.fixture(scope="session")
def spark(cluster):
    """The training: an application with two executors."""
    from pyspark import SparkContext

    with sparking("yarn", SMALL | {"spark.executor.instances": "2"}) as session:
        yield session
    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(20)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def sc(spark):
    return spark.sparkContext


@pytest.fixture(scope="session")
def processes():
    """``processes(*words)``: those whose command line has all these words; containers are nobody's children."""

    def found(*words):
        hits = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if all(word in line for word in words):
                hits.append(process)
        return hits

    return found
