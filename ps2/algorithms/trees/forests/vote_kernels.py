"""Compiled loops that add up what the trees of a random forest say of rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.kernels import kernel


@kernel
def add_shares(nodes: Int32s, out: Float64s, begins: Int64s, shares: Float64s) -> None:
    """Add the shares of the classes in each row's leaves; nodes: shape (n, trees), out: shape (n, classes)."""
    for row in range(nodes.shape[0]):
        for tree in range(nodes.shape[1]):
            at = begins[tree] + nodes[row, tree]
            for c in range(out.shape[1]):
                out[row, c] += shares[at, c]


@kernel
def add_values(nodes: Int32s, out: Float64s, begins: Int64s, values: Float64s) -> None:
    """Set ``out``, shape (n, 1), to the mean of the values of each row's leaves."""
    for row in range(nodes.shape[0]):
        total = 0.0
        for tree in range(nodes.shape[1]):
            total += values[begins[tree] + nodes[row, tree]]
        out[row, 0] = total / nodes.shape[1]


@kernel
def add_votes(
    nodes: Int32s,
    counts: npt.NDArray[np.bool_],
    out: Float64s,
    trees: Int64s,
    begins: Int64s,
    said: Float64s,
) -> None:
    """Add the votes of the leaves of trees that count for a row, and count these trees; votes: shape (nodes, width)."""
    for row in range(nodes.shape[0]):
        for tree in range(nodes.shape[1]):
            if counts[row, tree]:
                trees[row] += 1
                for c in range(out.shape[1]):
                    out[row, c] += said[begins[tree] + nodes[row, tree], c]
