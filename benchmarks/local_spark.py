"""Spark for the benchmarks: local, with this Python, with errors only in its log, and with servers beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyspark

from ps2 import PS2Context
from ps2.run.spark.session import LOG_SETTINGS

# Python workers are forked from a process that has imported what they need.
DAEMON = {"spark.python.daemon.module": "ps2.run.daemon"}
SERVERS = WORKERS = 2


def start_spark(master: str, name: str, settings: Mapping[str, str] | None = None) -> Any:
    """Return a new SparkSession with the given settings."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    common = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.maxResultSize": "0",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
    }
    builder = pyspark.sql.SparkSession.builder.master(master).appName(f"benchmarks.{name}")
    for key, value in {**common, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def spark_and_servers(
    name: str,
    memory: str = "2g",
    workers: int = WORKERS,
    settings: Mapping[str, str] | None = None,
    retries: int = 1,
    **fleet: Any,
) -> Iterator[tuple[Any, PS2Context]]:
    """Start Spark with so many task slots, and two servers, or what ``fleet`` says; yield both.

    Args:
        memory: of Spark's JVM, as Spark writes it.
        retries: attempts of a task.
        fleet: arguments of ``PS2Context.getOrCreate``.
    """
    master = f"local[{workers},{retries}]"
    spark = start_spark(
        master, name, {"spark.driver.memory": memory, "spark.sql.shuffle.partitions": str(workers), **(settings or {})}
    )
    try:
        with PS2Context.getOrCreate(spark, **(fleet or {"servers": SERVERS})) as ps:
            yield spark, ps
    finally:
        spark.stop()


def cached(frame: Any, partitions: int | None = WORKERS) -> Any:
    """Return a DataFrame in Spark's cache, in so many partitions; None: as many as it has."""
    frame = (frame if partitions is None else frame.repartition(partitions)).persist()
    frame.count()
    return frame
