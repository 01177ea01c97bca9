"""Collapsed Gibbs sampling with a list of each document's topics, compiled: for many topics.

The probability of topic k for a token of word w in document d is proportional to

    (n_dk + alpha_k) (n_wk + beta) / (n_k + V beta)               (Griffiths and Steyvers, 2004, equation 5)

with counts without the token itself. Tokens are taken word by word, so a word's counts are read once. Each word's
shares (n_wk + beta) / (n_k + V beta) are computed once, and the probability is split in two (Yu et al., "A scalable
asynchronous distributed algorithm for topic modeling", 2015, section 3):

    n_dk times the share     over the document's topics: few
    alpha_k times the share  over all topics; a token changes two of these weights

The second part has sums by GROUP topics, so a change costs two additions, and a draw reads one sum per group and the
topics of one group. Nothing is approximated: the split only organizes a draw.

A document has a list of its topics with their counts, in no order, without zeros.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ps2.algorithms.topics.sampling_kernels import Array, first_above, uniform
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, kernel

# The begin and the length of each document's list; topics; counts.
Lists = tuple[Int64s, Int32s, Array, Array]
# Buffers: a word's shares by topic; weights of groups; 1 / (n_k + V beta) by topic; running sums of a list's weights.
Buffers = tuple[Float64s, Float64s, Float64s, Float64s]

# The number of topics whose weights have a sum of their own.
GROUP = 32


@kernel
def list_topics(documents: Int32s, topics: Array, lists: Lists) -> None:
    """Fill the empty lists of documents with their tokens' topics."""
    first, length, listed, times = lists
    for t in range(len(documents)):
        document = documents[t]
        _include(first[document], document, topics[t], length, listed, times)


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
        tokens: the document and the topic of each token; a document's tokens of a word are neighbours.
        counts: n_wk, integers, shape (words, topics).
        totals: n_k.
        prior: alpha, shape (topics,); beta; V beta.
        key: the key of seed and iteration.
    """
    documents, topics = tokens
    first, length, listed, times = lists
    alpha, beta, all_beta = prior
    shares, weights, scale, sums = buffers
    for k in range(len(totals)):
        scale[k] = 1.0 / (totals[k] + all_beta)
    for w in range(len(words)):
        if begins[w] == begins[w + 1]:
            continue
        row = counts[w]
        rest = _weigh(row, beta, alpha, scale, shares, weights)
        previous, nth = -1, 0
        for t in range(begins[w], begins[w + 1]):
            document, old = documents[t], int(topics[t])
            nth = nth + 1 if document == previous else 0
            previous = document
            begin, count = first[document], int(length[document])
            own_topics, own_times = listed[begin : begin + count], times[begin : begin + count]
            # Most tokens keep their topic: counts change only if this one does not.
            old_share, old_scale = shares[old], 1.0 / (totals[old] - 1 + all_beta)
            share = (row[old] - 1 + beta) * old_scale
            less = alpha[old] * (share - old_share)
            shares[old] = share
            total = 0.0
            for i in range(count):
                total += own_times[i] * shares[own_topics[i]]
                sums[i] = total
            total -= share  # the sum counts the token itself
            number = uniform(key, numbers[document], words[w], nth) * (total + (rest + less))
            if number < total:
                new = _draw_listed(number, old, share, own_topics, sums)
            else:
                weights[old // GROUP] += less
                new = _draw_weighted(number - total, alpha, shares, weights)
                weights[old // GROUP] -= less
            if new == old:
                shares[old] = old_share
                continue
            _exclude(begin, document, _find_topic(old, own_topics), length, listed, times)
            _include(begin, document, new, length, listed, times)
            topics[t] = new
            row[old] -= 1
            totals[old] -= 1
            scale[old] = old_scale
            weights[old // GROUP] += less
            row[new] += 1
            totals[new] += 1
            rest += less + _reweigh(new, row, totals, prior, buffers)


@inline
def _weigh(row: Array, beta: float, alpha: Float64s, scale: Float64s, shares: Float64s, weights: Float64s) -> float:
    """Set the shares of a word, and the weights of groups; return the sum of the weights."""
    total = 0.0
    for group in range(len(weights)):
        some = 0.0
        for k in range(group * GROUP, min((group + 1) * GROUP, len(row))):
            shares[k] = (row[k] + beta) * scale[k]
            some += alpha[k] * shares[k]
        weights[group] = some
        total += some
    return total


@inline
def _reweigh(k: int, row: Array, totals: Int64s, prior: tuple[Float64s, float, float], buffers: Buffers) -> float:
    """Set the share of a topic whose counts have changed; return the change of the sum of weights."""
    shares, weights, scale, _ = buffers
    alpha, beta, all_beta = prior
    scale[k] = 1.0 / (totals[k] + all_beta)
    share = (row[k] + beta) * scale[k]
    change = alpha[k] * (share - shares[k])
    shares[k] = share
    weights[k // GROUP] += change
    return change


@inline
def _draw_listed(number: float, old: int, share: float, listed: Array, sums: Float64s) -> int:
    """Return a document's first topic whose running sum of weights is above a number.

    The sums from topic ``old`` on count the token itself, whose ``share`` is left out.
    """
    index = first_above(number, sums, len(listed))
    old_index = _find_topic(old, listed)
    if index >= old_index:
        index = old_index + first_above(number + share, sums[old_index:], len(listed) - old_index)
    return int(listed[index])


@inline
def _find_topic(k: int, listed: Array) -> int:
    """Return the index of a topic in a list that has it."""
    index = 0
    while listed[index] != k:
        index += 1
    return index


@inline
def _draw_weighted(left: float, alpha: Float64s, shares: Float64s, weights: Float64s) -> int:
    """Return the first topic whose running sum of weights is above a number, or the last topic."""
    group = 0
    while group < len(weights) - 1 and left >= weights[group]:
        left -= weights[group]
        group += 1
    k, last = group * GROUP, min((group + 1) * GROUP, len(shares)) - 1
    while k < last and left >= alpha[k] * shares[k]:
        left -= alpha[k] * shares[k]
        k += 1
    return k


@inline
def _include(begin: int, document: int, k: int, length: Int32s, listed: Array, times: Array) -> None:
    """Add 1 to the count of a topic in a document."""
    end = begin + length[document]
    for index in range(begin, end):
        if listed[index] == k:
            times[index] += 1
            return
    listed[end], times[end] = k, 1
    length[document] += 1


@inline
def _exclude(begin: int, document: int, index: int, length: Int32s, listed: Array, times: Array) -> None:
    """Subtract 1 from the count at an index of a document's list."""
    position = begin + index
    times[position] -= 1
    if times[position] == 0:
        length[document] -= 1
        last = begin + length[document]
        listed[position], times[position] = listed[last], times[last]


