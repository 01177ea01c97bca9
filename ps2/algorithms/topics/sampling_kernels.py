"""Kernels that both samplers of topics share: random numbers of tokens, and changes of words' topic counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]

# The number of low bits for ``nth`` in a token's number within its document; the word is above them.
WORD_BITS = np.uint64(32)
ONE = np.uint64(1)


@inline
def uniform(key: np.uint64, document: int, word: int, nth: int) -> float:
    """Return a uniform random number in [0, 1) for the ``nth`` token of a word in a document."""
    state = scrambled(key + GOLDEN * (np.uint64(document) + ONE))
    state = scrambled(state + GOLDEN * ((np.uint64(word) << WORD_BITS) + np.uint64(nth) + ONE))
    return np.float64(state >> np.uint64(11)) * TO_UNIT


@kernel
def draw_topics(
    words: Int64s, begins: Int64s, documents: Int32s, numbers: Int64s, count: int, key: np.uint64, topics: Array
) -> None:
    """Draw a topic for each token, uniformly among ``count`` topics; other arguments are those of ``Corpus``."""
    for w in range(len(words)):
        previous, nth = -1, 0
        for t in range(begins[w], begins[w + 1]):
            document = documents[t]
            nth = nth + 1 if document == previous else 0
            previous = document
            topics[t] = np.int64(uniform(key, numbers[document], words[w], nth) * count)


@kernel
def changes(begins: Int64s, before: Array, after: Array, zeros: Int32s, out: tuple[Int32s, Array, Int32s]) -> int:
    """List the changes of topic counts, word by word; return their number.

    Args:
        begins: the index of each word's first token; the last element is the number of tokens.
        before: the previous topics of the tokens; empty: the tokens had no topics.
        after: the topics of the tokens.
        zeros: a buffer by topic; it is 0 before and after the call.
        out: the number of changed counts of each word, and the topic and the change of each of these counts. The last
            two arrays have two elements for each token, or one element if ``before`` is empty.
    """
    sizes, topics, deltas = out
    end = 0
    for w in range(len(begins) - 1):
        start = end
        for t in range(begins[w], begins[w + 1]):
            old, new = np.int64(before[t]) if len(before) else np.int64(-1), np.int64(after[t])
            if old != new:
                for topic, change in ((old, -1), (new, 1)):
                    if topic >= 0:
                        if zeros[topic] == 0:
                            topics[end] = topic
                            end += 1
                        zeros[topic] += change
        # A topic may be listed twice; its change is 0 the second time.
        new_end = start
        for i in range(start, end):
            k = int(topics[i])
            if zeros[k] != 0:
                topics[new_end], deltas[new_end] = k, zeros[k]
                new_end += 1
                zeros[k] = 0
        sizes[w] = new_end - start
        end = new_end
    return end


@inline
def first_above(threshold: float, sums: Float64s, count: int) -> int:
    """Return the first index below ``count`` whose running sum exceeds a threshold, or else the last index."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) >> 1
        if sums[middle] > threshold:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def tabulate_terms(alpha: Float64s, table: Any) -> None:
    """Set ``table[k, n]`` to log(gamma(n + alpha_k) / gamma(alpha_k)), for topic k and count n."""
    for k in range(len(alpha)):
        constant = math.lgamma(alpha[k])
        for n in range(table.shape[1]):
            table[k, n] = math.lgamma(n + alpha[k]) - constant
