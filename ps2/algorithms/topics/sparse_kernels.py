"""Kernels of collapsed Gibbs sampling with a list of each document's topics: for many topics.

The probability of topic k for a token of word w in document d is proportional to

    (n_dk + alpha_k) (n_wk + beta) / (n_k + V beta)               (Griffiths and Steyvers, 2004, equation 5)

where the counts exclude the token itself. V is the number of words. Tokens are sampled word by word, so a word's counts
are read once, and its phi_wk = (n_wk + beta) / (n_k + V beta) are computed once. The probability is split into two
terms (Yu et al., "A scalable asynchronous distributed algorithm for topic modeling", 2015, section 3):

    n_dk phi_wk     not 0 only for the topics of the document, which are few
    alpha_k phi_wk  not 0 for all topics; a new topic of a token changes two of these weights

The weights of the second term are also summed by groups of GROUP topics. So a change costs two additions, and a draw
reads one sum for each group and the weights of one group. The split is exact: it only makes draws faster.

A document has a list of its topics with their counts, unordered and without zeros.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ps2.algorithms.topics.sampling_kernels import Array, first_above, uniform
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, kernel

# The begin and the length of each document's list; the topics and the counts of all lists.
Lists = tuple[Int64s, Int32s, Array, Array]
# Buffers: a word's phi_wk by topic; sums of weights by group; 1 / (n_k + V beta) by topic; running sums along a list.
Buffers = tuple[Float64s, Float64s, Float64s, Float64s]

# The number of topics of a group.
GROUP = 32


@kernel
def list_topics(documents: Int32s, topics: Array, lists: Lists) -> None:
    """Fill the documents' empty lists with the topics of their tokens."""
    starts, sizes, listed_topics, listed_counts = lists
    for t in range(len(documents)):
        document = documents[t]
        _include(starts[document], document, topics[t], sizes, listed_topics, listed_counts)


