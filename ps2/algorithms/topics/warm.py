"""Compile kernels of topics (``python -m ps2.algorithms.topics.warm``); else they are at first use."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.topics import online_kernels, online_ops
from ps2.algorithms.topics.online import ids_of, told_of
from ps2.data.rows import LocalRows
from ps2.matrix.partition import Partition


def warm() -> None:
    """Call the kernels on one document, in the forms in which workers and servers hold them."""
    for dtype in (np.float32, np.float64):
        counts = np.zeros((1, 1), dtype)
        online_ops.begin(counts, Partition(0, 0, 1), seed=0, beta=1.0)
        online_ops.step(counts, np.zeros((1, 1), dtype), keep=1.0, scale=1.0)
        document = LocalRows(np.zeros(1, np.int64), sp.csr_array(np.ones((1, 1))))
        told_of(document, counts, 1.0, np.ones(1), np.ones(1))
    online_kernels.draw(ids_of(document), np.uint64(0), 1.0)


if __name__ == "__main__":
    warm()
