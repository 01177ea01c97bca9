"""The first centres: k-means|| of Bahmani et al., "Scalable k-means++" (2012), Algorithm 2. Pure.

A round draws a fixed number of rows, as in the experiments of the paper (section 5.3), with the probabilities of
Algorithm 2 (``training/row_draws.py``). A draw does not depend on which worker has a row. Equal rows count as one row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.training.row_draws import MODULUS, UInt64s
from ps2.ops.kernels import Float64s, Int64s

# Rows as a dict of arrays: "sizes", each row's number of values; "values" and their "columns"; "ids", the rows' hashes.
PackedRows = dict[str, npt.NDArray[Any]]

# A squared distance below this fraction of the sum of both squared norms has lost too many digits by cancellation. It
# is computed again, from differences.
MIN_DISTANCE_FRACTION = 1e-6
# The maximum number of values of these differences in memory at a time: 32 MiB.
MAX_DIFFERENCES = 1 << 22


def plus_plus(x: sp.csr_array, weights: Float64s, count: int, seed: int) -> Int64s:
    """Choose rows by weighted k-means++ (Arthur and Vassilvitskii, 2007).

    Returns:
        The indices of the rows in the order of choice. There are fewer than ``count`` if all other rows equal a chosen
        row or have weight 0.
    """
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed % MODULUS)))
    columns, indices = np.unique(x.indices, return_inverse=True)
    x = sp.csr_array((x.data.astype(np.float64), indices, x.indptr), shape=(x.shape[0], len(columns)))
    squares = np.asarray((x * x).sum(axis=1)).reshape(-1)
    distances, chosen = np.ones(x.shape[0]), np.zeros(0, np.int64)
    while len(chosen) < count:
        sums = np.cumsum(weights * distances)
        if not len(sums) or not sums[-1] > 0:
            break
        row = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
        row = min(row, int(np.flatnonzero(weights * distances)[-1]))
        centre = np.zeros(len(columns))
        begin, end = x.indptr[row], x.indptr[row + 1]
        centre[x.indices[begin:end]] = x.data[begin:end]
        new_distances = np.maximum(squares - 2.0 * (x @ centre) + squares[row], 0.0)
        close = np.flatnonzero(new_distances <= MIN_DISTANCE_FRACTION * (squares + squares[row]))
        step = max(1, MAX_DIFFERENCES // max(1, len(centre)))
        for close_begin in range(0, len(close), step):
            block = close[close_begin : close_begin + step]
            new_distances[block] = ((x[block].toarray() - centre) ** 2).sum(axis=1)
        distances = new_distances if not len(chosen) else np.minimum(distances, new_distances)
        distances[row] = 0.0
        chosen = np.append(chosen, row)
    return chosen


def pack(x: sp.csr_array, keys: Int64s, ids: UInt64s) -> PackedRows:
    """Return rows as ``PackedRows``; ``unpack`` is the inverse."""
    sizes = np.diff(x.indptr).astype(np.int64)
    return {"sizes": sizes, "columns": keys[x.indices], "values": x.data, "ids": ids}


def unpack(rows: PackedRows, dim: int) -> sp.csr_array:
    """Return packed rows as a matrix with a column for each of ``dim`` features."""
    starts = np.concatenate([[0], np.cumsum(rows["sizes"])])
    return sp.csr_array((rows["values"], rows["columns"], starts), shape=(len(rows["sizes"]), dim))


def drop_duplicates(rows: PackedRows) -> PackedRows:
    """Remove equal rows of several workers, and sort the rows by hash."""
    _, kept_rows = np.unique(rows["ids"], return_index=True)
    starts = np.concatenate([[0], np.cumsum(rows["sizes"])])
    sizes = rows["sizes"][kept_rows]
    entries = np.repeat(starts[kept_rows] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    entries += np.arange(sizes.sum())
    columns, values = rows["columns"][entries], rows["values"][entries]
    return {"sizes": sizes, "columns": columns, "values": values, "ids": rows["ids"][kept_rows]}


def concatenate(rows: list[PackedRows]) -> PackedRows:
    return {name: np.concatenate([packed[name] for packed in rows]) for name in rows[0]}
