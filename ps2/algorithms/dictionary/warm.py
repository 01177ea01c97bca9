"""Compile the kernels of dictionary learning before their first use (``python -m ps2.algorithms.dictionary.warm``)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.dictionary import kernels
from ps2.algorithms.dictionary.model import SparseCoder
from ps2.algorithms.training import row_draws
from ps2.ops.guards import readable


def warm() -> None:
    """Call the kernels on two rows, with the argument types that workers, drivers and models use."""
    identity = np.eye(2)
    x = sp.csr_array(identity)
    SparseCoder(identity, 0.1).transform(x)
    entries = readable(x.indptr), readable(x.indices), readable(x.data)
    codes = readable(x.indptr.astype(np.int64)), readable(x.indices.astype(np.int64)), readable(x.data / 2.0)
    kernels.add_sums(*entries, *codes, 1.0, np.zeros((2, 2)), 1.0, np.zeros((2, 2)))
    kernels.update(identity, identity, identity, identity, np.zeros(2, bool))
    row_draws.priorities(row_draws.hashes(x, np.arange(2)), np.ones(2), 0, 0)


if __name__ == "__main__":
    warm()
