"""Training data of ``benchmarks.trees``: cached in Spark, and as matrices for libraries without Spark."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.sparse as sp
from click import ClickException

from benchmarks import libsvm, ml_data
from benchmarks.ml_sets import NEWS20
from ps2.data.rows import number_columns

Array = npt.NDArray[Any]
PARTITIONS = 2
# Number of rows for warming processes up.
FEW = 500
# Generated data like HIGGS: number of the detector's features, and of features computed from them.
RAW, MADE = 21, 7
DENSE_FEATURES = RAW + MADE
SCHEMA = "label double, features array<float>"
BATCH = 10_000


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one data set.

    Attributes:
        frame: cached DataFrame of ``label`` and ``features``; few: a small part of it, cached too.
        x: float32, shape (n, features), NumPy or scipy CSR; y: float64, shape (n,).
    """

    frame: Any
    few: Any
    x: Any
    y: Array


def news20(spark: Any, folder: str) -> tuple[Rows, Any, Array]:
    """Return the training rows of news20-bigram, sparse, and features and labels of its test set."""
    train, test = NEWS20.load(spark, folder), NEWS20.load_test(spark, folder)
    test.frame.unpersist()
    return Rows(train.frame, train.few, _full(train), train.y), _full(test), test.y


def _full(data: ml_data.Data) -> sp.csr_matrix:
    """Return features with the column numbers of the file: (n, all features)."""
    indices = data.keys.astype(np.int32)[data.x.indices]
    full = (data.x.data.astype(np.float32), indices, data.x.indptr.astype(np.int32))
    return sp.csr_matrix(full, shape=(data.rows, data.features))


def agaricus(spark: Any, folder: str) -> tuple[Any, Any, Array]:
    """Return the training rows as a DataFrame, and features and labels of the test set."""
    frame = libsvm.read(spark, file_in(folder, "agaricus.train.libsvm.gz"), 127)
    test = libsvm.collected(libsvm.read(spark, file_in(folder, "agaricus.test.libsvm.gz"), 127))
    keys, places = number_columns(test.x.indices)
    assert test.y is not None
    x = sp.csr_array((test.x.data, keys.astype(np.int32)[places], test.x.indptr), shape=(len(test.y), 127))
    return frame, x, test.y


def higgs(spark: Any, folder: str) -> tuple[Rows, Array, Array]:
    """Return the training rows of LightGBM's example, and features and labels of its test set."""
    (x, y), (x_test, y_test) = (_table(file_in(folder, f"higgs7k.{kind}.tsv.gz")) for kind in ("train", "test"))
    table = pa.table({"label": y, "features": _lists(x)})
    return _cached(spark.createDataFrame(table).repartition(PARTITIONS), x, y), x_test, y_test


def _table(path: Path) -> tuple[Array, Array]:
    with gzip.open(path, "rt") as lines:
        table = np.loadtxt(lines, np.float64)
    return np.ascontiguousarray(table[:, 1:], np.float32), table[:, 0]


def file_in(folder: str, name: str) -> Path:
    """Return the path of a file in ``--data-dir``; raise ClickException if it is missing."""
    path = Path(folder) / name
    if not path.is_file():
        raise ClickException(f"--data-dir: there is no {name} in {folder}")
    return path


def dense(spark: Any, rows: int, seed: int = 0) -> Rows:
    """Generate rows like HIGGS, by partition in Spark and all of them in the driver."""
    count = rows // PARTITIONS

    def batches(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                x, y = generated(count, seed, number)
                for begin in range(0, count, BATCH):
                    part = slice(begin, begin + BATCH)
                    yield pa.RecordBatch.from_arrays([pa.array(y[part]), _lists(x[part])], ["label", "features"])

    frame = spark.range(0, PARTITIONS, 1, PARTITIONS).mapInArrow(batches, SCHEMA)
    parts = [generated(count, seed, number) for number in range(PARTITIONS)]
    return _cached(frame, np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))


def _lists(x: Array) -> pa.Array:
    """Return each row as a list."""
    return pa.FixedSizeListArray.from_arrays(x.ravel(), x.shape[1]).cast(pa.list_(pa.float32()))


def generated(rows: int, seed: int, number: int) -> tuple[Array, Array]:
    """Return features, float32, shape (rows, 28), and labels.

    As in HIGGS, 21 features are momenta, angles and tags, and 7 are like masses computed from them. Labels depend on
    products and windows of these, so that no linear model separates the classes, and no model separates them well.
    """
    rng = np.random.default_rng([11, seed, number])
    x = rng.standard_normal((rows, RAW))
    momenta, angles, tags = x[:, :7], x[:, 7:17], x[:, 17:]
    np.exp(0.5 * momenta, out=momenta)
    tags[:] = np.digitize(tags, [0.3, 1.2]) * 1.086
    first, second = momenta[:, :MADE], momenta[:, (np.arange(MADE) + 1) % MADE]
    masses = np.sqrt(first * second * (np.cosh(0.5 * (angles[:, :MADE] - angles[:, 3:])) - np.cos(angles[:, :MADE])))
    seen = masses * np.exp(0.1 * rng.standard_normal(masses.shape))
    window = np.exp(-(((masses - 1.0) / 0.35) ** 2))
    margin = 1.8 * (window[:, 0] + window[:, 3] * (tags[:, 0] > 0) + window[:, 5]) - 1.2 * np.tanh(masses[:, 1])
    margin += 0.6 * angles[:, 0] * angles[:, 4] + 0.5 * np.sin(2.0 * angles[:, 8]) * momenta[:, 6] - 0.5
    y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-2.0 * margin))).astype(np.float64)
    return np.concatenate([x, seen], axis=1).astype(np.float32), y


def _cached(frame: Any, x: Any, y: Array) -> Rows:
    frame = frame.persist()
    frame.count()
    few = frame.limit(FEW).repartition(PARTITIONS).persist()
    few.count()
    return Rows(frame, few, x, y)
