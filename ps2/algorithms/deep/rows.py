"""A worker's rows: their keys are numbered once, so that minibatches find their distinct keys without sorting pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps2.algorithms.deep.kernels import row_hashes
from ps2.algorithms.deep.network import Batch
from ps2.algorithms.deep.row_kernels import gather_rows, number_keys
from ps2.data.key_rows import KeyRows

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Minibatch:
    """Some rows.

    Attributes:
        batch: with positions among ``keys``.
        keys: distinct, sorted.
        labels: of rows.
        weights: of rows; None: 1 each.
        numbers: of the rows among all of the worker's.
    """

    batch: Batch
    keys: Int64Array
    labels: Float64Array
    weights: Float64Array | None
    numbers: Int64Array


class DeepRows:
    """Rows of one worker, with labels, and weights if there are any."""

    def __init__(self, rows: KeyRows, labels: Float64Array, weights: Float64Array | None = None) -> None:
        self._indptr, self._field, self._x = rows.indptr, rows.fields, rows.values
        self.labels, self.weights = labels, weights
        keys, position = rows.distinct()
        # int32: rows that a worker's memory holds have no 2**31 distinct keys.
        self._keys, self._position = keys, position.astype(np.int32, copy=False)
        self._marks = np.full(len(keys), -1, np.int32)

    def __len__(self) -> int:
        return len(self._indptr) - 1

    def order(self, seed: int, rank: int, epoch: int) -> Int64Array:
        """Return the order of the rows in an epoch: the same in every attempt."""
        return np.random.default_rng([seed, rank, epoch]).permutation(len(self))

    def take(self, numbers: Int64Array) -> Minibatch:
        """Return some rows with their distinct keys."""
        indptr, position, field, x = gather_rows(self._indptr, self._position, self._field, self._x, numbers)
        distinct = number_keys(position, self._marks)
        batch = Batch(indptr, position, field, x)
        weights = None if self.weights is None else self.weights[numbers]
        return Minibatch(batch, self._keys[distinct], self.labels[numbers], weights, numbers)

    def items(self, begin: int, end: int) -> tuple[Int64Array, Float64Array]:
        """Return, of each row, the number of its item, the keys of the fields [begin, end), and that item's share."""
        hashes = row_hashes(self._indptr, self._keys[self._position], self._field, begin, end)
        _, item, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        return item, counts[item] / len(self)


def batch_of(rows: KeyRows) -> tuple[Batch, Int64Array]:
    """Return rows as a batch, and their distinct keys."""
    keys, position = rows.distinct()
    return Batch(rows.indptr, position.astype(np.int32, copy=False), rows.fields, rows.values), keys
