"""Adjacency lists and random walks, compiled: walker by walker on a local graph, step by step on a graph on servers.

Each random number is a hash (SplitMix64's finaliser, ``ps2.ops.draws``) of the seed, the epoch, the walk's first vertex
and a counter, so a walk does not depend on where it is computed. A step draws a proposal in proportion to edge weights,
and accepts or rejects it (node2vec, Grover and Leskovec 2016, section 3.2; rejection sampling as in KnightKing, Yang et
al. 2019). The probability to accept it is proportional to

    1/p  if the proposal is the previous vertex t
    1    if there is an edge from t to the proposal
    1/q  else

A proposal uses two random numbers: to draw the neighbour, and to accept it. Without p and q all proposals are accepted.
After many consecutive rejections, the walker chooses among all neighbours by their exact probabilities, which has the
same distribution, and a bounded time.

A *pack* is the adjacency of some vertices in CSR form, in one array of integers: first the list bounds, then the lists.
A pack of n vertices with bounds b is

    b[0] ... b[n]  list of vertex 0  list of vertex 1 ...          b[0] = n + 1

The lists have *addresses* of vertices: if the graph is one pack, their positions in b. While a pack is filled, b[v + 1]
is the current end of list v. When the list is full, this is the start of list v + 1.

A weighted graph has a second array of the same length: the edge weights, later each list's cumulative sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.kernels import Float64s, Int64s, inline, kernel

Array = npt.NDArray[Any]
Uint64s = npt.NDArray[np.uint64]
Integer = int | np.int64
# 1/p, 1 and 1/q, divided by the largest of the three.
Bias = tuple[float, float, float]
# By walker: the random key, the number of proposals, the length of the walk, the walk, and the number of proposals up
# to the last step.
Walkers = tuple[Uint64s, Int64s, Int64s, Array, Int64s]

# Results of a draw: there is no neighbour; or, for a vertex with one neighbour, ONLY_NEIGHBOUR - address.
NO_NEIGHBOUR = -1
ONLY_NEIGHBOUR = -2
# The largest length of a list that is searched linearly.
SHORT = 16

ONE = np.uint64(1)
TWO = np.uint64(2)
ACCEPTED, REJECTED, UNDECIDED = 1, 0, -1
# The number of consecutive rejections before an exact choice. With p and q in [0.25, 4], at least one of 16 proposals
# is accepted on average.
MAX_REJECTIONS = 256


@kernel
def check_vertices(pack: Array, slots: Int64s) -> int:
    """Return the position of the first slot that is not a vertex with a list inside the pack, or -1."""
    for i in range(len(slots)):
        slot = slots[i]
        if slot < 0 or slot + 1 >= pack[0] or pack[slot] > pack[slot + 1] or pack[slot + 1] > len(pack):
            return i
    return -1


@kernel
def append(pack: Array, weights: Float64s, slots: Int64s, neighbours: Array, edge_weights: Float64s) -> int:
    """Append neighbours to the lists of vertices; return the position of the first neighbour without space, or -1."""
    for i in range(len(slots)):
        end = np.int64(pack[slots[i] + 1])
        if end < pack[0] or end >= len(pack):
            return i
        pack[end] = neighbours[i]
        if len(weights):
            weights[end] = edge_weights[i]
        pack[slots[i] + 1] = end + 1
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
    target = number * weights[end - 1]
    low, high = begin, end - 1
    while high - low > SHORT:
        middle = (low + high) // 2
        if weights[middle] > target:
            high = middle
        else:
            low = middle + 1
    while low < high and weights[low] <= target:
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
def draw_many(slots: Int64s, numbers: Float64s, neighbours: Array, pack: Array, weights: Float64s) -> None:
    """Draw a neighbour for each vertex."""
    for i in range(len(slots)):
        neighbours[i] = draw(pack, weights, slots[i], numbers[i])


@kernel
def look_up_many(slots: Int64s, others: Array, are_neighbours: Array, pack: Array) -> None:
    """For each pair of vertices, set 1 if the second is a neighbour of the first, else 0."""
    for i in range(len(slots)):
        are_neighbours[i] = is_neighbour(pack, slots[i], others[i])


@kernel
def uniform(key: np.uint64, proposal: int, which: int) -> float:
    """Return the first (0) or second (1) random number of a proposal, in [0, 1)."""
    bits = scrambled(key + GOLDEN * (TWO * np.uint64(proposal) + np.uint64(which) + ONE))
    return np.float64(bits >> np.uint64(11)) * TO_UNIT


@inline
def judge(number: float, previous: Integer, proposed: Integer, bias: Bias) -> int:
    """Return ACCEPTED, REJECTED, or UNDECIDED if the verdict depends on an edge from the previous vertex."""
    back, near, far = bias
    if proposed == previous:
        return ACCEPTED if number < back else REJECTED
    if number < min(near, far):
        return ACCEPTED
    return UNDECIDED if number < max(near, far) else REJECTED


@kernel
def choose(neighbours: Array, sums: Float64s, near: Array, previous: Integer, number: float, bias: Bias) -> int:
    """Choose among all neighbours of a vertex by node2vec's probabilities; return the position.

    Args:
        sums: cumulative weights; empty for an unweighted graph.
        near: whether there is an edge from the previous vertex to each neighbour.
    """
    chances = np.empty(len(neighbours))
    total = 0.0
    for i in range(len(neighbours)):
        weight = 1.0
        if len(sums):
            weight = sums[i] - (sums[i - 1] if i else 0.0)
        total += weight * (bias[0] if neighbours[i] == previous else bias[1] if near[i] else bias[2])
        chances[i] = total
    for i in range(len(neighbours)):
        if chances[i] > number * total:
            return i
    return len(neighbours) - 1


@inline
def _choose_in_pack(
    pack: Array, weights: Float64s, previous: Integer, current: Integer, number: float, bias: Bias
) -> Integer:
    """Choose among all neighbours of ``current`` in a graph of one pack; return the address."""
    begin, end = np.int64(pack[current]), np.int64(pack[current + 1])
    near = np.empty(end - begin, np.int64)
    for i in range(begin, end):
        near[i - begin] = is_neighbour(pack, previous, pack[i])
    sums = weights[begin:end] if len(weights) else weights
    return np.int64(pack[begin + choose(pack[begin:end], sums, near, previous, number, bias)])


@kernel
def walk(pack: Array, weights: Float64s, walkers: Walkers, bias: Bias) -> None:
    """Complete walks, in a graph of one pack."""
    keys, _, lengths, walks, _ = walkers
    back, near, far = bias
    first_order = back == near == far
    for i in range(len(lengths)):
        key, length, proposal, rejections = keys[i], 1, 0, 0
        previous: Integer = NO_NEIGHBOUR
        current: Integer = np.int64(walks[i, 0])
        while length < walks.shape[1]:
            neighbour = draw(pack, weights, current, uniform(key, proposal, 0))
            proposal += 1
            if neighbour == NO_NEIGHBOUR:
                break
            if neighbour <= ONLY_NEIGHBOUR:
                neighbour = ONLY_NEIGHBOUR - neighbour
            elif length > 1 and not first_order:
                number = uniform(key, proposal - 1, 1)
                verdict = judge(number, previous, neighbour, bias)
                if verdict == UNDECIDED:
                    chance = near if is_neighbour(pack, previous, neighbour) else far
                    verdict = ACCEPTED if number < chance else REJECTED
                if verdict == REJECTED:
                    rejections += 1
                    if rejections < MAX_REJECTIONS:
                        continue
                    neighbour = _choose_in_pack(pack, weights, previous, current, uniform(key, proposal, 0), bias)
                    proposal += 1
            previous, current, rejections = current, neighbour, 0
            walks[i, length] = neighbour
            length += 1
        lengths[i] = length


@kernel
def set_keys(seed: np.uint64, numbers: Int64s, vertices: int, walkers: Walkers) -> None:
    """Set the random keys of walkers, whose numbers are epoch * vertices + first vertex."""
    for i in range(len(numbers)):
        epoch, vertex = np.uint64(numbers[i] // vertices), np.uint64(numbers[i] % vertices)
        walkers[0][i] = scrambled(scrambled(seed + GOLDEN * (epoch + ONE)) + GOLDEN * (vertex + ONE))


@kernel
def propose(active: Int64s, walkers: Walkers, current: Int64s, draws: Float64s) -> None:
    """Set the walkers' current vertices, and the random numbers for drawing their neighbours."""
    keys, proposals, lengths, walks, _ = walkers
    for i in range(len(active)):
        walker = active[i]
        current[i] = walks[walker, lengths[walker] - 1]
        draws[i] = uniform(keys[walker], proposals[walker], 0)


