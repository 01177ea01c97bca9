"""Compiled loops of the schedule of coordinates, on the servers."""

from __future__ import annotations

import numpy as np

from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.kernels import Float64s, Int64s, kernel
from ps2.ops.table import Array

# How coordinates are drawn: by their changes, the largest changes, by chance, or one after the other.
BY_CHANGE, LARGEST, BY_CHANCE, IN_TURN = range(4)
# Costs of a column, in element additions.
PREDICT_COST = 8
DRAW_COST = 64


@kernel
def predict_some(
    change: Array, weight: Array, gradient: Array, curvature: Array, l1: float, l2: float, screen: float
) -> float:
    """Set changes (``ops.predict_changes``); return max |gradient - l2 weight|."""
    largest = 0.0
    for j in range(change.size):
        u, g, a = np.float64(weight[j]), np.float64(gradient[j]), np.float64(curvature[j])
        largest = max(largest, abs(g - l2 * u))
        bound = screen if u == 0.0 else l1
        pulled = g + a * u
        moved = 0.0
        if pulled > bound:
            moved = pulled - bound
        elif pulled < -bound:
            moved = pulled + bound
        change[j] = (moved / (a + l2) - u) * np.sqrt(a + l2) if a + l2 > 0.0 else 0.0
    return largest


@kernel
def draw_keys(
    change: Array,
    columns: Int64s,
    keys: Float64s,
    seed: np.uint64,
    round: int,
    sizes: tuple[int, int],
    schedule: int,
) -> None:
    """Set keys (``ops.draw_coordinates``); -inf: the coordinate is not drawn.

    Args:
        sizes: number of all columns, and of those that are drawn.
    """
    dim, count = sizes
    state = scrambled(scrambled(seed) + np.uint64(round + 1) * GOLDEN)
    for j in range(change.size):
        square = np.float64(change[j]) * np.float64(change[j])
        if schedule == IN_TURN:
            keys[j] = -np.float64((columns[j] - round * count) % dim)
        elif schedule in (BY_CHANCE, BY_CHANGE):
            drawn = scrambled(state + np.uint64(columns[j] + 1) * GOLDEN)
            unit = (np.float64(drawn >> np.uint64(11)) + 0.5) * TO_UNIT
            if schedule == BY_CHANCE:
                keys[j] = unit
            else:
                keys[j] = np.log(square) - np.log(-np.log(unit)) if square > 0.0 else -np.inf
        else:
            keys[j] = square if square > 0.0 else -np.inf
