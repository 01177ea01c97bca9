"""One fresh driver in an environment that has ps2 alone: Spark's start, and two fits of one estimator.

    python bare_driver.py ESTIMATOR

Prints a JSON object: the seconds of each phase. Imports are part of what is measured, so this file has few.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

ROWS, FEATURES = 5_000, 10


def start() -> Any:
    """Start Spark, and run a job that starts its Python workers."""
    from pyspark.sql import SparkSession

    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.host": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]").appName("bare")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.parallelize(range(2), 2).map(lambda number: number).count()
    return spark


def labelled(spark: Any) -> Any:
    """Return rows of ten numbers and a label."""
    numbers = ", ".join(f"rand({seed})" for seed in range(FEATURES))
    return _vectors(spark.range(ROWS).selectExpr("cast(id % 2 as double) label", f"array({numbers}) numbers"))


def documents(spark: Any) -> Any:
    """Return vectors of counts of words."""
    numbers = ", ".join(f"floor(5 * rand({seed}))" for seed in range(FEATURES))
    return _vectors(spark.range(ROWS).selectExpr(f"cast(array({numbers}) as array<double>) numbers"))


def _vectors(rows: Any) -> Any:
    from pyspark.ml.functions import array_to_vector

    return rows.withColumn("features", array_to_vector(rows["numbers"])).drop("numbers")


def sentences(spark: Any) -> Any:
    """Return sentences of ten words."""
    words = ", ".join(f"cast(floor(200 * rand({seed})) as string)" for seed in range(FEATURES))
    return spark.range(ROWS).selectExpr(f"array({words}) words")


def ratings(spark: Any) -> Any:
    """Return ratings of 200 items by 500 users."""
    return spark.range(ROWS).selectExpr(
        "cast(id % 500 as int) user", "cast(floor(200 * rand(1)) as int) item", "cast(1 + 4 * rand(2) as float) rating"
    )


# Module below ps2.algorithms, params and rows of each estimator.
ESTIMATORS: dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]] = {
    "GBTClassifier": ("classification", {}, labelled),
    "RandomForestClassifier": ("classification", {}, labelled),
    "LogisticRegression": ("classification", {}, labelled),
    "LDA": ("clustering", {"k": 5}, documents),
    "Word2Vec": ("feature", {"inputCol": "words"}, sentences),
    "KMeans": ("clustering", {"k": 5}, labelled),
    "MatrixFactorization": ("recommendation", {}, ratings),
}


def main(name: str) -> None:
    module, params, make = ESTIMATORS[name]
    seconds: dict[str, float] = {}
    last_s = time.monotonic()

    def end(phase: str) -> None:
        nonlocal last_s
        seconds[phase], last_s = time.monotonic() - last_s, time.monotonic()

    spark = start()
    end("Spark's start")
    rows = make(spark).repartition(2).cache()
    rows.count()
    end("rows")
    estimator = getattr(__import__(f"ps2.algorithms.{module}", fromlist=[name]), name)(**params)
    end("imports")
    estimator.fit(rows)
    end("first fit")
    estimator.fit(rows)
    end("second fit")
    print(json.dumps(seconds))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
