"""Lists of neighbours, compiled: they are filled in any order, put in one, drawn from and searched.

A *pack* is one array of integers. It begins with where the lists of its vertices begin, and where the last one ends;
the lists follow, one behind the other. A pack of n vertices whose lists begin at b is

    b[0] ... b[n]  list of vertex 0  list of vertex 1 ...          b[0] = n + 1

so a vertex is known by the place of its b, which is its *address* if the pack is the only one. What the lists hold are
addresses. While a pack is filled, the place behind a vertex's b says where its list ends so far: it is the b of the
next one as soon as the list is full.

Beside the pack of a weighted graph is an array of the same length: first the weights, then, in each list, their sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.kernels import Float64s, Int64s, kernel

Array = npt.NDArray[Any]
Integer = int | np.int64

# What is drawn from an empty list; and if there is only one neighbour, it is told as ALONE - address.
NOBODY = -1
ALONE = -2
# Shorter lists are searched from their beginning.
SHORT = 16


@kernel
def check_vertices(pack: Array, slots: Int64s) -> int:
    """Return the position of the first slot that is no vertex with a list inside the pack, or -1."""
    for i in range(len(slots)):
        slot = slots[i]
        if slot < 0 or slot + 1 >= pack[0] or pack[slot] > pack[slot + 1] or pack[slot + 1] > len(pack):
            return i
    return -1


@kernel
def append(pack: Array, weights: Float64s, slots: Int64s, neighbours: Array, their: Float64s) -> int:
    """Append to the lists of vertices.

    Args:
        weights: of the pack; of length 0, with ``their``, if there are none.

    Returns:
        The position of the first one that there was no room for, or -1.
    """
    for i in range(len(slots)):
        at = np.int64(pack[slots[i] + 1])
        if at < pack[0] or at >= len(pack):
            return i
        pack[at] = neighbours[i]
        if len(weights):
            weights[at] = their[i]
        pack[slots[i] + 1] = at + 1
    return -1


@kernel
def put_in_order(pack: Array, weights: Float64s) -> None:
    """Sort each list by address and weight, whatever order it was filled in, and sum the weights up."""
    for vertex in range(pack[0] - 1):
        begin, end = np.int64(pack[vertex]), np.int64(pack[vertex + 1])
        if len(weights) == 0:
            pack[begin:end].sort()
            continue
        order = np.argsort(pack[begin:end], kind="mergesort")
        pack[begin:end] = pack[begin:end][order]
        weights[begin:end] = weights[begin:end][order]
        first: Integer = begin
        for i in range(begin + 1, end + 1):
            if i == end or pack[i] != pack[first]:
                if i - first > 1:
                    weights[first:i].sort()
                first = i
        for i in range(begin + 1, end):
            weights[i] += weights[i - 1]


@kernel
def draw(pack: Array, weights: Float64s, vertex: Integer, number: float) -> Integer:
    """Draw a neighbour in proportion to weights, by a random number in [0, 1).

    Returns:
        Its address; NOBODY; or ALONE - address.
    """
    begin, end = np.int64(pack[vertex]), np.int64(pack[vertex + 1])
    if begin == end:
        return NOBODY
    if end - begin == 1:
        return ALONE - np.int64(pack[begin])
    if len(weights) == 0:
        return np.int64(pack[min(begin + np.int64(number * (end - begin)), end - 1)])
    wanted = number * weights[end - 1]
    low, high = begin, end - 1
    while high - low > SHORT:
        middle = (low + high) // 2
        if weights[middle] > wanted:
            high = middle
        else:
            low = middle + 1
    while low < high and weights[low] <= wanted:
        low += 1
    return np.int64(pack[low])


@kernel
def is_neighbour(pack: Array, vertex: Integer, other: Integer) -> bool:
    """Tell whether an address is in the list of a vertex."""
    low, high = np.int64(pack[vertex]), np.int64(pack[vertex + 1])
    while high - low > SHORT:
        middle = (low + high) // 2
        if pack[middle] < other:
            low = middle + 1
        else:
            high = middle + 1
    for i in range(low, high):
        if pack[i] >= other:
            return bool(pack[i] == other)
    return False


@kernel
def draw_many(slots: Int64s, numbers: Float64s, found: Array, pack: Array, weights: Float64s) -> None:
    """Draw a neighbour of each vertex."""
    for i in range(len(slots)):
        found[i] = draw(pack, weights, slots[i], numbers[i])


@kernel
def look_up_many(slots: Int64s, others: Array, found: Array, pack: Array) -> None:
    """Tell of each pair of vertices whether the second is a neighbour of the first: 1, or 0."""
    for i in range(len(slots)):
        found[i] = is_neighbour(pack, slots[i], others[i])
