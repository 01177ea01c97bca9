"""An approximate index of items' vectors (HNSW, Malkov & Yashunin, 2018), by usearch, the extra ``ann``.

Neighbours in the graph are vectors with large inner products, not with small angles (Morozov & Babenko, 2018): the
index is of the scores themselves. docs/performance/factors.md compares it with vectors of equal norms.
"""

from __future__ import annotations

import numpy as np

from ps2.algorithms.factors.top_k import Candidates, Excluded, pair_products
from ps2.array_types import Float32s, Int64s
from ps2.errors import ConfigError

try:
    from usearch.index import BatchMatches, Index
except ImportError as error:
    raise ConfigError(f"an approximate index needs usearch: pip install 'ps2-spark[ann]' ({error})") from error

# The neighbours of a vector in the graph, and the candidates of a search while the graph grows and later.
CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 32, 128, 128
# A request for more than this share of all vectors is answered exactly, which is then faster.
MAX_SHARE = 0.05


class ApproximateCandidates:
    """The right vectors with an index, which finds nearly all of the largest dot products. Thread-safe."""

    def __init__(self, vectors: Float32s) -> None:
        """Build the index with all cores; ``vectors``: float32, shape (n, d), C-contiguous."""
        self._exact = Candidates(vectors)
        self._index = Index(
            ndim=vectors.shape[1],
            metric="ip",
            dtype="f32",
            connectivity=CONNECTIVITY,
            expansion_add=EXPANSION_ADD,
            expansion_search=EXPANSION_SEARCH,
        )
        self._index.add(np.arange(len(vectors)), vectors)

    def best(self, left: Float32s, k: int, excluded: Excluded | None = None) -> tuple[Float32s, Int64s]:
        """Return nearly the same as ``Candidates.best``: products are exact, but some of the largest may be missing."""
        n = len(self._exact.vectors)
        count = min(k, n) + (0 if excluded is None else int(np.diff(excluded.indptr).max(initial=0)))
        if count > MAX_SHARE * n or not len(left):
            return self._exact.best(left, k, excluded)
        # Requests have threads of their own.
        matches = self._index.search(left, count, threads=1)
        positions = np.atleast_2d(matches.keys).astype(np.int64)
        if isinstance(matches, BatchMatches):  # of several queries; those of one query have no padding
            positions[np.arange(count) >= matches.counts[:, None]] = -1
        if excluded is not None:
            for row in range(len(left)):
                positions[row, np.isin(positions[row], excluded.cut(row, row + 1).positions)] = -1
        rows = np.repeat(np.arange(len(left)), positions.shape[1])
        scores = pair_products(left, self._exact.vectors, rows, positions.reshape(-1)).reshape(positions.shape)
        order = np.lexsort((-positions, -scores))[:, :k]  # NaN is last
        return np.take_along_axis(scores, order, 1), np.take_along_axis(positions, order, 1)
