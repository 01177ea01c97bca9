"""A worker's pairs of rows: those given, or drawn from rows with labels. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.array_types import Int64s
from ps2.data.rows import LocalRows, number_columns

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

# Differences that are made at a time.
BLOCK_VALUES = 1 << 22
# Differences of at most so many values are made once, and kept: 200 MB.
MAX_KEPT_VALUES = 1 << 24


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of rows.

    Attributes:
        x: scipy CSR, shape (n, k): rows, or differences of pairs if ``first`` is None.
        keys: int64, shape (k,): the feature of each column of x.
        similar: shape (pairs,).
        first, second: rows of each pair, shape (pairs,).
    """

    x: sp.csr_array
    keys: Int64s
    similar: Mask
    first: Int64s | None = None
    second: Int64s | None = None

    def __len__(self) -> int:
        return len(self.similar)

    def differences(self, numbers: Int64s) -> sp.csr_array:
        """Return the differences of some pairs, shape (m, k)."""
        if self.first is None or self.second is None:
            return self.x if len(numbers) == len(self) else self.x[numbers]
        return sp.csr_array(self.x[self.first[numbers]] - self.x[self.second[numbers]])

    def subtracted(self) -> Pairs:
        """Return the same pairs with all differences made, or these if that would take much memory."""
        if self.first is None or len(self) * self._most_values > MAX_KEPT_VALUES:
            return self
        return Pairs(self.differences(np.arange(len(self))), self.keys, self.similar)

    def blocks(self) -> Iterator[Int64s]:
        """Yield the numbers of all pairs, in blocks whose differences take little memory."""
        step = max(1, BLOCK_VALUES // self._most_values)
        for begin in range(0, len(self), step):
            yield np.arange(begin, min(begin + step, len(self)))

    @property
    def _most_values(self) -> int:
        """Stored values of a difference, about at most."""
        return 2 * max(1, self.x.nnz // max(self.x.shape[0], 1))

    def sample(self, fraction: float, rng: np.random.Generator) -> Int64s:
        """Return the numbers of a minibatch: each pair with a probability; it may be empty."""
        if fraction == 1.0:
            return np.arange(len(self))
        count = rng.binomial(len(self), fraction)
        return np.sort(rng.choice(len(self), count, replace=False, shuffle=False))


def given_pairs(rows: LocalRows, dim: int) -> Pairs:
    """Return pairs that a table holds: the first ``dim`` features of a row, and the others; label 1 is similar."""
    assert rows.y is not None
    keys = rows.keys[rows.x.indices]
    of_second = keys >= dim
    signed = np.where(of_second, -rows.x.data, rows.x.data)
    used, inverse = number_columns(np.where(of_second, keys - dim, keys))
    x = sp.csr_array((signed, inverse, rows.x.indptr), shape=(len(rows), len(used)))
    x.sum_duplicates()
    x.eliminate_zeros()
    return Pairs(x, used, rows.y == 1.0)


def drawn_pairs(rows: LocalRows, count: int, rng: np.random.Generator) -> Pairs:
    """Draw partners for each row among this worker's rows: ``count`` of its class, and as many of other classes.

    A row that is alone in its class gets no similar partner, and one without rows of other classes no dissimilar one.
    """
    assert rows.y is not None
    order = np.argsort(rows.y, kind="stable")
    _, starts, sizes = np.unique(rows.y[order], return_index=True, return_counts=True)
    begin, size = np.repeat(starts, sizes), np.repeat(sizes, sizes)
    at, n = np.arange(len(order)), len(order)
    firsts, seconds, similar = [], [], []
    for _ in range(count):
        has = size > 1
        ahead = rng.integers(1, np.maximum(size, 2))
        firsts.append(at[has])
        seconds.append((begin + (at - begin + ahead) % size)[has])
        has_other = size < n
        other = rng.integers(0, np.maximum(n - size, 1))
        firsts.append(at[has_other])
        seconds.append(np.where(other >= begin, other + size, other)[has_other])
        similar += [np.ones(has.sum(), bool), np.zeros(has_other.sum(), bool)]
    first, second = order[np.concatenate(firsts)], order[np.concatenate(seconds)]
    return Pairs(rows.x, rows.keys, np.concatenate(similar), first, second)
