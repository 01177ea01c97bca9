"""The rows that ``benchmarks.lasso`` trains on: cached in Spark, and in the driver for other libraries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from click import ClickException

from benchmarks import libsvm
from benchmarks.ml_data import PARTITIONS, Array
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Facts, Table

NEWS20 = "news20-bigram.train.libsvm.gz"
NEWS20_FEATURES = 1_691_504
# Of the generated rows: features of a block, their correlation where a row has the block, blocks of a row, blocks that
# the labels depend on, and the deviation of their noise.
BLOCK, CORRELATION, BLOCKS_OF_ROW, HIDDEN, NOISE = 10, 0.9, 10, 200, 0.5


@dataclass(frozen=True, eq=False)
class Data:
    """Rows of one data set.

    Attributes:
        frame: cached DataFrame of ``label`` and ``features``, dealt to two workers.
        x: scipy CSC of float64, shape (n, dim).
        y: float64, shape (n,).
    """

    frame: Any
    x: sp.csc_array
    y: Array

    @property
    def table(self) -> Table:
        return Table(self.frame, ColumnNames(), PARTITIONS)

    @property
    def facts(self) -> Facts:
        n, y = len(self.y), self.y
        return Facts(n, float(n), float(n), (), float(y.mean()), float(y.std(ddof=1)))

    @property
    def largest(self) -> float:
        """The least strength whose model is all zeros."""
        return float(np.abs(self.x.T @ (self.y - self.y.mean())).max() / len(self.y))

    def objective(self, w: Array, strength: float) -> float:
        """Return half the mean squared error at the best intercept, and the penalty."""
        left = self.y - self.x @ w
        return float(0.5 * left.var() + strength * np.abs(w).sum())


def news20(spark: Any, folder: str) -> Data:
    """Read news20-bigram; labels are 0 and 1."""
    path = Path(folder) / NEWS20
    if not path.is_file():
        raise ClickException(f"--data-dir: there is no {NEWS20} in {folder}")
    frame = libsvm.read(spark, path, NEWS20_FEATURES)
    rows = libsvm.collected(frame)
    assert rows.y is not None
    x = sp.csr_array((rows.x.data, rows.x.indices, rows.x.indptr), shape=(len(rows.y), NEWS20_FEATURES))
    return Data(_cached(frame.repartition(PARTITIONS)), sp.csc_array(x), rows.y)


def correlated(spark: Any, rows: int, features: int) -> Data:
    """Make rows of ten blocks of ten features each, and numbers for labels; seeded.

    Features of a block come together, with values of correlation .9. The labels depend on one feature of each of 200
    blocks.
    """
    parts = [_generated(rows // PARTITIONS, features, number) for number in range(PARTITIONS)]
    made = spark.sparkContext.parallelize(range(PARTITIONS), PARTITIONS).flatMap(
        lambda number: _vectors(rows // PARTITIONS, features, number)
    )
    x = sp.vstack([_matrix(columns, values, features) for columns, values, _ in parts])
    frame = spark.createDataFrame(made, ["label", "features"])
    return Data(_cached(frame), sp.csc_array(x), np.concatenate([y for _, _, y in parts]))


def _vectors(rows: int, features: int, number: int) -> Any:
    from pyspark.ml.linalg import SparseVector

    columns, values, y = _generated(rows, features, number)
    for label, row, its in zip(y.tolist(), columns, values, strict=True):
        yield label, SparseVector(features, row, its)


def _generated(rows: int, features: int, number: int) -> tuple[Array, Array, Array]:
    """Return columns and values of rows, shape (rows, 100), and labels."""
    rng, blocks = np.random.default_rng([11, number]), features // BLOCK
    # One block of each of ten groups: a row has none twice.
    groups = blocks // BLOCKS_OF_ROW
    chosen = rng.integers(0, groups, (rows, BLOCKS_OF_ROW)) + groups * np.arange(BLOCKS_OF_ROW)
    common = rng.standard_normal((rows, BLOCKS_OF_ROW, 1))
    own = rng.standard_normal((rows, BLOCKS_OF_ROW, BLOCK))
    values = (np.sqrt(CORRELATION) * common + np.sqrt(1.0 - CORRELATION) * own).reshape(rows, -1)
    columns = (chosen[:, :, None] * BLOCK + np.arange(BLOCK)).reshape(rows, -1)
    hidden = np.random.default_rng(11)
    w = np.zeros(features)
    w[hidden.choice(blocks, HIDDEN, replace=False) * BLOCK] = hidden.standard_normal(HIDDEN)
    y = (values * w[columns]).sum(axis=1) + NOISE * rng.standard_normal(rows)
    return columns, values, y


def _matrix(columns: Array, values: Array, features: int) -> sp.csr_array:
    rows, entries = columns.shape
    starts = np.arange(0, rows * entries + 1, entries, dtype=np.int32)  # all libraries take 32 bits
    return sp.csr_array((values.reshape(-1), columns.reshape(-1).astype(np.int32), starts), shape=(rows, features))


def _cached(frame: Any) -> Any:
    frame = frame.persist()
    frame.count()
    return frame
