"""The first centres: k-means|| of Bahmani et al., "Scalable k-means++" (2012), Algorithm 2. Pure.

A round draws exactly as many rows as it wants, as in the paper's experiments (section 5.3), with the probabilities of
Algorithm 2. A row's number in (0, 1) comes from seed, round and the row's hash, and the rows with the least
-log(number) / weight are drawn (Efraimidis and Spirakis). So it does not matter which worker has a row. Equal rows have
equal numbers, and count as one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.clusters import kernels
from ps2.ops.draws import GOLDEN
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s

UInt64s = npt.NDArray[np.uint64]
MODULUS = 2**64
# A squared distance below this share of the squared lengths has lost too many digits, and is computed from differences,
# of so many numbers at a time.
CLOSE, AT_ONCE = 1e-6, 1 << 22


def hashes(x: sp.csr_array, keys: Int64s) -> UInt64s:
    """Return a hash of each row's values, wherever and in whatever form it is."""
    ids = np.empty(x.shape[0], np.uint64)
    bits = x.data.astype(np.float64).view(np.uint64)
    kernels.identify(readable(x.indptr), readable(keys[x.indices]), readable(bits), ids)
    return ids


def priorities(ids: UInt64s, weights: Float64s, seed: int, draw: int) -> Float64s:
    """Return numbers of which the least are drawn; infinity for rows without weight.

    Args:
        ids: as ``hashes`` returns them.
        weights: proportional to the rows' probabilities.
        draw: number of the draw.
    """
    key = np.uint64((seed * int(GOLDEN) + (draw + 1) * (int(GOLDEN) >> 7)) % MODULUS)
    numbers = np.empty(len(ids))
    kernels.draw(readable(ids), key, numbers)
    with np.errstate(divide="ignore"):
        return -np.log(numbers) / weights


def least(found: Float64s, ids: UInt64s, count: int) -> Int64s:
    """Return the places of the least finite priorities of different rows, in ascending order; at most ``count``."""
    size = 2 * count
    while True:
        some = np.arange(len(found)) if size >= len(found) else np.argpartition(found, size)[:size]
        some = some[np.isfinite(found[some])]
        order = some[np.lexsort((ids[some], found[some]))]
        _, first = np.unique(ids[order], return_index=True)
        if len(first) >= count or size >= len(found):
            return np.asarray(order[np.sort(first)[:count]])
        size *= 4


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
