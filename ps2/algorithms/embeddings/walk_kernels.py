"""Random walks, compiled: walker by walker on a local graph, step by step on a graph on servers.

Each random number is a hash (SplitMix64's finaliser, ``ps2.ops.draws``) of the seed, the epoch, the walk's first vertex
and a counter: a walk does not depend on where it is computed. A step draws a proposal in proportion to edge weights,
and accepts or rejects it (node2vec, Grover and Leskovec 2016, section 3.2; rejection sampling as in KnightKing, Yang et
al. 2019). The acceptance probability is proportional to

    1/p  if the proposal is the previous vertex t
    1    if there is an edge from t to it
    1/q  else

A proposal uses two random numbers: for the neighbour, and for accepting it. Without p and q all are accepted. After
many rejections in a row, the walker chooses among all neighbours by their exact probabilities: the distribution is the
same, and the walk ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.adjacency_kernels import NO_NEIGHBOUR, ONLY_NEIGHBOUR, Integer, draw, is_neighbour
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.kernels import Float64s, Int64s, inline, kernel

Array = npt.NDArray[Any]
Uint64s = npt.NDArray[np.uint64]
# 1/p, 1 and 1/q, each over the largest of them.
Bias = tuple[float, float, float]
# Random keys of walkers, numbers of their proposals, lengths of their walks, the walks, and the numbers of proposals
# before the last step.
Walkers = tuple[Uint64s, Int64s, Int64s, Array, Int64s]

ONE = np.uint64(1)
TWO = np.uint64(2)
ACCEPTED, REJECTED, UNDECIDED = 1, 0, -1
# Rejections in a row until a neighbour is chosen exactly. With p and q in [0.25, 4] one of 16 proposals is accepted.
MAX_REJECTIONS = 256


@inline
def key_of(seed: np.uint64, epoch: int, vertex: int) -> np.uint64:
    """Return the random key of a walk."""
    return scrambled(scrambled(seed + GOLDEN * (np.uint64(epoch) + ONE)) + GOLDEN * (np.uint64(vertex) + ONE))


@kernel
def uniform(key: np.uint64, proposal: int, which: int) -> float:
    """Return one of a proposal's two random numbers in [0, 1)."""
    drawn = scrambled(key + GOLDEN * (TWO * np.uint64(proposal) + np.uint64(which) + ONE))
    return np.float64(drawn >> np.uint64(11)) * TO_UNIT


@inline
def judge(number: float, before: Integer, proposed: Integer, bias: Bias) -> int:
    """Return ACCEPTED, REJECTED, or UNDECIDED if that depends on an edge from the previous vertex."""
    back, near, far = bias
    if proposed == before:
        return ACCEPTED if number < back else REJECTED
    if number < min(near, far):
        return ACCEPTED
    return UNDECIDED if number < max(near, far) else REJECTED


@kernel
def choose(neighbours: Array, sums: Float64s, near: Array, before: Integer, number: float, bias: Bias) -> int:
    """Choose among all neighbours of a vertex by node2vec's probabilities; return the position.

    Args:
        sums: cumulative weights; of length 0 if the graph is unweighted.
        near: whether there is an edge from the previous vertex to each neighbour.
    """
    chances = np.empty(len(neighbours))
    total = 0.0
    for i in range(len(neighbours)):
        weight = 1.0
        if len(sums):
            weight = sums[i] - (sums[i - 1] if i else 0.0)
        total += weight * (bias[0] if neighbours[i] == before else bias[1] if near[i] else bias[2])
        chances[i] = total
    for i in range(len(neighbours)):
        if chances[i] > number * total:
            return i
    return len(neighbours) - 1


@inline
def _chosen(pack: Array, weights: Float64s, before: Integer, here: Integer, number: float, bias: Bias) -> Integer:
    """Choose among all neighbours, in a graph of one pack."""
    begin, end = np.int64(pack[here]), np.int64(pack[here + 1])
    near = np.empty(end - begin, np.int64)
    for i in range(begin, end):
        near[i - begin] = is_neighbour(pack, before, pack[i])
    sums = weights[begin:end] if len(weights) else weights
    return np.int64(pack[begin + choose(pack[begin:end], sums, near, before, number, bias)])


