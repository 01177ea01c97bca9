"""Compiles the kernels of ``ps2.torch`` ahead of their first use: ``python -m ps2.torch.warm``, without PyTorch."""

from __future__ import annotations

import numpy as np

from ps2.ops.guards import readable
from ps2.torch.bag_kernels import add_bag_gradients


def warm() -> None:
    """Call the kernels on one bag of one key."""
    gradients, zero = readable(np.ones((1, 1), np.float32)), readable(np.zeros(1, np.int64))
    add_bag_gradients(zero, readable(np.ones(1, np.int64)), gradients, zero, False, np.zeros((1, 1), np.float32))


if __name__ == "__main__":
    warm()
