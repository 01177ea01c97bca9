"""Compiled loops that order a worker's ratings: by item group, then by user, then by item."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float32s, Int32s, Int64s
from ps2.ops.kernels import kernel

Array = npt.NDArray[Any]


@kernel
def count_cells(users: Int32s, items: Int32s, groups: Int32s, of_users: int, begins: Int64s) -> None:
    """Set where the ratings of each item group and user begin.

    Args:
        users, items: of the ratings; users are numbered from 0 to ``of_users``.
        groups: the group of each item.
        begins: int64, shape (number of groups * of_users + 1,).
    """
    begins[:] = 0
    for at in range(len(users)):
        begins[groups[items[at]] * of_users + users[at] + 1] += 1
    for cell in range(1, len(begins)):
        begins[cell] += begins[cell - 1]


@kernel
def fill_cells(
    users: Int32s,
    items: Int32s,
    groups: Int32s,
    of_users: int,
    ends: Int64s,
    given: tuple[Float32s, Float32s],
    places: Int32s,
    found: tuple[Int32s, Float32s, Float32s],
) -> None:
    """Put ratings into their cells.

    Args:
        ends: where the next rating of each cell goes; changed.
        given: ratings and weights; weights are empty if there are none.
        places: what to call each item.
        found: items, ratings and weights by cell.
    """
    values, weights = given
    found_items, found_values, found_weights = found
    for at in range(len(users)):
        cell = groups[items[at]] * of_users + users[at]
        place = ends[cell]
        ends[cell] += 1
        found_items[place] = places[items[at]]
        found_values[place] = values[at]
        if len(weights):
            found_weights[place] = weights[at]


@kernel
def sort_cells(begins: Int64s, items: Int32s, values: Float32s, weights: Float32s) -> None:
    """Sort the ratings of each cell by item, rating and weight: the order in which rows arrive makes no difference."""
    for cell in range(len(begins) - 1):
        first, count = begins[cell], begins[cell + 1] - begins[cell]
        gap = 1
        while 3 * gap + 1 < count:
            gap = 3 * gap + 1
        while gap:  # Shell's sort
            for i in range(first + gap, first + count):
                item, value = items[i], values[i]
                weight = weights[i] if len(weights) else np.float32(1)
                j = i
                while j >= first + gap:
                    other = j - gap
                    if items[other] < item or (items[other] == item and values[other] < value):
                        break
                    is_equal = items[other] == item and values[other] == value
                    if is_equal and (not len(weights) or weights[other] <= weight):
                        break
                    items[j], values[j] = items[other], values[other]
                    if len(weights):
                        weights[j] = weights[other]
                    j = other
                items[j], values[j] = item, value
                if len(weights):
                    weights[j] = weight
            gap //= 3
