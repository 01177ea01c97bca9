"""LIBSVM files with labels +1 and -1 for the benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from ps2.data.rows import Rows


def read(spark: Any, path: Path, features: int | None = None) -> Any:
    """Return a file as a DataFrame of label (0 or 1) and features (pyspark.ml vectors)."""
    reader = spark.read.format("libsvm")
    if features is not None:
        reader = reader.option("numFeatures", str(features))
    frame = reader.load(path.resolve().as_uri())
    return frame.withColumn("label", (F.col("label") > 0).cast("double"))


def collected(frame: Any) -> Rows:
    """Return the rows of such a DataFrame in the driver."""
    return Rows.fromBatches(frame.select("label", F.unwrap_udt("features").alias("features")).toArrow().to_batches())