@kernel
def documents_likelihood(lengths: Int64s, lists: Lists, alpha: Float64s, table: Any) -> float:
    """Compute log p(z), the documents' part of the joint likelihood: Griffiths and Steyvers, equation 3.

    ``lengths`` has the tokens of each document; ``table`` is that of ``tabulate_rises``.
    """
    first, length, listed, times = lists
    all_alpha = alpha.sum()
    constant = math.lgamma(all_alpha)
    total = 0.0
    for document in range(len(lengths)):
        total += constant - math.lgamma(lengths[document] + all_alpha)
        for index in range(first[document], first[document] + length[document]):
            k, n = int(listed[index]), int(times[index])
            if n < table.shape[1]:
                total += table[k, n]
            else:
                total += math.lgamma(n + alpha[k]) - math.lgamma(alpha[k])
    return total


@kernel
def count_counts(lists: Lists, small: Array, rest: Int64s) -> int:
    """Add the number of documents by topic and count to ``small``, shape (topics, counts).

    ``rest`` gets the indices of counts that are too large for it; return their number.
    """
    first, length, listed, times = lists
    count = 0
    for document in range(len(length)):
        for index in range(first[document], first[document] + length[document]):
            if times[index] < small.shape[1]:
                small[int(listed[index]), int(times[index])] += 1
            else:
                rest[count] = index
                count += 1
    return count
