"""Random walks, compiled: by one walker after the other where the lists are, and step by step where they are not.

Every random number is made of the seed, the epoch, the vertex where the walk begins, and how many came before it, by
SplitMix64's finaliser (``ps2.ops.draws``): a walk is the same whoever walks it. A neighbour is *proposed* in proportion
to the weights of the edges, and taken or not (node2vec, Grover and Leskovec 2016, section 3.2, by rejection as in
KnightKing, Yang et al. 2019): the chance to be taken is proportional to

    1/p  if it is the vertex t before this one
    1    if there is an edge from t to it
    1/q  else

A proposal uses two numbers: one for the neighbour, one for whether it is taken. Without p and q all are taken. Where
many in a row are not, one is chosen of all neighbours by their exact probabilities: the law is the same, and it ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.list_kernels import ALONE, NOBODY, Integer, draw, is_neighbour
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.kernels import Float64s, Int64s, kernel

Array = npt.NDArray[Any]
Uint64s = npt.NDArray[np.uint64]
# 1/p and 1/q over the largest of 1/p, 1 and 1/q, and 1 over it.
Bias = tuple[float, float, float]
# Of walkers: what their random numbers come of, how many proposals they have had, how long their walks are, the walks;
# and how many of the proposals came before the last step.
Walkers = tuple[Uint64s, Int64s, Int64s, Array, Int64s]

ONE = np.uint64(1)
TWO = np.uint64(2)
TAKEN, NOT_TAKEN, ASK = 1, 0, -1
# Proposals in a row that are not taken, until a neighbour is chosen exactly. If p and q are in [0.25, 4], one of 16 is.
MOST_REFUSED = 256


@kernel
def key_of(seed: np.uint64, epoch: int, vertex: int) -> np.uint64:
    """Return what the random numbers of a walk come of."""
    return scrambled(scrambled(seed + GOLDEN * (np.uint64(epoch) + ONE)) + GOLDEN * (np.uint64(vertex) + ONE))


@kernel
def uniform(key: np.uint64, proposal: int, which: int) -> float:
    """Return one of the two random numbers in [0, 1) of a proposal."""
    drawn = scrambled(key + GOLDEN * (TWO * np.uint64(proposal) + np.uint64(which) + ONE))
    return np.float64(drawn >> np.uint64(11)) * TO_UNIT


@kernel
def verdict(number: float, before: Integer, proposed: Integer, bias: Bias) -> int:
    """Tell whether a proposal is taken: TAKEN, NOT_TAKEN, or ASK whether there is an edge from the vertex before."""
    back, near, far = bias
    if proposed == before:
        return TAKEN if number < back else NOT_TAKEN
    if number < min(near, far):
        return TAKEN
    return ASK if number < max(near, far) else NOT_TAKEN


@kernel
def choose(neighbours: Array, sums: Float64s, near: Array, before: Integer, number: float, bias: Bias) -> int:
    """Choose one of all neighbours of a vertex, by node2vec's probabilities; return its place.

    Args:
        sums: of the weights; of length 0 if all are equal.
        near: of each neighbour, whether there is an edge to it from the vertex ``before``.
        number: random, in [0, 1).
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


@kernel
def _chosen(pack: Array, weights: Float64s, before: Integer, here: Integer, number: float, bias: Bias) -> Integer:
    """Choose one of all neighbours in a graph that is one pack."""
    begin, end = np.int64(pack[here]), np.int64(pack[here + 1])
    near = np.empty(end - begin, np.int64)
    for i in range(begin, end):
        near[i - begin] = is_neighbour(pack, before, pack[i])
    sums = weights[begin:end] if len(weights) else weights
    return np.int64(pack[begin + choose(pack[begin:end], sums, near, before, number, bias)])


@kernel
def walk(pack: Array, weights: Float64s, walkers: Walkers, bias: Bias) -> None:
    """Let walkers that have begun walk to the end, through a graph that is one pack."""
    keys, _, lengths, walks, _ = walkers
    back, near, far = bias
    first_order = back == near == far
    for i in range(len(lengths)):
        key, length, proposal, refused = keys[i], 1, 0, 0
        before: Integer = NOBODY
        here: Integer = np.int64(walks[i, 0])
        while length < walks.shape[1]:
            found = draw(pack, weights, here, uniform(key, proposal, 0))
            proposal += 1
            if found == NOBODY:
                break
            if found <= ALONE:
                found = ALONE - found
            elif length > 1 and not first_order:
                number = uniform(key, proposal - 1, 1)
                told = verdict(number, before, found, bias)
                if told == ASK:
                    told = TAKEN if number < (near if is_neighbour(pack, before, found) else far) else NOT_TAKEN
                if told == NOT_TAKEN:
                    refused += 1
                    if refused < MOST_REFUSED:
                        continue
                    found = _chosen(pack, weights, before, here, uniform(key, proposal, 0), bias)
                    proposal += 1
            before, here, refused = here, found, 0
            walks[i, length] = found
            length += 1
        lengths[i] = length


