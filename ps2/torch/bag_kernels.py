"""Gradients of rows from those of bags of rows: what ``nn.EmbeddingBag`` computes, without sorting keys again."""

from __future__ import annotations

import numpy as np

from ps2.ops.kernels import Int64s, kernel
from ps2.ops.table import Array


@kernel
def add_bag_gradients(
    begins: Int64s, ends: Int64s, gradients: Array, inverse: Int64s, is_mean: bool, sums: Array
) -> None:
    """Add the gradient of each bag to those of its rows, in the order of the bags.

    Args:
        begins, ends: shape (bags,): bag b has the rows ``inverse[begins[b]:ends[b]]``.
        gradients: float32, shape (bags, k).
        inverse: each in [0, u).
        is_mean: whether a bag is the mean of its rows, not their sum.
        sums: float32, shape (u, k), changed.
    """
    k = sums.shape[1]
    part = np.empty(k, np.float32)
    for b in range(begins.size):
        share = np.float32(1)
        if is_mean and ends[b] > begins[b] + 1:
            share = np.float32(1) / np.float32(ends[b] - begins[b])
        for j in range(k):
            part[j] = gradients[b, j] * share
        for i in range(begins[b], ends[b]):
            row = sums[inverse[i]]
            for j in range(k):
                row[j] += part[j]
