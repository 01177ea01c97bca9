"""Compile the kernels of k-means before their first use (``python -m ps2.algorithms.clusters.warm``)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.clusters import kernels, ops
from ps2.algorithms.clusters.model import KMeansClusters
from ps2.algorithms.training import row_draws
from ps2.ops.guards import readable


def warm() -> None:
    """Call the kernels on two rows, with the argument types that workers, servers and models use."""
    full, sparse = np.ones((2, 2)), np.eye(2)
    for dtype in (np.float64, np.float32):
        clusters = KMeansClusters(np.eye(2, dtype=dtype))
        for x in (full, sparse):
            clusters.cost(x)
        x = sp.csr_array(sparse.astype(dtype))
        entries = readable(x.indptr), readable(x.indices), readable(x.data)
        weighted = *entries, readable(np.ones(2)), readable(np.zeros(2, np.int64)), readable(np.ones(2))
        kernels.sum_rows(*weighted, np.zeros((2, 2)))
        kernels.sum_columns(*weighted, np.zeros(2, np.int32), np.zeros(2, np.int32), np.zeros(2), 2)
        kernels.normalize(entries[0], x.data.copy())
        kernels.total(weighted[3], weighted[3], (0.0, 0.0))
        row_draws.priorities(row_draws.hashes(x, np.arange(2)), np.ones(2), 0, 0)
        target = np.zeros(1, np.int64), np.ones(1, np.uint8), np.zeros(1, np.uint8)
        centres = np.zeros((1, 1), dtype)
        ops.place(centres, *target, np.ones(1, dtype))
        ops.gather(centres, *target, np.ones(1, dtype))
        ops.squares(centres)
        ops.move(centres, np.zeros((1, 1)), np.ones(1))


if __name__ == "__main__":
    warm()