@kernel
def sample_words(
    words: Int64s,
    begins: Int64s,
    tokens: tuple[Int32s, Array],
    numbers: Int64s,
    lists: Lists,
    counts: Array,
    totals: Int64s,
    prior: tuple[Float64s, float, float],
    key: np.uint64,
    buffers: Buffers,
) -> None:
    """Draw a new topic for each token of some words.

    Args:
        words, begins, numbers: the arguments of ``draw_topics``.
        tokens: the document and the topic of each token; the tokens of a word in a document are adjacent.
        lists: the documents' topic counts n_dk; updated.
        counts: n_wk, integers, shape (words, topics); updated.
        totals: n_k; updated.
        prior: alpha, shape (topics,); beta; V beta.
        key: the key of seed and iteration.
    """
    documents, topics = tokens
    starts, sizes, listed_topics, listed_counts = lists
    alpha, beta, all_beta = prior
    phi, weights, scale, sums = buffers
    for k in range(len(totals)):
        scale[k] = 1.0 / (totals[k] + all_beta)
    for w in range(len(words)):
        if begins[w] == begins[w + 1]:
            continue
        row = counts[w]
        alpha_weight = _weigh(row, beta, alpha, scale, phi, weights)
        previous, nth = -1, 0
        for t in range(begins[w], begins[w + 1]):
            document, old = documents[t], int(topics[t])
            nth = nth + 1 if document == previous else 0
            previous = document
            begin, count = starts[document], int(sizes[document])
            document_topics = listed_topics[begin : begin + count]
            document_counts = listed_counts[begin : begin + count]
            # Most tokens keep their topic, so counts are changed after the draw, if the topic is new.
            old_phi, old_scale = phi[old], 1.0 / (totals[old] - 1 + all_beta)
            phi_without_token = (row[old] - 1 + beta) * old_scale
            old_change = alpha[old] * (phi_without_token - old_phi)
            phi[old] = phi_without_token
            total = 0.0
            for i in range(count):
                total += document_counts[i] * phi[document_topics[i]]
                sums[i] = total
            total -= phi_without_token  # exclude the token itself
            threshold = uniform(key, numbers[document], words[w], nth) * (total + (alpha_weight + old_change))
            if threshold < total:
                new = _draw_listed(threshold, old, phi_without_token, document_topics, sums)
            else:
                weights[old // GROUP] += old_change
                new = _draw_weighted(threshold - total, alpha, phi, weights)
                weights[old // GROUP] -= old_change
            if new == old:
                phi[old] = old_phi
                continue
            _exclude(begin, document, _find_topic(old, document_topics), sizes, listed_topics, listed_counts)
            _include(begin, document, new, sizes, listed_topics, listed_counts)
            topics[t] = new
            row[old] -= 1
            totals[old] -= 1
            scale[old] = old_scale
            weights[old // GROUP] += old_change
            row[new] += 1
            totals[new] += 1
            alpha_weight += old_change + _reweigh(new, row, totals, prior, buffers)


@inline
def _weigh(row: Array, beta: float, alpha: Float64s, scale: Float64s, phi: Float64s, weights: Float64s) -> float:
    """Compute phi of a word, and the sums of the weights alpha_k phi_wk by group; return the sum of all weights."""
    total = 0.0
    for group in range(len(weights)):
        group_weight = 0.0
        for k in range(group * GROUP, min((group + 1) * GROUP, len(row))):
            phi[k] = (row[k] + beta) * scale[k]
            group_weight += alpha[k] * phi[k]
        weights[group] = group_weight
        total += group_weight
    return total


@inline
def _reweigh(k: int, row: Array, totals: Int64s, prior: tuple[Float64s, float, float], buffers: Buffers) -> float:
    """Update phi of a topic whose counts have changed; return the change of the sum of all weights."""
    phi, weights, scale, _ = buffers
    alpha, beta, all_beta = prior
    scale[k] = 1.0 / (totals[k] + all_beta)
    new_phi = (row[k] + beta) * scale[k]
    change = alpha[k] * (new_phi - phi[k])
    phi[k] = new_phi
    weights[k // GROUP] += change
    return change


@inline
def _draw_listed(threshold: float, old: int, token_weight: float, listed_topics: Array, sums: Float64s) -> int:
    """Return the first topic of a document's list whose running sum of weights exceeds a threshold.

    From topic ``old`` on, the running sums include the weight of the token itself, which is excluded.
    """
    index = first_above(threshold, sums, len(listed_topics))
    old_index = _find_topic(old, listed_topics)
    if index >= old_index:
        index = old_index + first_above(threshold + token_weight, sums[old_index:], len(listed_topics) - old_index)
    return int(listed_topics[index])


@inline
def _find_topic(k: int, listed_topics: Array) -> int:
    """Return the index of a topic in a list that contains it."""
    index = 0
    while listed_topics[index] != k:
        index += 1
    return index


@inline
def _draw_weighted(threshold: float, alpha: Float64s, phi: Float64s, weights: Float64s) -> int:
    """Return the first of all topics whose running sum of alpha_k phi_wk exceeds a threshold, or the last topic."""
    remainder, group = threshold, 0
    while group < len(weights) - 1 and remainder >= weights[group]:
        remainder -= weights[group]
        group += 1
    k, last = group * GROUP, min((group + 1) * GROUP, len(phi)) - 1
    while k < last and remainder >= alpha[k] * phi[k]:
        remainder -= alpha[k] * phi[k]
        k += 1
    return k


@inline
def _include(begin: int, document: int, k: int, sizes: Int32s, listed_topics: Array, listed_counts: Array) -> None:
    """Add 1 to the count of a topic in a document."""
    end = begin + sizes[document]
    for index in range(begin, end):
        if listed_topics[index] == k:
            listed_counts[index] += 1
            return
    listed_topics[end], listed_counts[end] = k, 1
    sizes[document] += 1


@inline
def _exclude(begin: int, document: int, index: int, sizes: Int32s, listed_topics: Array, listed_counts: Array) -> None:
    """Subtract 1 from the count at an index of a document's list."""
    position = begin + index
    listed_counts[position] -= 1
    if listed_counts[position] == 0:
        sizes[document] -= 1
        last = begin + sizes[document]
        listed_topics[position], listed_counts[position] = listed_topics[last], listed_counts[last]


@kernel
def documents_likelihood(lengths: Int64s, lists: Lists, alpha: Float64s, terms: Any) -> float:
    """Compute log p(z), the documents' term of the joint likelihood: Griffiths and Steyvers, equation 3.

    ``lengths`` has the number of tokens of each document; ``terms`` is filled by ``tabulate_terms``.
    """
    starts, sizes, listed_topics, listed_counts = lists
    all_alpha = alpha.sum()
    constant = math.lgamma(all_alpha)
    total = 0.0
    for document in range(len(lengths)):
        total += constant - math.lgamma(lengths[document] + all_alpha)
        for index in range(starts[document], starts[document] + sizes[document]):
            k, n = int(listed_topics[index]), int(listed_counts[index])
            if n < terms.shape[1]:
                total += terms[k, n]
            else:
                total += math.lgamma(n + alpha[k]) - math.lgamma(alpha[k])
    return total


@kernel
def count_counts(lists: Lists, small: Array, positions: Int64s) -> int:
    """Count in ``small``, shape (topics, counts), the documents by topic k and by the topic's count n_dk.

    Write the positions of counts that are too large for ``small`` to ``positions``; return their number.
    """
    starts, sizes, listed_topics, listed_counts = lists
    count = 0
    for document in range(len(sizes)):
        for index in range(starts[document], starts[document] + sizes[document]):
            if listed_counts[index] < small.shape[1]:
                small[int(listed_topics[index]), int(listed_counts[index])] += 1
            else:
                positions[count] = index
                count += 1
    return count
