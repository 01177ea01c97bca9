"""Compile the kernels of online models before their first use (``python -m ps2.algorithms.online.warm``)."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.online import kernels, ops
from ps2.algorithms.training.streams.progressive import tally_of
from ps2.ops.guards import readable


def warm() -> None:
    """Call the kernels on one row, with the array types that workers and servers use."""
    indptr, ones = readable(np.array([0, 1])), readable(np.ones(1, np.float32))
    inverse, margins, rates = readable(np.zeros(1, np.int32)), np.zeros(1), np.ones(7)
    for k in (1, 2):
        pulled = readable(np.ones((1, k), np.float32))
        kernels.predict_rows(indptr, inverse, ones, pulled, 0, margins)
        kernels.sum_gradients((indptr, inverse, ones, ones, ones), pulled, np.zeros((1, k), np.float32), 0, margins)
        blocks, changes = readable(np.ones((1, 2 * k + 1), np.float32)), np.zeros((1, 2 * k), np.float32)
        kernels.learn_rows((indptr, inverse, ones, ones, ones), blocks, changes, 0, True, rates, margins)
    kernels.merge_pairs(indptr, readable(np.zeros(1, np.int64)), ones, 1, True)
    tally_of(margins, ones, ones)
    slots, changes = np.zeros(1, np.int64), np.ones((1, 2), np.float32)
    for ftrl in (True, False):
        ops.add_changes(np.ones((1, 3), np.float32), slots, changes, ftrl=ftrl)


if __name__ == "__main__":
    warm()
