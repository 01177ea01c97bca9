"""Spark for the benchmarks: local, with this Python, and with errors only in its log."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import pyspark

from ps2.algorithms.spark import LOG_SETTINGS


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
