"""What the parts of ``benchmarks.metric`` share; each runs in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse as sp

from benchmarks.local_spark import local_spark
from ps2 import PS2Context
from ps2.algorithms.metric.objective import objective
from ps2.algorithms.metric.pairs import drawn_pairs
from ps2.data.rows import Rows

SERVERS, WORKERS = 2, 2
NEIGHBOURS = 3
# Pairs for each row, by which all are judged.
JUDGED = 20


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        rounds: turns that the medians are of.
        memory: of Spark's JVM, as Spark writes it.
    """

    rounds: int
    memory: str


@dataclass(frozen=True, eq=False)
class Labelled:
    """Rows with classes.

    Attributes:
        x: an array, or scipy CSR, shape (n, features).
        y: classes, shape (n,).
    """

    x: Any
    y: Any

    def halves(self, seed: int) -> tuple[Labelled, Labelled]:
        """Return two thirds of the rows, and the others."""
        order = np.random.default_rng(seed).permutation(len(self.y))
        cut = 2 * len(order) // 3
        train, test = order[:cut], order[cut:]
        return Labelled(self.x[train], self.y[train]), Labelled(self.x[test], self.y[test])

    def frame(self, spark: Any) -> Any:
        """Return a cached DataFrame of sparse vectors and labels."""
        from pyspark.ml.linalg import Vectors

        x = sp.csr_array(self.x)
        rows = [
            (Vectors.sparse(x.shape[1], x.indices[begin:end].tolist(), x.data[begin:end].tolist()), float(label))
            for begin, end, label in zip(x.indptr[:-1], x.indptr[1:], self.y, strict=True)
        ]
        frame = spark.createDataFrame(rows, ["features", "label"]).repartition(WORKERS).cache()
        frame.count()
        return frame


@contextmanager
def spark_and_fleet(asked: Asked) -> Iterator[Any]:
    """Start Spark and a fleet; yield the SparkSession."""
    with (
        local_spark("benchmarks.metric", WORKERS, asked.memory) as spark,
        PS2Context.getOrCreate(spark, servers=SERVERS),
    ):
        yield spark


def judged(components: Any, rows: Labelled) -> float:
    """Return the objective of L for pairs of rows, with the scale of L that makes it least."""
    x = sp.csr_array(rows.x)
    pairs = drawn_pairs(Rows(x, np.asarray(rows.y, float)).localize(), JUDGED, np.random.default_rng(0))
    differences = pairs.differences(np.arange(len(pairs)))
    of_keys = np.asarray(components)[:, pairs.keys]
    mapped = differences @ of_keys.T
    identity = np.eye(len(of_keys))

    def at(log_scale: float) -> float:
        return objective(np.exp(log_scale) * identity, mapped, pairs.similar)

    unit = -0.5 * np.log(max((mapped**2).sum() / len(pairs), 1e-300))
    found = scipy.optimize.minimize_scalar(at, bounds=(unit - 5, unit + 5), method="bounded")
    return float(min(found.fun, at(0.0)))


def accuracy(transform: Any, train: Labelled, test: Labelled) -> float:
    """Return the share of test rows whose class their nearest neighbours tell."""
    from sklearn.neighbors import KNeighborsClassifier

    near = KNeighborsClassifier(NEIGHBOURS).fit(transform(train.x), train.y)
    return float(near.score(transform(test.x), test.y))


def timed(work: Any, *arguments: Any) -> tuple[Any, float]:
    """Call a function; return its result, and seconds."""
    began = time.perf_counter()
    result = work(*arguments)
    return result, time.perf_counter() - began
