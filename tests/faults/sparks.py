"""Spark sessions that end as if they had never been: each scenario sets Spark up as it needs it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Java that starts fast rather than runs fast for hours: half the processor time of a Spark that lives for a minute.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Spark's classes as Java keeps them once it has loaded them (`make test` makes it): half of what is left.
ARCHIVE = Path(sys.prefix, "spark.jsa")
if ARCHIVE.exists():
    JAVA_OPTIONS += f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"
DAEMON = {"spark.python.daemon.module": "ps2.run.daemon"}
# A fifth of Java's processor time, for tables of a few rows: Spark SQL compiles no expressions, does not check its
# own rules, and describes plans in a line. Examples run with its defaults.
QUICK_SQL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.ui.explainMode": "simple",
}


def submit_options(settings: Mapping[str, str]) -> str:
    """Return SPARK_SUBMIT_OPTS: what Java gets that runs a driver with these settings of Spark."""
    options = [JAVA_OPTIONS, f"'-Dspark.executor.extraJavaOptions={JAVA_OPTIONS}'"]
    return " ".join([*options, *(f"-D{name}={value}" for name, value in settings.items())])


ENVIRONMENT = {
    # The Spark of this Python, and nothing that listens to other hosts.
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    # Of drivers and, as a setting, their executors; of what starts them; of masters and workers.
    "SPARK_SUBMIT_OPTS": submit_options({**DAEMON, **QUICK_SQL}),
    "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
    "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
}
JVM_TIMEOUT_S = 120.0
WORKER_MB = 1024


@contextmanager
def sparking(master: str, settings: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Start a session of its own, in the Java process of this one; end it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    assert SparkContext._active_spark_context is None, (
        "another SparkSession runs in this process: tests/chaos starts its own, and runs before tests/spark"
    )
    builder = (
        SparkSession.builder.master(master)
        .appName("chaos")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
        # Settings are kept by the builder for the next session.
        SparkSession.builder._options.clear()


@contextmanager
def workers_on(*hosts: str, cores: int = 1, memory_mb: int = WORKER_MB, master: str | None = None) -> Iterator[str]:
    """Start a standalone cluster in the Java process of this one, a worker on each host; yield its master.

    The master is on the first host, or on another.

    Its executors are processes of their own, as in local-cluster mode. But there all are on one host, and Spark starts
    a second attempt of a slow task only on another.
    """
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    deploy, none = jvm.org.apache.spark.deploy, jvm.scala.Option.empty()
    settings = jvm.org.apache.spark.SparkConf()
    settings.set("spark.master.rest.enabled", "false")
    first = master or hosts[0]
    started = [deploy.master.Master.startRpcEnvAndEndpoint(first, 0, 0, settings)._1()]
    try:
        url = f"spark://{first}:{started[0].address().port()}"
        urls = SparkContext._gateway.new_array(jvm.java.lang.String, 1)
        urls[0] = url
        with tempfile.TemporaryDirectory(prefix="spark-workers-") as folder:
            for host in hosts:
                started.append(
                    deploy.worker.Worker.startRpcEnvAndEndpoint(
                        host, 0, 0, cores, memory_mb, urls, str(Path(folder, host)), none, settings, none
                    )
                )
            yield url
    finally:
        for environment in reversed(started):
            environment.shutdown()
            environment.awaitTermination()


@contextmanager
def java() -> Iterator[None]:
    """Start the Java process that sessions of this process share, and end it if nobody has."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    yield
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(JVM_TIMEOUT_S)
        SparkContext._gateway = SparkContext._jvm = None
