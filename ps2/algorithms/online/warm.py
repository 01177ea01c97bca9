"""Compile kernels of online models ahead of their first use (``python -m ps2.algorithms.online.warm``)."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.online import kernels, ops
from ps2.algorithms.training.streams.progressive import tally_of
from ps2.ops.guards import readable


def warm() -> None:
    """Call the kernels on one row, in the forms in which workers and servers hold it."""
    bounds, one = readable(np.array([0, 1])), readable(np.ones(1, np.float32))
    inverse, margins, rates = readable(np.zeros(1, np.int32)), np.zeros(1), np.ones(7)
    for k in (1, 2):
        pulled = readable(np.ones((1, k), np.float32))
        kernels.predict_rows(bounds, inverse, one, pulled, 0, margins)
        kernels.sum_gradients((bounds, inverse, one, one, one), pulled, np.zeros((1, k), np.float32), 0, margins)
        blocks, changes = readable(np.ones((1, 2 * k + 1), np.float32)), np.zeros((1, 2 * k), np.float32)
        kernels.learn_rows((bounds, inverse, one, one, one), blocks, changes, 0, True, rates, margins)
    kernels.merge_pairs(bounds, readable(np.zeros(1, np.int64)), one, 1, True)
    tally_of(margins, one, one)
    slots, changes = np.zeros(1, np.int64), np.ones((1, 2), np.float32)
    for ftrl in (True, False):
        ops.add_changes(np.ones((1, 3), np.float32), slots, changes, ftrl=ftrl)


if __name__ == "__main__":
    warm()
