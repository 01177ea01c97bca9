"""The rows of linear models' benchmarks: in Spark's cache, and in the driver to evaluate models by one function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from click import ClickException
from pyspark.sql import functions
from scipy.stats import rankdata

from benchmarks.local_spark import cached
from ps2.data.rows import Rows, number_columns

Array = npt.NDArray[Any]
PARTITIONS = 2
# Rows that stand for all of them where only processes are to be warmed up.
FEW = 500
# Of the generated rows: entries of each, values of a field that have a weight in the model behind the labels.
ENTRIES = 40
HIDDEN = 1000


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


def read_libsvm(spark: Any, path: Path, features: int | None = None) -> Any:
    """Return a file as a DataFrame of label (0 or 1) and features (pyspark.ml vectors)."""
    reader = spark.read.format("libsvm")
    if features is not None:
        reader = reader.option("numFeatures", str(features))
    frame = reader.load(path.resolve().as_uri())
    return frame.withColumn("label", (functions.col("label") > 0).cast("double"))


def collected(frame: Any) -> Rows:
    """Return the rows of such a DataFrame in the driver."""
    features = functions.unwrap_udt("features").alias("features")
    return Rows.fromBatches(frame.select("label", features).toArrow().to_batches())


def load(spark: Any, folder: str, name: str, features: int) -> Data:
    """Read a gzipped libsvm file of labels +1 and -1, and cache it in Spark."""
    frame = read_libsvm(spark, file_in(folder, name), features)
    rows = collected(frame)
    assert rows.y is not None
    return _data(frame.repartition(PARTITIONS), features, rows.x.indptr, rows.x.indices, rows.x.data, rows.y)


def file_in(folder: str, name: str) -> Path:
    """Return the path of a file in ``--data-dir``; raise ClickException if it is missing."""
    path = Path(folder) / name
    if not path.is_file():
        raise ClickException(f"--data-dir: there is no {name} in {folder}")
    return path


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

    created = spark.sparkContext.parallelize(range(PARTITIONS), PARTITIONS).flatMap(vectors)
    columns, values, y = (
        np.concatenate(parts)
        for parts in zip(*(generated_rows(count, features, number) for number in range(PARTITIONS)), strict=True)
    )
    indptr = np.arange(0, columns.size + 1, ENTRIES)
    frame = spark.createDataFrame(created, ["label", "features"])
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
    margins = (weights * values).sum(axis=1)
    y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-margins))).astype(np.float64)
    return ranks + of_field * np.arange(ENTRIES), values, y


def _data(frame: Any, features: int, indptr: Array, columns: Array, values: Array, labels: Array) -> Data:
    frame = cached(frame, None)
    few = cached(frame.limit(FEW), PARTITIONS)
    keys, positions = number_columns(columns)
    x = sp.csr_array((values.astype(np.float64), positions, indptr), shape=(len(labels), len(keys)))
    return Data(frame, few, features, keys, x, labels.astype(np.float64))


@dataclass(frozen=True)
class Reference:
    """The optimum of ``1/2 w'w + C sum_i loss_i`` with C = 1 and no intercept, and what it is worth on the test set."""

    objective: float
    accuracy: float
    auc: float | None = None


@dataclass(frozen=True)
class Set:
    """A data set of LIBSVM's: two gzipped files.

    Attributes:
        features: how many.
        logistic: optimum of the logistic loss, by LIBLINEAR.
        squared_hinge: that of the squared hinge loss, likewise.
    """

    name: str
    features: int
    logistic: Reference
    squared_hinge: Reference
    train: str
    test: str

    def load(self, spark: Any, folder: str) -> Data:
        return load(spark, folder, self.train, self.features)

    def load_test(self, spark: Any, folder: str) -> Data:
        return load(spark, folder, self.test, self.features)


# The values are those of the data's own README.
A9A = Set(
    "a9a",
    123,
    Reference(10529.5626, 0.84989, 0.90222),
    Reference(13742.3973, 0.84940),
    "a9a.libsvm.gz",
    "a9a.t.libsvm.gz",
)
NEWS20 = Set(
    "news20-bigram",
    1_691_504,
    Reference(3707.342, 0.90839, 0.97147),
    Reference(1169.194, 0.95088),
    "news20-bigram.train.libsvm.gz",
    "news20-bigram.test.libsvm.gz",
)


def accuracy(margins: Array, y: Array) -> float:
    """Return the share of rows whose margin is on the side of their label."""
    return float(np.mean((margins > 0) == (y > 0)))


def auc(margins: Array, y: Array) -> float:
    """Return the area under the ROC curve; rows of equal margins count half."""
    ranks, positives = rankdata(margins), y > 0
    count = int(positives.sum())
    return float((ranks[positives].sum() - count * (count + 1) / 2) / (count * (len(y) - count)))
