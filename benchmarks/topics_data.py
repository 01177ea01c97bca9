"""The documents that ``benchmarks.topics`` trains on: in Spark's cache, and as matrices for those who want no Spark."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from benchmarks.local_spark import cached
from benchmarks.ml_data import file_in

Array = npt.NDArray[Any]
KOS = "docword.kos.txt.gz"
HELD_OUT = 0.1
# Of the generated corpus: topics, words of each topic, topics of a document.
HIDDEN, OF_TOPIC, OF_DOCUMENT = 500, 4_000, 4
SEED = 5


def kos(folder: str) -> sp.csr_array:
    """Return the counts of KOS: 3,430 documents, 6,906 words."""
    with gzip.open(file_in(folder, KOS), "rb") as file:
        numbers = np.array(file.read().split(), np.int64)
    (documents, words, _), (document, word, count) = numbers[:3], numbers[3:].reshape(-1, 3).T
    return sp.csr_array((count, (document - 1, word - 1)), shape=(documents, words))


def parted(counts: sp.csr_array) -> tuple[sp.csr_array, sp.csr_array]:
    """Return documents to train on, and some held out."""
    held = np.random.default_rng(SEED).random(counts.shape[0]) < HELD_OUT
    return counts[~held], counts[held]


def halves(counts: sp.csr_array) -> tuple[sp.csr_array, sp.csr_array]:
    """Deal each document's tokens to two halves."""
    first = np.random.default_rng(SEED).binomial(counts.data, 0.5)
    # Copies: zeros are removed in place.
    created = (
        sp.csr_array((data, counts.indices, counts.indptr), counts.shape, copy=True)
        for data in (first, counts.data - first)
    )
    one, other = created
    one.eliminate_zeros()
    other.eliminate_zeros()
    return one, other


def framed(spark: Any, counts: sp.csr_array, partitions: int) -> Any:
    """Return documents as a cached DataFrame of ``features``, vectors of counts."""
    size, bounds = counts.shape[1], zip(counts.indptr[:-1].tolist(), counts.indptr[1:].tolist(), strict=True)
    rows = [(counts.indices[begin:end], counts.data[begin:end].astype(float)) for begin, end in bounds]
    return _cached(spark, spark.sparkContext.parallelize(rows, partitions), size)


def generated(spark: Any, tokens: int, words: int, length: int, partitions: int) -> Any:
    """Return documents of some topics each, as a cached DataFrame; each partition makes its own, seeded.

    A topic has words of its own, the k-th with a probability proportional to 1 / (k + 10).
    """
    each = tokens // length // partitions

    def documents(number: int) -> Iterator[tuple[Array, Array]]:
        rng = np.random.default_rng([SEED, number])
        shares = np.cumsum(1.0 / (np.arange(OF_TOPIC) + 10.0))
        topics_words = np.random.default_rng(SEED).integers(0, words, (HIDDEN, OF_TOPIC))
        for _ in range(each):
            topics = rng.integers(0, HIDDEN, OF_DOCUMENT)[rng.integers(0, OF_DOCUMENT, length)]
            ranks = np.searchsorted(shares, rng.random(length) * shares[-1], side="right")
            indices, counts = np.unique(topics_words[topics, ranks], return_counts=True)
            yield indices, counts.astype(float)

    return _cached(spark, spark.sparkContext.parallelize(range(partitions), partitions).flatMap(documents), words)


def _cached(spark: Any, rows: Any, words: int) -> Any:
    """Args:
    rows: RDD of numbers of words and counts.
    """
    from pyspark.ml.linalg import SparseVector, VectorUDT
    from pyspark.sql.types import StructField, StructType

    schema = StructType([StructField("features", VectorUDT(), False)])
    return cached(spark.createDataFrame(rows.map(lambda row: (SparseVector(words, *row),)), schema), None)
