"""``DeepRows``: the rows of a worker, whose keys are numbered once, so that a minibatch needs no sort of its pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ps2.algorithms.deep.kernels import row_hashes
from ps2.algorithms.deep.network import Batch
from ps2.algorithms.deep.row_kernels import gather_rows, number_keys
from ps2.array_types import Float64s, Int64s
from ps2.data.key_rows import KeyRows


@dataclass(frozen=True, eq=False)
class Minibatch:
    """Some rows of a worker.

    Attributes:
        batch: the rows; ``batch.inverse`` refers to ``keys``.
        keys: the u distinct keys, int64 of shape (u,), ascending.
        labels: labels of the n rows, float64 of shape (n,).
        weights: weights of the rows, float64 of shape (n,); None: all rows weigh 1.
        numbers: numbers of the rows among all rows of the worker, int64 of shape (n,).
    """

    batch: Batch
    keys: Int64s
    labels: Float64s
    weights: Float64s | None
    numbers: Int64s


class DeepRows:
    """All rows of one worker, with their labels and perhaps weights."""

    def __init__(self, rows: KeyRows, labels: Float64s, weights: Float64s | None = None) -> None:
        self._indptr, self._field, self._x = rows.indptr, rows.fields, rows.values
        self.labels, self.weights = labels, weights
        keys, inverse = rows.distinct()
        # int32: rows that a worker's memory holds have no 2**31 distinct keys.
        self._keys, self._inverse = keys, inverse.astype(np.int32, copy=False)
        self._marks = np.full(len(keys), -1, np.int32)

    def __len__(self) -> int:
        return len(self._indptr) - 1

    def order(self, seed: int, rank: int, epoch: int) -> Int64s:
        """Return the order of the rows in an epoch, int64 of shape (rows,): the same in every attempt of a task."""
        return np.random.default_rng([seed, rank, epoch]).permutation(len(self))

    def take(self, numbers: Int64s) -> Minibatch:
        """Return the rows with these numbers, in this order."""
        indptr, inverse, field, x = gather_rows(self._indptr, self._inverse, self._field, self._x, numbers)
        distinct = number_keys(inverse, self._marks)
        batch = Batch(indptr, inverse, field, x)
        weights = None if self.weights is None else self.weights[numbers]
        return Minibatch(batch, self._keys[distinct], self.labels[numbers], weights, numbers)

    def items(self, begin: int, end: int) -> tuple[Int64s, Float64s]:
        """Return the number of each row's item, and the share of rows that have it; each of shape (rows,).

        An item is what the keys of the fields [begin, end) say: rows with equal keys there have the same item.
        """
        hashes = row_hashes(self._indptr, self._keys[self._inverse], self._field, begin, end)
        _, item, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        return item, counts[item] / len(self)


def batch_of(rows: KeyRows) -> tuple[Batch, Int64s]:
    """Return rows as a batch, and their distinct keys: int64 of shape (u,), in the order of their first appearance."""
    keys, inverse = rows.numbered()
    return Batch(rows.indptr, inverse.astype(np.int32, copy=False), rows.fields, rows.values), keys
