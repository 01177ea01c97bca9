"""The first centres: k-means|| of Bahmani et al., "Scalable k-means++" (2012), Algorithm 2. Pure.

A round draws exactly as many rows as it wants, as in the paper's experiments (section 5.3), with the probabilities of
Algorithm 2 (``training/row_draws.py``). So it does not matter which worker has a row. Equal rows count as one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.training.row_draws import MODULUS, UInt64s
from ps2.ops.kernels import Float64s, Int64s

# A squared distance below this share of the squared lengths has lost too many digits, and is computed from differences,
# of so many numbers at a time.
CLOSE, AT_ONCE = 1e-6, 1 << 22


def plus_plus(x: sp.csr_array, weights: Float64s, count: int, seed: int) -> Int64s:
    """Choose rows by weighted k-means++ (Arthur and Vassilvitskii, 2007).

    Args:
        x: candidates.
        weights: of each one: not negative.
        count: how many to choose.

    Returns:
        The rows that were chosen, in order: fewer than ``count`` if there are no more different ones with a weight.
    """
    chance = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed % MODULUS)))
    columns, places = np.unique(x.indices, return_inverse=True)
    x = sp.csr_array((x.data.astype(np.float64), places, x.indptr), shape=(x.shape[0], len(columns)))
    lengths = np.asarray((x * x).sum(axis=1)).reshape(-1)
    distances, chosen = np.ones(x.shape[0]), np.zeros(0, np.int64)
    while len(chosen) < count:
        sums = np.cumsum(weights * distances)
        if not len(sums) or not sums[-1] > 0:
            break
        at = int(np.searchsorted(sums, chance.random() * sums[-1], side="right"))
        at = min(at, int(np.flatnonzero(weights * distances)[-1]))
        one = np.zeros(len(columns))
        begin, end = x.indptr[at], x.indptr[at + 1]
        one[x.indices[begin:end]] = x.data[begin:end]
        to_one = np.maximum(lengths - 2.0 * (x @ one) + lengths[at], 0.0)
        close, step = np.flatnonzero(to_one <= CLOSE * (lengths + lengths[at])), max(1, AT_ONCE // max(1, len(one)))
        for first in range(0, len(close), step):
            some = close[first : first + step]
            to_one[some] = ((x[some].toarray() - one) ** 2).sum(axis=1)
        distances = to_one if not len(chosen) else np.minimum(distances, to_one)
        distances[at] = 0.0
        chosen = np.append(chosen, at)
    return chosen


def packed(x: sp.csr_array, keys: Int64s, ids: UInt64s) -> dict[str, npt.NDArray[Any]]:
    """Return rows as plain data, which can be joined: see ``unpacked``."""
    sizes = np.diff(x.indptr).astype(np.int64)
    return {"sizes": sizes, "columns": keys[x.indices], "values": x.data, "ids": ids}


def unpacked(rows: dict[str, npt.NDArray[Any]], dim: int) -> sp.csr_array:
    """Return the rows of ``packed``, in the columns of all features."""
    starts = np.concatenate([[0], np.cumsum(rows["sizes"])])
    return sp.csr_array((rows["values"], rows["columns"], starts), shape=(len(rows["sizes"]), dim))


def without_repeats(rows: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return packed rows of several workers by ascending hash, each once."""
    _, first = np.unique(rows["ids"], return_index=True)
    return _chosen(rows, first)


def _chosen(rows: dict[str, npt.NDArray[Any]], numbers: Int64s) -> dict[str, npt.NDArray[Any]]:
    starts = np.concatenate([[0], np.cumsum(rows["sizes"])])
    sizes = rows["sizes"][numbers]
    entries = np.repeat(starts[numbers] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes) + np.arange(sizes.sum())
    return {
        "sizes": sizes,
        "columns": rows["columns"][entries],
        "values": rows["values"][entries],
        "ids": rows["ids"][numbers],
    }


def joined(rows: list[dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    """Return packed rows one after the other."""
    return {name: np.concatenate([one[name] for one in rows]) for name in rows[0]}
