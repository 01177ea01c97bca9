"""A worker's pairs of rows, read from the table or drawn from labelled rows, and their objective. Pure.

The objective of a metric L (Xing et al., 2002, as in Petuum's distance metric learning) is

    1/n (sum over similar pairs of |L d|^2  +  lambda sum over dissimilar pairs of max(0, 1 - |L d|^2))

where d is the difference of a pair's vectors, and n the number of pairs. Its gradient by L is 1/n times the sum over
pairs of c (L d) d', with c = 2 for a similar pair, c = -2 lambda for a dissimilar pair with |L d| < 1, and else c = 0.
So the gradient of a pair is the outer product of two vectors, c (L d) and d.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.array_types import Float64s, Int64s
from ps2.data.rows import LocalRows, number_columns
from ps2.errors import ShapeError

Mask = npt.NDArray[np.bool_]

# The maximum number of values of temporary differences in memory at a time: 50 MB of float64 with columns.
BLOCK_VALUES = 1 << 22
# Differences with at most this number of values are computed once and stay in memory: 200 MB.
MAX_CACHED_VALUES = 1 << 24


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of rows.

    Attributes:
        x: scipy CSR, shape (n, k): the rows; if ``first`` is None, the pairs' differences instead.
        keys: int64, shape (k,): the feature of each column of x.
        similar: whether each pair is similar, shape (pairs,).
        first, second: the indices of each pair's two rows in x, shape (pairs,); None: x has differences.
    """

    x: sp.csr_array
    keys: Int64s
    similar: Mask
    first: Int64s | None = None
    second: Int64s | None = None

    def __len__(self) -> int:
        return len(self.similar)

    def differences(self, indices: Int64s) -> sp.csr_array:
        """Return the differences of the pairs at m indices, shape (m, k)."""
        if self.first is None or self.second is None:
            return self.x if len(indices) == len(self) else self.x[indices]
        return sp.csr_array(self.x[self.first[indices]] - self.x[self.second[indices]])

    def with_differences(self) -> Pairs:
        """Return the same pairs with all differences computed; ``self`` if these would take too much memory."""
        if self.first is None or len(self) * self._values_per_pair > MAX_CACHED_VALUES:
            return self
        return Pairs(self.differences(np.arange(len(self))), self.keys, self.similar)

    def blocks(self) -> Iterator[Int64s]:
        """Yield the indices of all pairs, in blocks whose differences have about ``BLOCK_VALUES`` values at most."""
        step = max(1, BLOCK_VALUES // self._values_per_pair)
        for begin in range(0, len(self), step):
            yield np.arange(begin, min(begin + step, len(self)))

    @property
    def _values_per_pair(self) -> int:
        """The approximate number of stored values of a difference: twice a row's mean number."""
        return 2 * max(1, self.x.nnz // max(self.x.shape[0], 1))

    def sample(self, fraction: float, rng: np.random.Generator) -> Int64s:
        """Select each pair with probability ``fraction``; return the indices of the selected pairs, ascending."""
        if fraction == 1.0:
            return np.arange(len(self))
        count = rng.binomial(len(self), fraction)
        return np.sort(rng.choice(len(self), count, replace=False, shuffle=False))


def read_pairs(rows: LocalRows, dim: int) -> Pairs:
    """Return a pair for each row: its vectors are the first and the last ``dim`` features. Label 1 means similar."""
    assert rows.y is not None
    keys = rows.keys[rows.x.indices]
    is_second = keys >= dim
    signed = np.where(is_second, -rows.x.data, rows.x.data)
    used, inverse = number_columns(np.where(is_second, keys - dim, keys))
    x = sp.csr_array((signed, inverse, rows.x.indptr), shape=(len(rows), len(used)))
    x.sum_duplicates()
    x.eliminate_zeros()
    return Pairs(x, used, rows.y == 1.0)


def draw_pairs(rows: LocalRows, count: int, rng: np.random.Generator) -> Pairs:
    """Draw partners for each row among this worker's rows: ``count`` of its class, and ``count`` of other classes.

    A row without other rows of its class gets no similar partner; without rows of other classes, no dissimilar one.
    """
    assert rows.y is not None
    order = np.argsort(rows.y, kind="stable")
    _, starts, sizes = np.unique(rows.y[order], return_index=True, return_counts=True)
    class_starts, class_sizes = np.repeat(starts, sizes), np.repeat(sizes, sizes)
    positions, n = np.arange(len(order)), len(order)  # positions in the order of classes
    firsts, seconds, similar = [], [], []
    for _ in range(count):
        has_similar = class_sizes > 1
        offset = rng.integers(1, np.maximum(class_sizes, 2))
        firsts.append(positions[has_similar])
        seconds.append((class_starts + (positions - class_starts + offset) % class_sizes)[has_similar])
        has_dissimilar = class_sizes < n
        partner = rng.integers(0, np.maximum(n - class_sizes, 1))
        firsts.append(positions[has_dissimilar])
        seconds.append(np.where(partner >= class_starts, partner + class_sizes, partner)[has_dissimilar])
        similar += [np.ones(has_similar.sum(), bool), np.zeros(has_dissimilar.sum(), bool)]
    first, second = order[np.concatenate(firsts)], order[np.concatenate(seconds)]
    return Pairs(rows.x, rows.keys, np.concatenate(similar), first, second)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The loss and gradient of m pairs.

    Attributes:
        loss: the sum of the pairs' terms, without the division by n.
        slopes: float64, shape (m, rank): c (L d) of each pair.
    """

    loss: float
    slopes: Float64s


def evaluate(differences: Any, similar: Mask, columns: Any, dissimilar_weight: float) -> Evaluation:
    """Evaluate m pairs, given their differences, shape (m, features), sparse or dense; ``columns`` is L transposed."""
    if differences.shape != (len(similar), len(columns)):
        raise ShapeError(f"differences: expected shape {(len(similar), len(columns))}, got {tuple(differences.shape)}")
    mapped = np.asarray(differences @ columns, np.float64)
    squares = np.einsum("ij,ij->i", mapped, mapped)
    is_too_close = ~similar & (squares < 1.0)
    loss = squares[similar].sum() + dissimilar_weight * (1.0 - squares[is_too_close]).sum()
    factors = np.where(similar, 2.0, np.where(is_too_close, -2.0 * dissimilar_weight, 0.0))
    return Evaluation(float(loss), factors[:, None] * mapped)


def objective(components: Any, differences: Any, similar: Mask, dissimilar_weight: float = 1.0) -> float:
    """Return the objective of L, shape (rank, features), for differences, shape (n, features), sparse or dense."""
    x = differences if sp.issparse(differences) else np.asarray(differences)
    evaluation = evaluate(x, np.asarray(similar, bool), np.asarray(components).T, dissimilar_weight)
    return evaluation.loss / max(len(similar), 1)
