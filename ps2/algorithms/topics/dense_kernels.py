"""Kernels of collapsed Gibbs sampling with a dense row of topic counts for each document: for few topics.

The probabilities and the counts are those of ``sparse_kernels``, but a document has a row with a count for each topic,
zeros included. So SIMD instructions compute the weights of several topics at once. For a hundred topics this is faster
than a list of the document's topics.

Rows and weights are float32, which represents counts below MAX_TOKENS exactly. Rows are padded with zeros to a multiple
of GROUP; alpha is 0 in the padding, too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ps2.algorithms.topics.sampling_kernels import Array, uniform
from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.ops.kernels import inline_reduction, kernel

# Alpha, beta, V beta (V: the number of words).
Priors = tuple[Float32s, float, float]
# Buffers by topic: phi_wk = (n_wk + beta) / (n_k + V beta) of a word, a token's weights, 1 / (n_k + V beta).
Buffers = tuple[Float32s, Float32s, Float32s]

# A draw adds up the weights of this many topics at a time.
GROUP = 16
# Documents must have fewer tokens than this.
MAX_TOKENS = 1 << 24


@kernel
def count_topics(documents: Int32s, topics: Array, rows: Any) -> None:
    """Count the topics of tokens in their documents' rows."""
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
        tokens: the document and the topic of each token; the tokens of a word in a document are adjacent.
        rows: n_dk, float32, shape (documents, padded topics); updated.
        counts: n_wk, integers, shape (words, topics); updated.
        totals: n_k; updated.
        key: the key of seed and iteration.
    """
    documents, topics = tokens
    alpha, beta, all_beta = prior
    phi, weights, scale = buffers
    count = len(totals)
    for k in range(count):
        scale[k] = 1.0 / (totals[k] + all_beta)
    for w in range(len(words)):
        if begins[w] == begins[w + 1]:
            continue
        row = counts[w]
        for k in range(count):
            phi[k] = np.float32(row[k] + beta) * scale[k]
        previous, nth = -1, 0
        for t in range(begins[w], begins[w + 1]):
            document, old = documents[t], int(topics[t])
            nth = nth + 1 if document == previous else 0
            previous = document
            document_row = rows[document]
            # Most tokens keep their topic, so the word's counts are changed after the draw, if the topic is new.
            document_row[old] -= 1
            old_phi, old_scale = phi[old], 1.0 / (totals[old] - 1 + all_beta)
            phi[old] = (row[old] - 1 + beta) * old_scale
            new = _draw(uniform(key, numbers[document], words[w], nth), document_row, alpha, phi, weights, count)
            document_row[new] += 1
            if new == old:
                phi[old] = old_phi
                continue
            topics[t] = new
            row[old] -= 1
            totals[old] -= 1
            scale[old] = old_scale
            row[new] += 1
            totals[new] += 1
            scale[new] = 1.0 / (totals[new] + all_beta)
            phi[new] = np.float32(row[new] + beta) * scale[new]


# The search is not a function of its own: a call after SIMD instructions would cost half as much as the whole draw.
@inline_reduction
def _draw(fraction: float, row: Any, alpha: Float32s, phi: Float32s, weights: Float32s, count: int) -> int:
    """Draw the first topic whose running sum of weights exceeds a fraction of the total, or else the last topic."""
    for k in range(len(weights)):
        weights[k] = (row[k] + alpha[k]) * phi[k]
    # The sum is computed in a second loop. Whether the first loop, which writes, runs as SIMD instructions depends on
    # the addresses of the arrays. That does not change the weights, but it would change the order of additions.
    total = np.float32(0)
    for k in range(len(weights)):
        total += weights[k]
    remainder = fraction * total
    begin = 0
    while begin + GROUP < count:
        group_weight = np.float32(0)
        for k in range(begin, begin + GROUP):
            group_weight += weights[k]
        if remainder < group_weight:
            break
        remainder -= group_weight
        begin += GROUP
    k, last = begin, min(begin + GROUP, count) - 1
    while k < last and remainder >= weights[k]:
        remainder -= weights[k]
        k += 1
    return k


@kernel
def documents_likelihood(lengths: Int64s, rows: Any, alpha: Float64s, terms: Any) -> float:
    """Compute ``sparse_kernels.documents_likelihood`` from dense rows."""
    all_alpha = alpha.sum()
    constant = math.lgamma(all_alpha)
    total = 0.0
    for document in range(len(lengths)):
        total += constant - math.lgamma(lengths[document] + all_alpha)
        for k in range(len(alpha)):
            n = np.int64(rows[document, k])
            if n == 0:
                continue
            if n < terms.shape[1]:
                total += terms[k, n]
            else:
                total += math.lgamma(n + alpha[k]) - math.lgamma(alpha[k])
    return total


@kernel
def count_counts(rows: Any, small: Array, positions: Int64s) -> int:
    """Compute ``sparse_kernels.count_counts`` from dense rows; positions are indices of the flattened rows."""
    count = 0
    for document in range(len(rows)):
        for k in range(len(small)):
            n = np.int64(rows[document, k])
            if n >= small.shape[1]:
                positions[count] = document * rows.shape[1] + k
                count += 1
            elif n:
                small[k, n] += 1
    return count
