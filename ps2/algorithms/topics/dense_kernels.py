"""Collapsed Gibbs sampling with a number for each topic of a document, compiled: for few topics.

The probability is that of ``sparse_kernels``, and so are the counts. But a document has a row of counts, zeros too: to
weigh all topics is two SIMD instructions for every few of them, and nothing is looked up. For a hundred topics that is
quicker than to follow the list of those that the document has.

Rows and what is multiplied with them are float32, in which counts are exact below MAX_TOKENS. They are padded with
zeros to a multiple of GROUP, of which alpha is 0 too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ps2.algorithms.topics.sampling_kernels import Array, uniform
from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.ops.kernels import inline_reduction, kernel

# Alpha, beta, V beta.
Priors = tuple[Float32s, float, float]
# Of all topics: shares of a word, weights of a token, 1 / (n_k + V beta).
Room = tuple[Float32s, Float32s, Float32s]

# Topics that are summed at once when one of them is looked for.
GROUP = 16
# Tokens of a document.
MAX_TOKENS = 1 << 24


@kernel
def count_topics(documents: Int32s, topics: Array, rows: Any) -> None:
    """Add to documents' rows the topics of their tokens."""
    for t in range(len(documents)):
        rows[documents[t], topics[t]] += 1


@kernel
def sample_words(
    words: Int64s,
    begins: Int64s,
    tokens: tuple[Int32s, Array],
    numbers: Int64s,
    rows: Any,
    counts: Array,
    totals: Int64s,
    prior: Priors,
    key: np.uint64,
    room: Room,
) -> None:
    """Give each token of some words a topic anew.

    Args:
        words, begins, numbers: as of ``draw_topics``.
        tokens: of each its document, and its topic; those of a document are side by side within a word.
        rows: float32, shape (documents, padded topics): n_dk.
        counts: integers, shape (words, topics): n_wk.
        totals: shape (topics,): n_k.
        key: of seed and iteration.
    """
    documents, topics = tokens
    alpha, beta, all_beta = prior
    shares, weights, scale = room
    count = len(totals)
    for k in range(count):
        scale[k] = 1.0 / (totals[k] + all_beta)
    for w in range(len(words)):
        if begins[w] == begins[w + 1]:
            continue
        row = counts[w]
        for k in range(count):
            shares[k] = np.float32(row[k] + beta) * scale[k]
        previous, place = -1, 0
        for t in range(begins[w], begins[w + 1]):
            document, old = documents[t], int(topics[t])
            place = place + 1 if document == previous else 0
            previous = document
            mine = rows[document]
            # Most tokens keep their topic: what is known of words is changed for good only if this one does not.
            mine[old] -= 1
            with_it, scaled = shares[old], 1.0 / (totals[old] - 1 + all_beta)
            shares[old] = (row[old] - 1 + beta) * scaled
            new = _draw(uniform(key, numbers[document], words[w], place), mine, alpha, shares, weights, count)
            mine[new] += 1
            if new == old:
                shares[old] = with_it
                continue
            topics[t] = new
            row[old] -= 1
            totals[old] -= 1
            scale[old] = scaled
            row[new] += 1
            totals[new] += 1
            scale[new] = 1.0 / (totals[new] + all_beta)
            shares[new] = np.float32(row[new] + beta) * scale[new]


# One function: a call of another one after SIMD instructions costs half as much as all of this.
@inline_reduction
def _draw(drawn: float, mine: Any, alpha: Float32s, shares: Float32s, weights: Float32s, count: int) -> int:
    """Weigh topics for a token; return that at which the sum of weights so far is above a share of all, or the last."""
    for k in range(len(weights)):
        weights[k] = (mine[k] + alpha[k]) * shares[k]
    # A loop of its own. The first one writes, so where arrays lie in memory decides whether it runs as SIMD
    # instructions; its results are the same either way, but those of a sum would not be.
    total = np.float32(0)
    for k in range(len(weights)):
        total += weights[k]
    left = drawn * total
    begin = 0
    while begin + GROUP < count:
        some = np.float32(0)
        for k in range(begin, begin + GROUP):
            some += weights[k]
        if left < some:
            break
        left -= some
        begin += GROUP
    k, last = begin, min(begin + GROUP, count) - 1
    while k < last and left >= weights[k]:
        left -= weights[k]
        k += 1
    return k


@kernel
def documents_likelihood(lengths: Int64s, rows: Any, alpha: Float64s, table: Any) -> float:
    """Compute what ``sparse_kernels.documents_likelihood`` does."""
    all_alpha = alpha.sum()
    constant = math.lgamma(all_alpha)
    total = 0.0
    for document in range(len(lengths)):
        total += constant - math.lgamma(lengths[document] + all_alpha)
        for k in range(len(alpha)):
            n = np.int64(rows[document, k])
            if n == 0:
                continue
            if n < table.shape[1]:
                total += table[k, n]
            else:
                total += math.lgamma(n + alpha[k]) - math.lgamma(alpha[k])
    return total


@kernel
def count_counts(rows: Any, small: Array, rest: Int64s) -> int:
    """Count in how many documents each topic is so often; args as of ``sparse_kernels.count_counts``, ``rest`` of
    places in all rows, one after the other."""
    found = 0
    for document in range(len(rows)):
        for k in range(len(small)):
            n = np.int64(rows[document, k])
            if n >= small.shape[1]:
                rest[found] = document * rows.shape[1] + k
                found += 1
            elif n:
                small[k, n] += 1
    return found
