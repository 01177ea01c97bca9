"""Compiled loops of exact SHAP values of trees.

S. Lundberg et al., "From local explanations to global understanding with explainable AI for trees", 2020, algorithm 2,
path by path as in R. Mitchell et al., "GPUTreeShap", 2022: a path from the root to a leaf is a game of its own, whose
players are the features of its splits. A player that is absent lets a row pass with the share of the training rows (by
their hessians) that pass its splits; one that is present, if the row itself passes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.routing import category_goes_left, goes_left
from ps2.array_types import Float64s, Int32s
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

# Of inner nodes: a feature's column, the threshold, whether missing values go left, and the node's set in all flags.
SPLIT = np.dtype(
    [
        ("column", np.int32),
        ("default_left", np.bool_),
        ("threshold", np.float64),
        ("set_begin", np.int64),
        ("set_end", np.int64),
    ]
)
# Of paths: where their players begin, what the leaf says, and to which output.
PATH = np.dtype([("players", np.int64), ("end", np.int64), ("value", np.float64), ("output", np.int64)])
# Of players: a feature's column, the share of rows that pass its splits, and where these begin.
PLAYER = np.dtype([("column", np.int32), ("share", np.float64), ("steps", np.int64), ("end", np.int64)])


@inline
def _is_left(value: float, split: Any, set_flags: Bools) -> bool:
    if split.set_end == split.set_begin:
        return goes_left(value, split.threshold, bool(split.default_left))
    return category_goes_left(value, set_flags, split.set_begin, split.set_end, bool(split.default_left))


@kernel
def contributions(
    x: Float64s,
    out: Float64s,
    splits: Array,
    set_flags: Bools,
    paths: Array,
    players: Array,
    step_split: Int32s,
    step_left: Bools,
    most: int,
) -> None:
    """Add the SHAP values of rows to ``out``, shape (rows, outputs, columns)."""
    lefts = np.empty(len(splits), np.bool_)
    passes, weights = np.empty(most, np.bool_), np.empty(most + 1)
    for row in range(x.shape[0]):
        for s in range(len(splits)):
            lefts[s] = _is_left(x[row, splits[s].column], splits[s], set_flags)
        for p in range(len(paths)):
            begin, count = paths[p].players, paths[p].end - paths[p].players
            for i in range(count):
                is_passed = True
                for step in range(players[begin + i].steps, players[begin + i].end):
                    is_passed &= lefts[step_split[step]] == step_left[step]
                passes[i] = is_passed
            _weigh(players, begin, count, passes, weights)
            _add(players, begin, count, passes, weights, paths[p].value, out[row, paths[p].output])


@inline
def _weigh(players: Array, begin: int, count: int, passes: Bools, weights: Float64s) -> None:
    """Set weights[k] to the sum, by Shapley's weights, over all sets of k players of the share that passes."""
    weights[0] = 1.0
    for i in range(count):
        share, size = players[begin + i].share, i + 2.0
        weights[i + 1] = 0.0
        for k in range(i, -1, -1):
            if passes[i]:
                weights[k + 1] += weights[k] * (k + 1) / size
            weights[k] *= share * (i + 1 - k) / size


@inline
def _add(players: Array, begin: int, count: int, passes: Bools, weights: Float64s, value: float, out: Float64s) -> None:
    """Add each player's share of a leaf's value."""
    # That of a player whose splits the row does not pass: it is the same for all of these.
    stopped = 0.0
    for k in range(count):
        stopped -= weights[k] * (count + 1) / (count - k)
    for i in range(count):
        if not passes[i]:
            out[players[begin + i].column] += stopped * value
            continue
        # The weights without the player, summed.
        share, total, rest = players[begin + i].share, 0.0, weights[count]
        for k in range(count - 1, -1, -1):
            without = rest * (count + 1) / (k + 1)
            total += without
            rest = weights[k] - without * share * (count - k) / (count + 1)
        out[players[begin + i].column] += total * (1.0 - share) * value