@kernel
def settle(
    active: Int64s, neighbours: Array, walkers: Walkers, bias: Bias, pending: Int64s, previous: Int64s, proposed: Array
) -> tuple[int, int]:
    """Accept or reject the walkers' proposals; return the numbers of unfinished and of undecided walkers.

    Unfinished walkers are moved to the front of ``active``. Undecided walkers fill ``pending``; servers then look up
    whether there is an edge from ``previous`` to ``proposed``.
    """
    keys, proposals, lengths, walks, settled = walkers
    first_order = bias[0] == bias[1] == bias[2]
    num_active, num_pending = 0, 0
    for i in range(len(active)):
        walker = active[i]
        neighbour = np.int64(neighbours[i])
        proposals[walker] += 1
        if neighbour == NO_NEIGHBOUR:
            continue
        verdict = ACCEPTED
        if neighbour <= ONLY_NEIGHBOUR:
            neighbour = ONLY_NEIGHBOUR - neighbour
        elif lengths[walker] > 1 and not first_order:
            last = np.int64(walks[walker, lengths[walker] - 2])
            verdict = judge(uniform(keys[walker], proposals[walker] - 1, 1), last, neighbour, bias)
            if verdict == UNDECIDED:
                pending[num_pending], previous[num_pending], proposed[num_pending] = walker, last, neighbour
                num_pending += 1
        if verdict == ACCEPTED:
            walks[walker, lengths[walker]] = neighbour
            lengths[walker] += 1
            settled[walker] = proposals[walker]
        if verdict == UNDECIDED or lengths[walker] < walks.shape[1]:
            active[num_active] = walker
            num_active += 1
    return num_active, num_pending


