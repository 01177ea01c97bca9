"""Compiled adjacency lists and random walks.

On a local graph, walks are computed one after the other; on a graph on servers, all walkers take a step at a time. Each
random number is a hash (SplitMix64's finaliser, ``ps2.ops.draws``) of the seed, the walker's number (``Walks``) and a
counter, so all processes compute the same walks. A step proposes a neighbour with a probability proportional to the
edge's weight, and accepts or rejects it (node2vec, Grover and Leskovec 2016, section 3.2; rejection sampling as in
KnightKing, Yang et al. 2019). The probability of acceptance is proportional to

    1/p  if the proposed neighbour is the previous vertex t
    1    if there is an edge from t to the proposed neighbour
    1/q  otherwise

A proposal uses two random numbers: one draws the neighbour, and one decides on acceptance. With p = q = 1, all
proposals are accepted. After ``MAX_REJECTIONS`` consecutive rejections, the walker chooses among all neighbours by
their exact probabilities. This has the same distribution, and bounds the time of a step.

A *pack* has the adjacency lists of some vertices in CSR form, in one array of integers: the bounds of the lists, then
the lists. A pack of n vertices with bounds b is

    b[0] ... b[n]  list of vertex 0  list of vertex 1 ...          b[0] = n + 1

The elements of the lists are *addresses* of vertices: columns of the matrix; in a graph of one pack, vertex indices.
While a pack is filled, b[v + 1] is the current end of list v. When all lists are full, this is the start of list v + 1.

A weighted graph has a second array of the same length with edge weights. ``sort_lists`` replaces the weights by the
cumulative sums of each list.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.kernels import Float64s, Int64s, inline, kernel

Array = npt.NDArray[Any]
Uint64s = npt.NDArray[np.uint64]
Integer = int | np.int64
# 1/p, 1 and 1/q, divided by the largest of the three.
Bias = tuple[float, float, float]
# Results of ``draw``: the vertex has no neighbour; or a single neighbour, as ``ONLY_NEIGHBOUR - address``.
NO_NEIGHBOUR = -1
ONLY_NEIGHBOUR = -2
# Binary search is faster than linear search in longer lists.
MAX_LINEAR_SEARCH = 16

ONE = np.uint64(1)
TWO = np.uint64(2)
# Decisions on proposals. UNDECIDED: the decision depends on whether an edge exists.
ACCEPTED, REJECTED, UNDECIDED = 1, 0, -1
# The number of consecutive rejections before an exact choice. With p and q in [0.25, 4], at least one of 16 proposals
# is accepted on average.
MAX_REJECTIONS = 256


class Walkers(NamedTuple):
    """The state of walkers: random keys, numbers of proposals, and walks of addresses, shape (walkers, maximum length).

    ``settled_at`` has each walker's number of proposals when it took its last step.
    """

    keys: Uint64s
    proposals: Int64s
    lengths: Int64s
    walks: Array
    settled_at: Int64s


@kernel
def check_vertices(pack: Array, slots: Int64s) -> int:
    """Return the index of the first slot that is not a vertex with a list inside the pack; -1: all slots are."""
    for i in range(len(slots)):
        slot = slots[i]
        if slot < 0 or slot + 1 >= pack[0] or pack[slot] > pack[slot + 1] or pack[slot + 1] > len(pack):
            return i
    return -1


@kernel
def append(pack: Array, weights: Float64s, slots: Int64s, neighbours: Array, edge_weights: Float64s) -> int:
    """Append neighbours to lists of vertices; return the index of the first that would be outside the pack, or -1."""
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
def sort_lists(pack: Array, weights: Float64s) -> None:
    """Sort each list by address and weight, so that the order of insertion has no effect; make weights cumulative."""
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
def draw(pack: Array, weights: Float64s, vertex: Integer, random: float) -> Integer:
    """Draw a neighbour with a probability proportional to the edge's weight, by a random number in [0, 1).

    Return its address, NO_NEIGHBOUR, or ONLY_NEIGHBOUR - address.
    """
    begin, end = np.int64(pack[vertex]), np.int64(pack[vertex + 1])
    if begin == end:
        return NO_NEIGHBOUR
    if end - begin == 1:
        return ONLY_NEIGHBOUR - np.int64(pack[begin])
    if len(weights) == 0:
        return np.int64(pack[min(begin + np.int64(random * (end - begin)), end - 1)])
    target = random * weights[end - 1]
    low, high = begin, end - 1
    while high - low > MAX_LINEAR_SEARCH:
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
    """Return whether the address ``other`` is in the list of a vertex."""
    low, high = np.int64(pack[vertex]), np.int64(pack[vertex + 1])
    while high - low > MAX_LINEAR_SEARCH:
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
    """Set ``neighbours`` to the result of ``draw`` for each vertex; ``numbers`` are random numbers in [0, 1)."""
    for i in range(len(slots)):
        neighbours[i] = draw(pack, weights, slots[i], numbers[i])


@kernel
def find_edges(slots: Int64s, others: Array, are_edges: Array, pack: Array) -> None:
    """For each pair of vertices, set 1 if there is an edge from the first to the second, else 0."""
    for i in range(len(slots)):
        are_edges[i] = is_neighbour(pack, slots[i], others[i])


@kernel
def uniform(key: np.uint64, proposal: int, which: int) -> float:
    """Return the first (``which`` is 0) or second (1) random number of a proposal, in [0, 1)."""
    bits = scrambled(key + GOLDEN * (TWO * np.uint64(proposal) + np.uint64(which) + ONE))
    return np.float64(bits >> np.uint64(11)) * TO_UNIT


@inline
def decide(random: float, previous: Integer, proposed: Integer, bias: Bias) -> int:
    """Return ACCEPTED, REJECTED, or UNDECIDED: it depends on whether there is an edge from ``previous``."""
    back, near, far = bias
    if proposed == previous:
        return ACCEPTED if random < back else REJECTED
    if random < min(near, far):
        return ACCEPTED
    return UNDECIDED if random < max(near, far) else REJECTED


@kernel
def choose(neighbours: Array, sums: Float64s, is_near: Array, previous: Integer, random: float, bias: Bias) -> int:
    """Choose among all neighbours of a vertex by node2vec's probabilities; return the index.

    Args:
        sums: the cumulative weights of the edges; empty for an unweighted graph.
        is_near: whether there is an edge from the previous vertex to each neighbour, 0 or 1.
        random: a random number in [0, 1).
    """
    cumulative = np.empty(len(neighbours))
    total = 0.0
    for i in range(len(neighbours)):
        weight = 1.0
        if len(sums):
            weight = sums[i] - (sums[i - 1] if i else 0.0)
        total += weight * (bias[0] if neighbours[i] == previous else bias[1] if is_near[i] else bias[2])
        cumulative[i] = total
    for i in range(len(neighbours)):
        if cumulative[i] > random * total:
            return i
    return len(neighbours) - 1


@inline
def _choose_in_pack(
    pack: Array, weights: Float64s, previous: Integer, current: Integer, random: float, bias: Bias
) -> Integer:
    """Do ``choose`` for the neighbours of ``current`` in a graph of one pack; return the address."""
    begin, end = np.int64(pack[current]), np.int64(pack[current + 1])
    is_near = np.empty(end - begin, np.int64)
    for i in range(begin, end):
        is_near[i - begin] = is_neighbour(pack, previous, pack[i])
    sums = weights[begin:end] if len(weights) else weights
    return np.int64(pack[begin + choose(pack[begin:end], sums, is_near, previous, random, bias)])


@kernel
def walk(pack: Array, weights: Float64s, walkers: Walkers, bias: Bias) -> None:
    """Compute the walks of walkers in a graph of one pack."""
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
                random = uniform(key, proposal - 1, 1)
                decision = decide(random, previous, neighbour, bias)
                if decision == UNDECIDED:
                    probability = near if is_neighbour(pack, previous, neighbour) else far
                    decision = ACCEPTED if random < probability else REJECTED
                if decision == REJECTED:
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
    """Set the random keys of walkers with these numbers (see ``Walks``)."""
    for i in range(len(numbers)):
        index, vertex = np.uint64(numbers[i] // vertices), np.uint64(numbers[i] % vertices)
        walkers.keys[i] = scrambled(scrambled(seed + GOLDEN * (index + ONE)) + GOLDEN * (vertex + ONE))


@kernel
def propose(active: Int64s, walkers: Walkers, current: Int64s, draws: Float64s) -> None:
    """Set ``current`` to the walkers' vertices, and ``draws`` to the random numbers for drawing a neighbour of each."""
    keys, proposals, lengths, walks, _ = walkers
    for i in range(len(active)):
        walker = active[i]
        current[i] = walks[walker, lengths[walker] - 1]
        draws[i] = uniform(keys[walker], proposals[walker], 0)


