"""The rows that ``benchmarks.ml`` trains on: in Spark's cache, and in the driver to evaluate models by one function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from click import ClickException

from benchmarks import libsvm
from ps2.data.rows import number_columns

Array = npt.NDArray[Any]
PARTITIONS = 2
# Rows that stand for all of them where only processes are to be warmed up.
FEW = 500
# Of the generated rows: entries of each, values of a field that have a weight in the model behind the labels.
ENTRIES = 40
HIDDEN = 1000
SHARPNESS = 1.0


@dataclass(frozen=True, eq=False)
class Data:
    """Rows of one data set.

    Attributes:
        frame: cached DataFrame of ``label`` (0, 1) and ``features``, vectors of pyspark.ml.
        few: a small part of it, cached too.
        features: how many.
        keys: int64, shape (k,): the features that the rows use, sorted.
        x: scipy CSR, shape (n, k): the same rows, with places in ``keys`` for columns.
        y: float64, shape (n,): labels.
    """

    frame: Any
    few: Any
    features: int
    keys: Array
    x: sp.csr_array
    y: Array

    @property
    def rows(self) -> int:
        return len(self.y)

    def margins(self, w: Array) -> Array:
        """Args:
        w: shape (k,): a model's weights at ``keys``; all others are 0.
        """
        return np.asarray(self.x @ w)

    def objective(self, loss: str, w: Array, strength: float) -> float:
        """Return the mean loss and ``strength / 2 w'w``: what pyspark.ml and ours make small."""
        signed = np.where(self.y > 0, 1.0, -1.0) * self.margins(w)
        losses = np.logaddexp(0.0, -signed) if loss == "logistic" else np.maximum(0.0, 1.0 - signed) ** 2
        return float(losses.mean() + 0.5 * strength * (w @ w))


def load(spark: Any, folder: str, name: str, features: int) -> Data:
    """Read a gzipped libsvm file of labels +1 and -1, and cache it in Spark."""
    path = Path(folder) / name
    if not path.is_file():
        raise ClickException(f"--data-dir: there is no {name} in {folder}")
    frame = libsvm.read(spark, path, features)
    rows = libsvm.collected(frame)
    assert rows.y is not None
    return _data(frame.repartition(PARTITIONS), features, rows.x.indptr, rows.x.indices, rows.x.data, rows.y)


def generate(spark: Any, rows: int, features: int) -> Data:
    """Make rows of 40 entries in columns that follow a power law, and labels of a sparse model; seeded.

    Each of 40 fields has a share of the columns of its own; the k-th most popular column of a field comes with a
    probability proportional to 1 / k. The model behind the labels has weights at the most popular columns only.
    """
    from pyspark.ml.linalg import SparseVector

    count = rows // PARTITIONS

    def vectors(number: int) -> Iterator[tuple[float, SparseVector]]:
        columns, values, y = generated_rows(count, features, number)
        for label, row, its in zip(y.tolist(), columns, values, strict=True):
            yield label, SparseVector(features, row, its)

    made = spark.sparkContext.parallelize(range(PARTITIONS), PARTITIONS).flatMap(vectors)
    columns, values, y = (
        np.concatenate(parts)
        for parts in zip(*(generated_rows(count, features, number) for number in range(PARTITIONS)), strict=True)
    )
    indptr = np.arange(0, columns.size + 1, ENTRIES)
    frame = spark.createDataFrame(made, ["label", "features"])
    return _data(frame, features, indptr, columns.reshape(-1), values.reshape(-1), y)


def generated_rows(rows: int, features: int, number: int) -> tuple[Array, Array, Array]:
    """Return columns and values of rows, shape (rows, 40), and labels."""
    rng = np.random.default_rng([7, number])
    of_field = features // ENTRIES
    ranks = np.exp(rng.random((rows, ENTRIES)) * np.log(of_field + 1)).astype(np.int64) - 1
    ranks = np.minimum(ranks, of_field - 1)
    values = rng.uniform(0.5, 1.5, (rows, ENTRIES))
    hidden = np.random.default_rng(7).standard_normal((ENTRIES, HIDDEN))
    weights = np.where(ranks < HIDDEN, hidden[np.arange(ENTRIES), np.minimum(ranks, HIDDEN - 1)], 0.0)
    margins = SHARPNESS * (weights * values).sum(axis=1)
    y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-margins))).astype(np.float64)
    return ranks + of_field * np.arange(ENTRIES), values, y


def _data(frame: Any, features: int, indptr: Array, columns: Array, values: Array, labels: Array) -> Data:
    frame = frame.persist()
    frame.count()
    few = frame.limit(FEW).repartition(PARTITIONS).persist()
    few.count()
    keys, places = number_columns(columns)
    x = sp.csr_array((values.astype(np.float64), places, indptr), shape=(len(labels), len(keys)))
    return Data(frame, few, features, keys, x, labels.astype(np.float64))
