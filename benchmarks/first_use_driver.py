"""One first use: a fresh driver that starts Spark, fits a small LogisticRegression, and fits it once more.

Prints a JSON object: the seconds of each phase. Imports are part of what is measured, so this file has few.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


class Phases:
    """Seconds by phase, from a moment (``time.monotonic``) on."""

    def __init__(self, began_s: float) -> None:
        self._last_s = began_s
        self.seconds: dict[str, float] = {}

    def end(self, phase: str) -> None:
        before_s, self._last_s = self._last_s, time.monotonic()
        self.seconds[phase] = self._last_s - before_s


def session(log_settings: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("benchmarks.first_use")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log_settings}",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    """Arguments: "ours" or "pyspark.ml", the moment of the start, a file of LIBSVM, its features, Spark's logging."""
    side, began, path, features, log_settings = sys.argv[1:]
    phases = Phases(float(began))
    phases.end("python")
    spark = session(log_settings)
    phases.end("session")
    frame = spark.read.format("libsvm").option("numFeatures", features).load(path)
    phases.end("read")
    if side == "ours":
        from ps2 import PS2Context
        from ps2.algorithms.classification import LogisticRegression

        phases.end("imports")
        ps = PS2Context.getOrCreate(spark)
        phases.end("context")
    else:
        from pyspark.ml.classification import LogisticRegression  # type: ignore[assignment]

        ps = None
        phases.end("imports")
        phases.end("context")
    estimator: Any = LogisticRegression()
    estimator.fit(frame)
    phases.end("first fit")
    estimator.fit(frame)
    phases.end("second fit")
    print(json.dumps(phases.seconds))
    if ps is not None:
        ps.stop()
    spark.stop()


if __name__ == "__main__":
    main()
