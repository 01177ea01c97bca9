"""Collapsed Gibbs sampling with a number for each topic of a document, compiled: for few topics.

The probability is that of ``sparse_kernels``, and so are the counts. But a document has a row of counts, with zeros:
two SIMD instructions weigh several topics, and nothing is looked up. For a hundred topics that is faster than following
the list of the document's topics.

Rows and their factors are float32, in which counts are exact below MAX_TOKENS. They are padded with zeros to a multiple
of GROUP; alpha is 0 there, too.
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
# Buffers by topic: shares of a word, weights of a token, 1 / (n_k + V beta).
Buffers = tuple[Float32s, Float32s, Float32s]

# The number of topics whose weights are summed at once by a search.
GROUP = 16
# The limit of a document's tokens.
MAX_TOKENS = 1 << 24


@kernel
def count_topics(documents: Int32s, topics: Array, rows: Any) -> None:
    """Add the topics of tokens to their documents' rows."""
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
    buffers: Buffers,
) -> None:
    """Draw a new topic for each token of some words.

    Args:
        words, begins, numbers: the arguments of ``draw_topics``.
        tokens: the document and the topic of each token; a document's tokens of a word are neighbours.
        rows: n_dk, float32, shape (documents, padded topics).
        counts: n_wk, integers, shape (words, topics).
        totals: n_k.
        key: the key of seed and iteration.
    """
    documents, topics = tokens
    alpha, beta, all_beta = prior
    shares, weights, scale = buffers
    count = len(totals)
    for k in range(count):
        scale[k] = 1.0 / (totals[k] + all_beta)
    for w in range(len(words)):
        if begins[w] == begins[w + 1]:
            continue
        row = counts[w]
        for k in range(count):
            shares[k] = np.float32(row[k] + beta) * scale[k]
        previous, nth = -1, 0
        for t in range(begins[w], begins[w + 1]):
            document, old = documents[t], int(topics[t])
            nth = nth + 1 if document == previous else 0
            previous = document
            document_row = rows[document]
            # Most tokens keep their topic: the word's counts change only if this one does not.
            document_row[old] -= 1
            old_share, old_scale = shares[old], 1.0 / (totals[old] - 1 + all_beta)
            shares[old] = (row[old] - 1 + beta) * old_scale
            new = _draw(uniform(key, numbers[document], words[w], nth), document_row, alpha, shares, weights, count)
            document_row[new] += 1
            if new == old:
                shares[old] = old_share
                continue
            topics[t] = new
            row[old] -= 1
            totals[old] -= 1
            scale[old] = old_scale
            row[new] += 1
            totals[new] += 1
            scale[new] = 1.0 / (totals[new] + all_beta)
            shares[new] = np.float32(row[new] + beta) * scale[new]


# One function: a call of another one after SIMD instructions costs half as much as all of this.
@inline_reduction
def _draw(share: float, row: Any, alpha: Float32s, shares: Float32s, weights: Float32s, count: int) -> int:
    """Weigh topics; return the first whose sum of weights up to it exceeds a share of the total, or the last topic."""
    for k in range(len(weights)):
        weights[k] = (row[k] + alpha[k]) * shares[k]
    # A loop of its own. The first one writes, so the addresses of arrays decide whether it runs as SIMD instructions;
    # its results are the same either way, but those of a sum would not be.
    total = np.float32(0)
    for k in range(len(weights)):
        total += weights[k]
    left = share * total
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
    """Compute ``sparse_kernels.documents_likelihood`` from rows."""
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
    """Compute ``sparse_kernels.count_counts`` from rows; ``rest`` gets positions in the flattened rows."""
    count = 0
    for document in range(len(rows)):
        for k in range(len(small)):
            n = np.int64(rows[document, k])
            if n >= small.shape[1]:
                rest[count] = document * rows.shape[1] + k
                count += 1
            elif n:
                small[k, n] += 1
    return count