@kernel
def settle(
    active: Int64s, neighbours: Array, walkers: Walkers, bias: Bias, pending: Int64s, previous: Int64s, proposed: Array
) -> tuple[int, int]:
    """Accept or reject the proposed ``neighbours``; return the number of unfinished and of undecided walkers.

    Unfinished walkers are moved to the front of ``active``. Undecided walkers are listed in ``pending``; servers then
    look up whether there is an edge from ``previous`` to ``proposed``.
    """
    keys, proposals, lengths, walks, settled_at = walkers
    first_order = bias[0] == bias[1] == bias[2]
    num_active, num_pending = 0, 0
    for i in range(len(active)):
        walker = active[i]
        neighbour = np.int64(neighbours[i])
        proposals[walker] += 1
        if neighbour == NO_NEIGHBOUR:
            continue
        decision = ACCEPTED
        if neighbour <= ONLY_NEIGHBOUR:
            neighbour = ONLY_NEIGHBOUR - neighbour
        elif lengths[walker] > 1 and not first_order:
            last = np.int64(walks[walker, lengths[walker] - 2])
            decision = decide(uniform(keys[walker], proposals[walker] - 1, 1), last, neighbour, bias)
            if decision == UNDECIDED:
                pending[num_pending], previous[num_pending], proposed[num_pending] = walker, last, neighbour
                num_pending += 1
        if decision == ACCEPTED:
            walks[walker, lengths[walker]] = neighbour
            lengths[walker] += 1
            settled_at[walker] = proposals[walker]
        if decision == UNDECIDED or lengths[walker] < walks.shape[1]:
            active[num_active] = walker
            num_active += 1
    return num_active, num_pending