@kernel
def settle_undecided(pending: Int64s, edges: Array, proposed: Array, walkers: Walkers, bias: Bias) -> None:
    """Accept or reject the undecided walkers' proposals, now that their edges are known."""
    keys, proposals, lengths, walks, settled = walkers
    for i in range(len(pending)):
        walker = pending[i]
        if uniform(keys[walker], proposals[walker] - 1, 1) < (bias[1] if edges[i] else bias[2]):
            walks[walker, lengths[walker]] = proposed[i]
            lengths[walker] += 1
            settled[walker] = proposals[walker]


@kernel
def still_walking(active: Int64s, walkers: Walkers, stuck: Int64s) -> tuple[int, int]:
    """Move unfinished walkers to the front of ``active``, or to ``stuck`` for an exact choice; return both numbers."""
    num_active, num_stuck = 0, 0
    for i in range(len(active)):
        walker = active[i]
        if walkers[1][walker] - walkers[4][walker] >= MAX_REJECTIONS:
            stuck[num_stuck] = walker
            num_stuck += 1
        elif walkers[2][walker] < walkers[3].shape[1]:
            active[num_active] = walker
            num_active += 1
    return num_active, num_stuck


@kernel
def number_vertices(walks: Array, lengths: Int64s, first: Int64s, width: int) -> None:
    """Replace addresses of vertices by their numbers; ``first`` and ``width`` are those of ``GraphPartitioning``."""
    for i in range(len(lengths)):
        for j in range(lengths[i]):
            pack = np.int64(walks[i, j]) // width
            walks[i, j] += first[pack] - pack * width
