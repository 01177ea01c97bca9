"""The backward pass of ``nn.EmbeddingBag``, for keys that are already numbered, so that it does not sort them."""

from __future__ import annotations

import numpy as np

from ps2.ops.kernels import Int64s, kernel
from ps2.ops.table import Array


@kernel
def add_bag_gradients(
    begins: Int64s, ends: Int64s, gradients: Array, inverse: Int64s, is_mean: bool, sums: Array
) -> None:
    """Add the gradient of each bag, shape (bags, k), to the ``sums`` of its rows, shape (rows, k), bag by bag.

    Bag b has the rows ``inverse[begins[b]:ends[b]]``; its vector is their mean or their sum.
    """
    k = sums.shape[1]
    row_gradient = np.empty(k, np.float32)
    for b in range(begins.size):
        share = np.float32(1)
        if is_mean and ends[b] > begins[b] + 1:
            share = np.float32(1) / np.float32(ends[b] - begins[b])
        for j in range(k):
            row_gradient[j] = gradients[b, j] * share
        for i in range(begins[b], ends[b]):
            row_sum = sums[inverse[i]]
            for j in range(k):
                row_sum[j] += row_gradient[j]
