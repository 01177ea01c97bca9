"""Adjacency lists, compiled: fill, sort, sample and search them.

A *pack* is the adjacency of some vertices in CSR form, in one array of integers: first the list bounds, then the lists.
A pack of n vertices with bounds b is

    b[0] ... b[n]  list of vertex 0  list of vertex 1 ...          b[0] = n + 1

A vertex's position in b is its *address*, if the graph is one pack. The lists hold addresses. While a pack is filled,
b[v + 1] is the end of what list v holds so far; when the list is full, that is the beginning of the next one.

A weighted graph has a second array of the same length: the edge weights, later each list's cumulative sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.kernels import Float64s, Int64s, inline, kernel

Array = npt.NDArray[Any]
Integer = int | np.int64

# Results of a draw: no neighbour; or, for a vertex with one neighbour, ONLY_NEIGHBOUR - address.
NO_NEIGHBOUR = -1
ONLY_NEIGHBOUR = -2
# Lists up to this length are searched linearly.
SHORT = 16


@kernel
def check_vertices(pack: Array, slots: Int64s) -> int:
    """Return the position of the first slot that is not a vertex with a list inside the pack, or -1."""
    for i in range(len(slots)):
        slot = slots[i]
        if slot < 0 or slot + 1 >= pack[0] or pack[slot] > pack[slot + 1] or pack[slot + 1] > len(pack):
            return i
    return -1


@kernel
def append(pack: Array, weights: Float64s, slots: Int64s, neighbours: Array, their: Float64s) -> int:
    """Append neighbours to the lists of vertices; return the position of the first one without space, or -1. The
    weights of an unweighted graph have length 0."""
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
    """Sort each list by address and weight, so that insertion order does not matter; make weights cumulative."""
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


@inline
def draw(pack: Array, weights: Float64s, vertex: Integer, number: float) -> Integer:
    """Draw a neighbour with probability proportional to edge weight, by a random number in [0, 1); return its address,
    NO_NEIGHBOUR, or ONLY_NEIGHBOUR - address."""
    begin, end = np.int64(pack[vertex]), np.int64(pack[vertex + 1])
    if begin == end:
        return NO_NEIGHBOUR
    if end - begin == 1:
        return ONLY_NEIGHBOUR - np.int64(pack[begin])
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


@inline
def is_neighbour(pack: Array, vertex: Integer, other: Integer) -> bool:
    """Return True if an address is in the list of a vertex."""
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
    """Draw a neighbour for each vertex."""
    for i in range(len(slots)):
        found[i] = draw(pack, weights, slots[i], numbers[i])


@kernel
def look_up_many(slots: Int64s, others: Array, found: Array, pack: Array) -> None:
    """For each pair of vertices, set 1 if the second is a neighbour of the first, else 0."""
    for i in range(len(slots)):
        found[i] = is_neighbour(pack, slots[i], others[i])
