"""Kernels for topics of new documents: Gibbs sampling, given the topics' words.

A token of word w in document d gets topic k with a probability proportional to (n_dk + alpha_k) phi_wk, where phi_wk =
(n_wk + beta) / (n_k + V beta) and V is the number of words (Griffiths and Steyvers, 2004, section 2, for new
documents). It is split into two terms, as in ``sparse_kernels``:

    n_dk phi_wk     not 0 only for the topics of the document, which are few
    alpha_k phi_wk  not 0 for all topics, but constant: a word's running sums at every GROUP-th topic are stored

So the cost of a token depends on the number of its document's topics, not on the number of all topics.

A document's random numbers are computed from an id, which depends only on its words and counts, not on its position.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics.sampling_kernels import first_above, uniform
from ps2.algorithms.topics.sparse_kernels import GROUP
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.draws import GOLDEN, scrambled
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
# Of words with more tokens than this in a document, ``halve`` does not draw all tokens one by one.
DRAW_LIMIT = 1 << 20
# The indptr, indices and data of a CSR matrix whose rows are documents.
Matrix = tuple[Array, Array, Array]
# n_wk, shape (words, topics); beta; alpha, shape (topics,); 1 / (n_k + V beta), shape (topics,).
Topics = tuple[Array, float, Float64s, Float64s]


@kernel
def sum_groups(indices: Array, topics: Topics, has_sums: Bools, sums: Float64s) -> None:
    """Compute the sums of those words that do not have sums yet.

    Args:
        indices: words, perhaps repeated.
        has_sums: a mask of the words that have sums; updated.
        sums: the sum of alpha_k phi_wk over all topics up to the end of each group, shape (words, groups); updated.
    """
    counts, beta, alpha, scale = topics
    for w in indices:
        if has_sums[w]:
            continue
        row, total = counts[w], 0.0
        for group in range(sums.shape[1]):
            for k in range(group * GROUP, min((group + 1) * GROUP, len(row))):
                total += alpha[k] * (row[k] + beta) * scale[k]
            sums[w, group] = total
        has_sums[w] = True


@kernel
def sample_documents(
    rows: Int64s,
    out: Float64s,
    matrix: Matrix,
    ids: Int64s,
    topics: Topics,
    sums: Float64s,
    key: np.uint64,
    sweeps: tuple[int, int],
) -> None:
    """Estimate theta of documents: the mean of (n_dk + alpha_k) / (n_d + sum of alpha) over sweeps.

    Args:
        out: theta, shape (len(rows), topics); written.
        sums: the output of ``sum_groups`` for all words of the documents.
        sweeps: the number of sweeps over a document's tokens in the burn-in, and after it, for the mean.
    """
    indptr, indices, data = matrix
    counts, beta, alpha, scale = topics
    burn_in, averaged = sweeps
    max_length = 0
    for row in rows:
        max_length = max(max_length, _length(data[indptr[row] : indptr[row + 1]]))
    token_topics = np.empty(max_length, np.int32)
    # The list of the document's topics; the index of each topic in this list; n_dk, the count of each topic.
    listed_topics, list_index = np.empty(len(alpha), np.int32), np.empty(len(alpha), np.int32)
    topic_counts, running = np.zeros(len(alpha), np.int64), np.empty(len(alpha))
    all_alpha = alpha.sum()
    for number, row in enumerate(rows):
        begin, end = indptr[row], indptr[row + 1]
        theta = out[number]
        theta[:] = 0.0
        count = 0
        for sweep in range(burn_in + averaged):
            sweep_key = scrambled(key + GOLDEN * np.uint64(sweep + 1))
            token = 0
            for entry in range(begin, end):
                w = indices[entry]
                word_counts, prior_weight = counts[w], sums[w, sums.shape[1] - 1]
                for nth in range(int(data[entry])):
                    if sweep > 0:
                        count = _exclude(token_topics[token], listed_topics, list_index, topic_counts, count)
                    total = 0.0
                    for i in range(count):
                        k = listed_topics[i]
                        total += topic_counts[k] * (word_counts[k] + beta) * scale[k]
                        running[i] = total
                    threshold = uniform(sweep_key, ids[row], w, nth) * (total + prior_weight)
                    if threshold < total:
                        new = int(listed_topics[first_above(threshold, running, count)])
                    else:
                        new = _draw_by_prior(threshold - total, word_counts, topics, sums[w])
                    if topic_counts[new] == 0:
                        listed_topics[count], list_index[new] = new, count
                        count += 1
                    topic_counts[new] += 1
                    token_topics[token] = new
                    token += 1
            if sweep >= burn_in:
                for i in range(count):
                    theta[listed_topics[i]] += topic_counts[listed_topics[i]]
        length = 0
        for i in range(count):
            length += topic_counts[listed_topics[i]]
            topic_counts[listed_topics[i]] = 0
        for k in range(len(alpha)):
            theta[k] = (theta[k] / averaged + alpha[k]) / (length + all_alpha)


@kernel
def score(rows: Int64s, out: Float64s, matrix: Matrix, topics: Topics, thetas: Float64s) -> None:
    """Compute log p(w | theta, phi), summed over the tokens of each document; ``thetas`` has theta of all rows."""
    indptr, indices, data = matrix
    counts, beta, _, scale = topics
    for number, row in enumerate(rows):
        total, theta = 0.0, thetas[row]
        for entry in range(indptr[row], indptr[row + 1]):
            word_counts, probability = counts[indices[entry]], 0.0
            for k in range(len(theta)):
                probability += theta[k] * (word_counts[k] + beta) * scale[k]
            total += data[entry] * math.log(probability)
        out[number] = total


@kernel
def halve(matrix: Matrix, ids: Int64s, key: np.uint64, second: Float64s) -> None:
    """Draw half of each document's tokens, rounded down; all subsets of this size have the same probability.

    Write the number of drawn tokens of each entry to ``second``, shape (nnz,).
    """
    indptr, indices, data = matrix
    for row in range(len(indptr) - 1):
        begin, end = indptr[row], indptr[row + 1]
        num_left = _length(data[begin:end])
        to_draw = num_left // 2
        # Of a very frequent word, half of the tokens are selected without random numbers.
        for entry in range(begin, end):
            half = int(data[entry]) // 2 if data[entry] > DRAW_LIMIT else 0
            second[entry] = half
            to_draw -= half
            num_left -= 2 * half
        for entry in range(begin, end):
            for nth in range(int(data[entry]) - 2 * int(second[entry])):
                if uniform(key, ids[row], indices[entry], nth) * num_left < to_draw:
                    second[entry] += 1.0
                    to_draw -= 1
                num_left -= 1


@inline
def _length(counts: Array) -> int:
    total = 0
    for n in counts:
        total += int(n)
    return total


@inline
def _exclude(k: int, listed_topics: Int32s, list_index: Int32s, topic_counts: Int64s, count: int) -> int:
    """Subtract 1 from the count of a document's topic; return the number of its topics."""
    topic_counts[k] -= 1
    if topic_counts[k] > 0:
        return count
    last = listed_topics[count - 1]
    listed_topics[list_index[k]], list_index[last] = last, list_index[k]
    return count - 1


@inline
def _draw_by_prior(threshold: float, word_counts: Array, topics: Topics, sums: Float64s) -> int:
    """Return the first topic whose running sum of alpha_k phi_wk exceeds a threshold, or else the last topic."""
    _, beta, alpha, scale = topics
    group = first_above(threshold, sums, len(sums))
    remainder = threshold - sums[group - 1] if group > 0 else threshold
    k, last = group * GROUP, min((group + 1) * GROUP, len(alpha)) - 1
    while k < last:
        weight = alpha[k] * (word_counts[k] + beta) * scale[k]
        if remainder < weight:
            break
        remainder -= weight
        k += 1
    return k
