"""Rows of FTSGD's experiments, as a DataFrame and in Spark's JVM, and MLlib's SGD on them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

# Task slots, and partitions of two distributions: more than cores, as a gate needs workers.
SLOTS = 8
FEW_FEATURES, FEW_ROWS, NOISE = 10, 8_000, 0.1
# Features of the second distribution are so many times as large, and its weights are the first one's, negated.
LARGER = 2.0


@dataclass(frozen=True)
class Run:
    """A training of MLlib's.

    Attributes:
        seconds: of its iterations, on rows that the JVM holds.
        w: weights.
    """

    seconds: float
    w: Any


@dataclass(frozen=True, eq=False)
class Points:
    """Labelled rows.

    Attributes:
        frame: cached DataFrame of label and features.
        java: cached RDD of MLlib's LabeledPoint in the JVM.
        python: the same, pickled, for Python.
    """

    spark: Any
    frame: Any
    java: Any
    python: Any
    rows: int
    partitions: int

    def mllib(self, iterations: int, rate: float) -> Run:
        """Run MLlib's SGD in the JVM: all rows in each iteration, no penalty, no intercept, no early end."""
        solver = self.spark._jvm.org.apache.spark.mllib.regression.LinearRegressionWithSGD(rate, iterations, 0.0, 1.0)
        solver.optimizer().setConvergenceTol(0.0)
        began_s = time.monotonic()
        model = solver.run(self.java)
        seconds = time.monotonic() - began_s
        return Run(seconds, np.array(list(model.weights().toArray())))

    def mllib_call_s(self, iterations: int, rate: float) -> float:
        """Return the seconds of pyspark.mllib's call, which brings the rows from Python to the JVM."""
        from pyspark.mllib.regression import LinearRegressionWithSGD

        began_s = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            LinearRegressionWithSGD.train(self.python, iterations, rate, convergenceTol=0.0)
        return time.monotonic() - began_s


@contextmanager
def linear_points(spark: Any, rows: int, features: int, noise: float, partitions: int) -> Iterator[Points]:
    """Make rows by MLlib's ``LinearDataGenerator``: features uniform in [-1, 1], labels with Gaussian noise."""
    from pyspark.mllib.common import _java2py

    generator = spark._jvm.org.apache.spark.mllib.util.LinearDataGenerator
    java = generator.generateLinearRDD(spark._jsc.sc(), rows, features, noise, partitions, 0.0)
    with _held(spark, java, _java2py(spark.sparkContext, java.toJavaRDD())) as points:
        yield points


@contextmanager
def mixed_points(spark: Any, ratio: float) -> Iterator[Points]:
    """Make rows of two distributions, those of the second one last, in partitions of equal sizes; seeded."""
    from pyspark.mllib.common import _py2java
    from pyspark.mllib.regression import LabeledPoint

    rng = np.random.default_rng(5)
    w = rng.uniform(-0.5, 0.5, FEW_FEATURES)
    x = rng.uniform(-1.0, 1.0, (FEW_ROWS, FEW_FEATURES))
    of_second = np.arange(FEW_ROWS) >= round(FEW_ROWS * ratio / (1.0 + ratio))
    x[of_second] *= LARGER
    y = np.where(of_second, -1.0, 1.0) * (x @ w) + NOISE * rng.standard_normal(FEW_ROWS)
    parts = np.array_split(np.arange(FEW_ROWS), SLOTS)
    shards = spark.sparkContext.parallelize([(x[part], y[part]) for part in parts], SLOTS)
    python = shards.flatMap(lambda shard: map(LabeledPoint, shard[1], shard[0]))
    with _held(spark, _py2java(spark.sparkContext, python).rdd(), python) as points:
        yield points


@contextmanager
def _held(spark: Any, java: Any, python: Any) -> Iterator[Points]:
    java, python = java.cache(), python.cache()
    rows = java.count()
    python.count()
    frame = spark.createDataFrame(
        python.map(lambda point: (point.label, point.features.asML())), ["label", "features"]
    ).persist()
    frame.count()
    try:
        yield Points(spark, frame, java, python, rows, python.getNumPartitions())
    finally:
        frame.unpersist(blocking=True)
        python.unpersist(blocking=True)
        java.unpersist(True)
