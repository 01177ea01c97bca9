"""The first centres: k-means|| of Bahmani et al., "Scalable k-means++" (2012), Algorithm 2. Pure.

A round draws an exact number of rows, as in the experiments of the paper (section 5.3), with the probabilities of
Algorithm 2 (``training/row_draws.py``). So it does not matter which worker has a row. Equal rows count as one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.training.row_draws import MODULUS, UInt64s
from ps2.ops.kernels import Float64s, Int64s

# Rows as plain data, which can be joined.
PackedRows = dict[str, npt.NDArray[Any]]

# A squared distance below this share of the squared lengths has lost too many digits, and is computed from differences
# instead. The maximum number of differences in memory.
CLOSE, BLOCK_NUMBERS = 1e-6, 1 << 22


def plus_plus(x: sp.csr_array, weights: Float64s, count: int, seed: int) -> Int64s:
    """Choose rows by weighted k-means++ (Arthur and Vassilvitskii, 2007).

    Returns:
        The rows in the order in which they were chosen; fewer than ``count`` if no other different row has a weight.
    """
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed % MODULUS)))
    columns, indices = np.unique(x.indices, return_inverse=True)
    x = sp.csr_array((x.data.astype(np.float64), indices, x.indptr), shape=(x.shape[0], len(columns)))
    lengths = np.asarray((x * x).sum(axis=1)).reshape(-1)
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
        to_centre = np.maximum(lengths - 2.0 * (x @ centre) + lengths[row], 0.0)
        close = np.flatnonzero(to_centre <= CLOSE * (lengths + lengths[row]))
        step = max(1, BLOCK_NUMBERS // max(1, len(centre)))
        for first in range(0, len(close), step):
            block = close[first : first + step]
            to_centre[block] = ((x[block].toarray() - centre) ** 2).sum(axis=1)
        distances = to_centre if not len(chosen) else np.minimum(distances, to_centre)
        distances[row] = 0.0
        chosen = np.append(chosen, row)
    return chosen


def packed(x: sp.csr_array, keys: Int64s, ids: UInt64s) -> PackedRows:
    """Return rows as plain data; see ``unpacked``."""
    sizes = np.diff(x.indptr).astype(np.int64)
    return {"sizes": sizes, "columns": keys[x.indices], "values": x.data, "ids": ids}


def unpacked(rows: PackedRows, dim: int) -> sp.csr_array:
    """Return packed rows as a matrix that has a column for each feature."""
    starts = np.concatenate([[0], np.cumsum(rows["sizes"])])
    return sp.csr_array((rows["values"], rows["columns"], starts), shape=(len(rows["sizes"]), dim))


def without_repeats(rows: PackedRows) -> PackedRows:
    """Return packed rows of several workers by ascending hash, each once."""
    _, first = np.unique(rows["ids"], return_index=True)
    starts = np.concatenate([[0], np.cumsum(rows["sizes"])])
    sizes = rows["sizes"][first]
    entries = np.repeat(starts[first] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes) + np.arange(sizes.sum())
    columns, values = rows["columns"][entries], rows["values"][entries]
    return {"sizes": sizes, "columns": columns, "values": values, "ids": rows["ids"][first]}


def joined(rows: list[PackedRows]) -> PackedRows:
    """Return packed rows one after the other."""
    return {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