@kernel
def walk(pack: Array, weights: Float64s, walkers: Walkers, bias: Bias) -> None:
    """Complete walks, in a graph of one pack."""
    keys, _, lengths, walks, _ = walkers
    back, near, far = bias
    first_order = back == near == far
    for i in range(len(lengths)):
        key, length, proposal, refused = keys[i], 1, 0, 0
        before: Integer = NO_NEIGHBOUR
        here: Integer = np.int64(walks[i, 0])
        while length < walks.shape[1]:
            found = draw(pack, weights, here, uniform(key, proposal, 0))
            proposal += 1
            if found == NO_NEIGHBOUR:
                break
            if found <= ONLY_NEIGHBOUR:
                found = ONLY_NEIGHBOUR - found
            elif length > 1 and not first_order:
                number = uniform(key, proposal - 1, 1)
                verdict = judge(number, before, found, bias)
                if verdict == UNDECIDED:
                    verdict = ACCEPTED if number < (near if is_neighbour(pack, before, found) else far) else REJECTED
                if verdict == REJECTED:
                    refused += 1
                    if refused < MAX_REJECTIONS:
                        continue
                    found = _chosen(pack, weights, before, here, uniform(key, proposal, 0), bias)
                    proposal += 1
            before, here, refused = here, found, 0
            walks[i, length] = found
            length += 1
        lengths[i] = length


@kernel
def begin(seed: np.uint64, numbers: Int64s, vertices: int, walkers: Walkers) -> None:
    """Set the random keys of walkers, whose numbers are epoch * vertices + first vertex."""
    for i in range(len(numbers)):
        walkers[0][i] = key_of(seed, numbers[i] // vertices, numbers[i] % vertices)


@kernel
def propose(active: Int64s, walkers: Walkers, here: Int64s, drawn: Float64s) -> None:
    """Set the walkers' current vertices, and the random numbers for drawing their neighbours."""
    keys, proposals, lengths, walks, _ = walkers
    for i in range(len(active)):
        walker = active[i]
        here[i] = walks[walker, lengths[walker] - 1]
        drawn[i] = uniform(keys[walker], proposals[walker], 0)


@kernel
def settle(
    active: Int64s, found: Array, walkers: Walkers, bias: Bias, asked: Int64s, before: Int64s, proposed: Array
) -> tuple[int, int]:
    """Accept or reject the walkers' proposals; return the numbers of walkers that continue, and of undecided ones.

    The former are moved to the front of ``active``. The latter fill ``asked``: the servers look up whether there is an edge
    from ``previous`` to ``proposed``.
    """
    keys, proposals, lengths, walks, settled = walkers
    first_order = bias[0] == bias[1] == bias[2]
    going, asking = 0, 0
    for i in range(len(active)):
        walker = active[i]
        next_one = np.int64(found[i])
        proposals[walker] += 1
        if next_one == NO_NEIGHBOUR:
            continue
        verdict = ACCEPTED
        if next_one <= ONLY_NEIGHBOUR:
            next_one = ONLY_NEIGHBOUR - next_one
        elif lengths[walker] > 1 and not first_order:
            last = np.int64(walks[walker, lengths[walker] - 2])
            verdict = judge(uniform(keys[walker], proposals[walker] - 1, 1), last, next_one, bias)
            if verdict == UNDECIDED:
                asked[asking], before[asking], proposed[asking] = walker, last, next_one
                asking += 1
        if verdict == ACCEPTED:
            walks[walker, lengths[walker]] = next_one
            lengths[walker] += 1
            settled[walker] = proposals[walker]
        if verdict == UNDECIDED or lengths[walker] < walks.shape[1]:
            active[going] = walker
            going += 1
    return going, asking


@kernel
def settle_asked(asked: Int64s, edges: Array, proposed: Array, walkers: Walkers, bias: Bias) -> None:
    """Accept or reject the undecided walkers' proposals, now that their edges are known."""
    keys, proposals, lengths, walks, settled = walkers
    for i in range(len(asked)):
        walker = asked[i]
        if uniform(keys[walker], proposals[walker] - 1, 1) < (bias[1] if edges[i] else bias[2]):
            walks[walker, lengths[walker]] = proposed[i]
            lengths[walker] += 1
            settled[walker] = proposals[walker]


@kernel
def still_walking(active: Int64s, walkers: Walkers, stuck: Int64s) -> tuple[int, int]:
    """Move the walkers whose walks are unfinished to the front, and list those that have to choose exactly in
    ``stuck``; return the numbers of both."""
    going, count = 0, 0
    for i in range(len(active)):
        walker = active[i]
        if walkers[1][walker] - walkers[4][walker] >= MAX_REJECTIONS:
            stuck[count] = walker
            count += 1
        elif walkers[2][walker] < walkers[3].shape[1]:
            active[going] = walker
            going += 1
    return going, count


@kernel
def number(walks: Array, lengths: Int64s, first: Int64s, width: int) -> None:
    """Replace addresses of vertices by their numbers; ``first`` and ``width`` are those of ``GraphPartitioning``."""
    for i in range(len(lengths)):
        for j in range(lengths[i]):
            pack = np.int64(walks[i, j]) // width
            walks[i, j] += first[pack] - pack * width
