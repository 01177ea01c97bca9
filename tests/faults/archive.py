"""Start a Spark that does a little of everything, to keep the classes that Java loads: see ``sparks.ARCHIVE``."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.ml.linalg import Vectors

sys.path.insert(0, str(Path(__file__).parents[1]))
from faults.sparks import ARCHIVE, ENVIRONMENT, java, sparking

if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    os.environ["SPARK_SUBMIT_OPTS"] += f" -XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:disable"
    with java(), sparking("local[2]") as spark, tempfile.TemporaryDirectory() as folder:
        spark.sparkContext.parallelize(range(4), 2).map(lambda x: x + 1).collect()
        table = spark.createDataFrame([(Vectors.dense([1.0, 2.0]), float(i)) for i in range(4)], ["features", "label"])
        table.write.parquet(f"{folder}/table")
        table = spark.read.parquet(f"{folder}/table")
        table.groupBy("label").count().toPandas()
        table.select("label").mapInArrow(lambda batches: batches, "label double").collect()