@kernel
def settle_undecided(pending: Int64s, edges: Array, proposed: Array, walkers: Walkers, bias: Bias) -> None:
    """Accept or reject the proposals of undecided walkers; ``edges``: whether their edges exist, 0 or 1."""
    keys, proposals, lengths, walks, settled_at = walkers
    for i in range(len(pending)):
        walker = pending[i]
        if uniform(keys[walker], proposals[walker] - 1, 1) < (bias[1] if edges[i] else bias[2]):
            walks[walker, lengths[walker]] = proposed[i]
            lengths[walker] += 1
            settled_at[walker] = proposals[walker]


@kernel
def list_unfinished(active: Int64s, walkers: Walkers, stuck: Int64s) -> tuple[int, int]:
    """Move unfinished walkers to the front of ``active``, or if rejected too often to ``stuck``; return the counts."""
    num_active, num_stuck = 0, 0
    for i in range(len(active)):
        walker = active[i]
        if walkers.proposals[walker] - walkers.settled_at[walker] >= MAX_REJECTIONS:
            stuck[num_stuck] = walker
            num_stuck += 1
        elif walkers.lengths[walker] < walkers.walks.shape[1]:
            active[num_active] = walker
            num_active += 1
    return num_active, num_stuck


@kernel
def convert_addresses(walks: Array, lengths: Int64s, first_vertices: Int64s, width: int) -> None:
    """Replace addresses by vertex indices; see ``GraphPartitioning`` for ``first_vertices`` and ``width``."""
    for i in range(len(lengths)):
        for j in range(lengths[i]):
            pack = np.int64(walks[i, j]) // width
            walks[i, j] += first_vertices[pack] - pack * width
