"""One first use: a fresh driver that starts Spark, fits a small LogisticRegression, and fits it once more.

Prints a JSON object: the seconds of each phase. Imports are part of what is measured, so this file has few.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


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
    seconds: dict[str, float] = {}
    last_s = float(began)

    def end(phase: str) -> None:
        nonlocal last_s
        seconds[phase], last_s = time.monotonic() - last_s, time.monotonic()

    end("python")
    spark = session(log_settings)
    end("session")
    frame = spark.read.format("libsvm").option("numFeatures", features).load(path)
    end("read")
    if side == "ours":
        from ps2 import PS2Context
        from ps2.algorithms.classification import LogisticRegression

        end("imports")
        ps = PS2Context.getOrCreate(spark)
        end("context")
    else:
        from pyspark.ml.classification import LogisticRegression  # type: ignore[assignment]

        ps = None
        end("imports")
        end("context")
    estimator: Any = LogisticRegression()
    estimator.fit(frame)
    end("first fit")
    estimator.fit(frame)
    end("second fit")
    print(json.dumps(seconds))
    if ps is not None:
        ps.stop()
    spark.stop()


if __name__ == "__main__":
    main()