@kernel
def begin(seed: np.uint64, numbers: Int64s, vertices: int, walkers: Walkers) -> None:
    """Make the keys of walkers.

    Args:
        numbers: of the walkers: epoch * vertices + the vertex where it begins.
        vertices: how many there are.
    """
    for i in range(len(numbers)):
        walkers[0][i] = key_of(seed, numbers[i] // vertices, numbers[i] % vertices)


@kernel
def propose(active: Int64s, walkers: Walkers, here: Int64s, drawn: Float64s) -> None:
    """Write down where walkers are, and the random numbers by which their next neighbours are drawn."""
    keys, proposals, lengths, walks, _ = walkers
    for i in range(len(active)):
        walker = active[i]
        here[i] = walks[walker, lengths[walker] - 1]
        drawn[i] = uniform(keys[walker], proposals[walker], 0)


@kernel
def settle(
    active: Int64s, found: Array, walkers: Walkers, bias: Bias, asked: Int64s, before: Int64s, proposed: Array
) -> tuple[int, int]:
    """Let walkers take what was drawn for them, or not.

    Args:
        active: the walkers; those that go on are moved to its front.
        asked: gets the walkers of whom the servers have to say whether there is an edge from ``before`` to
            ``proposed``.

    Returns:
        How many go on, and how many are asked of.
    """
    keys, proposals, lengths, walks, settled = walkers
    first_order = bias[0] == bias[1] == bias[2]
    going, asking = 0, 0
    for i in range(len(active)):
        walker = active[i]
        next_one = np.int64(found[i])
        proposals[walker] += 1
        if next_one == NOBODY:
            continue
        told = TAKEN
        if next_one <= ALONE:
            next_one = ALONE - next_one
        elif lengths[walker] > 1 and not first_order:
            last = np.int64(walks[walker, lengths[walker] - 2])
            told = verdict(uniform(keys[walker], proposals[walker] - 1, 1), last, next_one, bias)
            if told == ASK:
                asked[asking], before[asking], proposed[asking] = walker, last, next_one
                asking += 1
        if told == TAKEN:
            walks[walker, lengths[walker]] = next_one
            lengths[walker] += 1
            settled[walker] = proposals[walker]
        if told == ASK or lengths[walker] < walks.shape[1]:
            active[going] = walker
            going += 1
    return going, asking


@kernel
def settle_asked(asked: Int64s, edges: Array, proposed: Array, walkers: Walkers, bias: Bias) -> None:
    """Let walkers take what was drawn for them, or not, now that it is known whether there is an edge."""
    keys, proposals, lengths, walks, settled = walkers
    for i in range(len(asked)):
        walker = asked[i]
        if uniform(keys[walker], proposals[walker] - 1, 1) < (bias[1] if edges[i] else bias[2]):
            walks[walker, lengths[walker]] = proposed[i]
            lengths[walker] += 1
            settled[walker] = proposals[walker]


@kernel
def still_walking(active: Int64s, walkers: Walkers, stuck: Int64s) -> tuple[int, int]:
    """Move the walkers whose walks are too short to the front.

    Args:
        stuck: gets those who have to choose exactly, which are not among them.

    Returns:
        How many go on, and how many are stuck.
    """
    going, count = 0, 0
    for i in range(len(active)):
        walker = active[i]
        if walkers[1][walker] - walkers[4][walker] >= MOST_REFUSED:
            stuck[count] = walker
            count += 1
        elif walkers[2][walker] < walkers[3].shape[1]:
            active[going] = walker
            going += 1
    return going, count


@kernel
def number(walks: Array, lengths: Int64s, first: Int64s, width: int) -> None:
    """Put numbers of vertices in the place of their addresses; ``first`` and ``width`` are those of the ``Cut``."""
    for i in range(len(lengths)):
        for j in range(lengths[i]):
            pack = np.int64(walks[i, j]) // width
            walks[i, j] += first[pack] - pack * width
