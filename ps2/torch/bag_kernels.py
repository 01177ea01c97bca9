"""The backward pass of ``nn.EmbeddingBag``. The keys are already numbered, so they are not sorted again."""

from __future__ import annotations

import numpy as np

from ps2.ops.kernels import Int64s, kernel
from ps2.ops.table import Array


@kernel
def add_bag_gradients(
    begins: Int64s, ends: Int64s, gradients: Array, inverse: Int64s, is_mean: bool, sums: Array
) -> None:
    """Add the gradient of each bag, shape (bags, k), to ``sums``: the gradients of the distinct keys, shape (keys, k).

    Bag b has the keys with indices ``inverse[begins[b]:ends[b]]``; its vector is the mean or the sum of their vectors.
    """
    k = sums.shape[1]
    key_gradient = np.empty(k, np.float32)
    for b in range(begins.size):
        scale = np.float32(1)
        if is_mean and ends[b] > begins[b] + 1:
            scale = np.float32(1) / np.float32(ends[b] - begins[b])
        for j in range(k):
            key_gradient[j] = gradients[b, j] * scale
        for i in range(begins[b], ends[b]):
            key_sum = sums[inverse[i]]
            for j in range(k):
                key_sum[j] += key_gradient[j]
