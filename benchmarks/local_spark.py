"""Spark for the benchmarks: local, with this Python, and with errors only in its log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyspark

from ps2.algorithms.spark_session import LOG_SETTINGS


def start_spark(master: str, name: str, settings: Mapping[str, str]) -> Any:
    """Return a SparkSession on ``local[...]`` with the given settings."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    common = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
    }
    builder = pyspark.sql.SparkSession.builder.master(master).appName(name)
    for key, value in {**common, **settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def local_spark(name: str, slots: int, memory: str, settings: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Yield a SparkSession with so many task slots.

    Args:
        name: of the module.
        memory: of its JVM, as Spark writes it.
        settings: others of it.
    """
    of_memory = {"spark.driver.memory": memory, "spark.driver.maxResultSize": "0"}
    spark = start_spark(f"local[{slots}]", f"benchmarks.{name}", {**of_memory, **(settings or {})})
    try:
        yield spark
    finally:
        spark.stop()
