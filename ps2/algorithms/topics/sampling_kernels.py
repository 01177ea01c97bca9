"""The parts that samplers of topics share, compiled: random numbers of tokens, and changes of words' counts."""

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
def uniform(key: np.uint64, document: int, word: int, nth: int) -> float:
    """Return the random number, in [0, 1), of the ``nth`` token of a word in a document."""
    state = scrambled(key + GOLDEN * (np.uint64(document) + ONE))
    state = scrambled(state + GOLDEN * ((np.uint64(word) << WORD_BITS) + np.uint64(nth) + ONE))
    return np.float64(state >> np.uint64(11)) * TO_UNIT


@kernel
def draw_topics(
    words: Int64s, begins: Int64s, documents: Int32s, numbers: Int64s, count: int, key: np.uint64, topics: Array
) -> None:
    """Give each token any of ``count`` topics, all with the same probability; other arguments are ``Corpus``'s."""
    for w in range(len(words)):
        previous, nth = -1, 0
        for t in range(begins[w], begins[w + 1]):
            document = documents[t]
            nth = nth + 1 if document == previous else 0
            previous = document
            topics[t] = np.int64(uniform(key, numbers[document], words[w], nth) * count)


@kernel
def changes(begins: Int64s, before: Array, after: Array, zeros: Int32s, out: tuple[Int32s, Array, Int32s]) -> int:
    """List the changes of counts, word by word; return their number.

    Args:
        begins: the index of each word's first token in ``before``, and the end.
        before, after: the topics of tokens.
        zeros: a buffer of zeros by topic; they are zeros again afterwards.
        out: the number of each word's changed counts; the topic and the change of each. The latter two have a length of
            two per token.
    """
    sizes, topics, by = out
    end = 0
    for w in range(len(begins) - 1):
        start = end
        for t in range(begins[w], begins[w + 1]):
            old, new = int(before[t]), int(after[t])
            if old != new:
                for k, more in ((old, -1), (new, 1)):
                    if zeros[k] == 0:
                        topics[end] = k
                        end += 1
                    zeros[k] += more
        # A topic may be listed twice; its change is 0 the second time.
        next_ = start
        for i in range(start, end):
            k = int(topics[i])
            if zeros[k] != 0:
                topics[next_], by[next_] = k, zeros[k]
                next_ += 1
                zeros[k] = 0
        sizes[w] = next_ - start
        end = next_
    return end


@kernel
def list_counts(begins: Int64s, topics: Array, zeros: Int32s, out: tuple[Int32s, Array, Int32s]) -> int:
    """List the counts of tokens by topic that are not 0, word by word; return their number.

    Arguments are those of ``changes``; the last two of ``out`` have a length of one per token.
    """
    sizes, listed, times = out
    end = 0
    for w in range(len(begins) - 1):
        start = end
        for t in range(begins[w], begins[w + 1]):
            k = int(topics[t])
            if zeros[k] == 0:
                listed[end] = k
                end += 1
            zeros[k] += 1
        for i in range(start, end):
            k = int(listed[i])
            times[i] = zeros[k]
            zeros[k] = 0
        sizes[w] = end - start
    return end


@inline
def first_above(number: float, sums: Float64s, count: int) -> int:
    """Return the first index whose running sum is above a number, or the last index."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) >> 1
        if sums[middle] > number:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def tabulate_rises(alpha: Float64s, table: Any) -> None:
    """Fill a table, shape (topics, counts), with log(gamma(n + alpha_k) / gamma(alpha_k)) for topic k and count n."""
    for k in range(len(alpha)):
        constant = math.lgamma(alpha[k])
        for n in range(table.shape[1]):
            table[k, n] = math.lgamma(n + alpha[k]) - constant
