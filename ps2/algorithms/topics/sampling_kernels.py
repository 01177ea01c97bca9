"""What samplers of topics share, compiled: random numbers of tokens, and what counts of words change by."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]

WORD_BITS = np.uint64(32)
ONE = np.uint64(1)


@inline
def uniform(key: np.uint64, document: int, word: int, place: int) -> float:
    """Return the random number, in [0, 1), of the ``place``-th token of a word in a document."""
    state = scrambled(key + GOLDEN * (np.uint64(document) + ONE))
    state = scrambled(state + GOLDEN * ((np.uint64(word) << WORD_BITS) + np.uint64(place) + ONE))
    return np.float64(state >> np.uint64(11)) * TO_UNIT


@kernel
def draw_topics(
    words: Int64s, begins: Int64s, documents: Int32s, numbers: Int64s, count: int, key: np.uint64, topics: Array
) -> None:
    """Give each token any of ``count`` topics, all with the same probability.

    Args:
        words: numbers of the words among all; begins: where each one's tokens begin, and the end.
        documents: of each token, among those of this worker; numbers: of these among all.
        key: of the seed.
    """
    for w in range(len(words)):
        previous, place = -1, 0
        for t in range(begins[w], begins[w + 1]):
            document = documents[t]
            place = place + 1 if document == previous else 0
            previous = document
            topics[t] = np.int64(uniform(key, numbers[document], words[w], place) * count)


@kernel
def changes(begins: Int64s, before: Array, after: Array, room: Int32s, found: tuple[Int32s, Array, Int32s]) -> int:
    """Find by what counts have changed, word by word.

    Args:
        begins: where the tokens of each word begin in ``before``, and the end.
        before, after: topics of tokens.
        room: int32, shape (topics,), zeros before and after.
        found: of each word how many of its counts have changed; of each of these the topic, and the change. The latter
            two have room for two a token.

    Returns:
        How many changes there are.
    """
    sizes, topics, by = found
    end = 0
    for w in range(len(begins) - 1):
        start = end
        for t in range(begins[w], begins[w + 1]):
            old, new = int(before[t]), int(after[t])
            if old != new:
                for k, more in ((old, -1), (new, 1)):
                    if room[k] == 0:
                        topics[end] = k
                        end += 1
                    room[k] += more
        # A topic may be listed twice: what is left of it the second time is 0.
        kept = start
        for i in range(start, end):
            k = int(topics[i])
            if room[k] != 0:
                topics[kept], by[kept] = k, room[k]
                kept += 1
                room[k] = 0
        sizes[w] = kept - start
        end = kept
    return end


@kernel
def list_counts(begins: Int64s, topics: Array, room: Int32s, found: tuple[Int32s, Array, Int32s]) -> int:
    """Count tokens by topic, word by word; return how many counts are not 0.

    Args:
        begins, room: as of ``changes``.
        found: as there; the latter two have room for one a token.
    """
    sizes, held, often = found
    end = 0
    for w in range(len(begins) - 1):
        start = end
        for t in range(begins[w], begins[w + 1]):
            k = int(topics[t])
            if room[k] == 0:
                held[end] = k
                end += 1
            room[k] += 1
        for i in range(start, end):
            k = int(held[i])
            often[i] = room[k]
            room[k] = 0
        sizes[w] = end - start
    return end


@inline
def first_above(drawn: float, so_far: Float64s, count: int) -> int:
    """Return the first place whose sum so far is above a number, or the last one."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) >> 1
        if so_far[middle] > drawn:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def tabulate_rises(alpha: Float64s, table: Any) -> None:
    """Fill a table with log(gamma(n + alpha_k) / gamma(alpha_k)), for topics k and counts n from 0 on.

    Args:
        table: float64, shape (topics, counts).
    """
    for k in range(len(alpha)):
        constant = math.lgamma(alpha[k])
        for n in range(table.shape[1]):
            table[k, n] = math.lgamma(n + alpha[k]) - constant
