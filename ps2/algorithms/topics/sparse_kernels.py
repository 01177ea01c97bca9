"""Collapsed Gibbs sampling with lists of the topics that documents have, compiled: for many topics.

The probability of topic k for a token of word w in document d is proportional to

    (n_dk + alpha_k) (n_wk + beta) / (n_k + V beta)               (Griffiths and Steyvers, 2004, equation 5)

with counts without the token itself. Tokens are passed over word by word, so a word's counts are read once. Of each
word the shares (n_wk + beta) / (n_k + V beta) are written down, and the probability is split in two (Yu et al., "A
scalable asynchronous distributed algorithm for topic modeling", 2015, section 3):

    n_dk times the share     over the topics that the document has: few
    alpha_k times the share  over all topics; a token changes two of these weights

The second part has sums by GROUP topics, so a change costs two additions, and a draw looks at one sum a group and at
the topics of one group. Nothing is approximated: the split only says how a draw is made.

A document has a list of its topics and how often each is there, in no order, without zeros.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ps2.algorithms.topics.sampling_kernels import Array, first_above, uniform
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, kernel

# Of documents: where the list of each begins, and how long it is; topics; how often.
Lists = tuple[Int64s, Int32s, Array, Array]
# Of all topics: shares of a word; weights of groups; 1 / (n_k + V beta). And of a list: sums of weights so far.
Room = tuple[Float64s, Float64s, Float64s, Float64s]

# Topics whose weights have a sum of their own.
GROUP = 32


@kernel
def list_topics(documents: Int32s, topics: Array, lists: Lists) -> None:
    """Fill the lists of documents, empty so far, with their tokens' topics."""
    first, length, held, often = lists
    for t in range(len(documents)):
        document = documents[t]
        _include(first[document], document, topics[t], length, held, often)


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
    room: Room,
) -> None:
    """Give each token of some words a topic anew.

    Args:
        words, begins, numbers: as of ``draw_topics``.
        tokens: of each its document, and its topic; those of a document are side by side within a word.
        counts: integers, shape (words, topics): n_wk.
        totals: shape (topics,): n_k.
        prior: alpha, shape (topics,); beta; V beta.
        key: of seed and iteration.
    """
    documents, topics = tokens
    first, length, held, often = lists
    alpha, beta, all_beta = prior
    shares, weights, scale, so_far = room
    for k in range(len(totals)):
        scale[k] = 1.0 / (totals[k] + all_beta)
    for w in range(len(words)):
        if begins[w] == begins[w + 1]:
            continue
        row = counts[w]
        rest = _weigh(row, beta, alpha, scale, shares, weights)
        previous, place = -1, 0
        for t in range(begins[w], begins[w + 1]):
            document, old = documents[t], int(topics[t])
            place = place + 1 if document == previous else 0
            previous = document
            begin, count = first[document], int(length[document])
            mine, times = held[begin : begin + count], often[begin : begin + count]
            # Most tokens keep their topic: what is known is changed for good only if this one does not.
            with_it, scaled = shares[old], 1.0 / (totals[old] - 1 + all_beta)
            without_it = (row[old] - 1 + beta) * scaled
            less = alpha[old] * (without_it - with_it)
            shares[old] = without_it
            total = 0.0
            for i in range(count):
                total += times[i] * shares[mine[i]]
                so_far[i] = total
            total -= without_it  # in which the token itself was counted
            drawn = uniform(key, numbers[document], words[w], place) * (total + (rest + less))
            if drawn < total:
                new = _draw_listed(drawn, old, without_it, mine, so_far)
            else:
                weights[old // GROUP] += less
                new = _draw_weighted(drawn - total, alpha, shares, weights)
                weights[old // GROUP] -= less
            if new == old:
                shares[old] = with_it
                continue
            _exclude(begin, document, _place_of(old, mine), length, held, often)
            _include(begin, document, new, length, held, often)
            topics[t] = new
            row[old] -= 1
            totals[old] -= 1
            scale[old] = scaled
            weights[old // GROUP] += less
            row[new] += 1
            totals[new] += 1
            rest += less + _reweigh(new, row, totals, prior, room)


@inline
def _weigh(row: Array, beta: float, alpha: Float64s, scale: Float64s, shares: Float64s, weights: Float64s) -> float:
    """Write down the shares of a word, and weights of groups; return the sum of these."""
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
def _reweigh(k: int, row: Array, totals: Int64s, prior: tuple[Float64s, float, float], room: Room) -> float:
    """Write down the share of a topic whose counts have changed; return by what the sum of weights has."""
    shares, weights, scale, _ = room
    alpha, beta, all_beta = prior
    scale[k] = 1.0 / (totals[k] + all_beta)
    share = (row[k] + beta) * scale[k]
    change = alpha[k] * (share - shares[k])
    shares[k] = share
    weights[k // GROUP] += change
    return change


@inline
def _draw_listed(drawn: float, old: int, share: float, held: Array, so_far: Float64s) -> int:
    """Return the topic of a document at which the sum of weights up to it is above a number.

    Args:
        old: topic of the token that is to be left out; ``share``: what it has added to sums from there on.
    """
    at = first_above(drawn, so_far, len(held))
    where = _place_of(old, held)
    if at >= where:
        at = where + first_above(drawn + share, so_far[where:], len(held) - where)
    return int(held[at])


@inline
def _place_of(k: int, held: Array) -> int:
    """Return where a topic is in a list that has it."""
    at = 0
    while held[at] != k:
        at += 1
    return at


@inline
def _draw_weighted(left: float, alpha: Float64s, shares: Float64s, weights: Float64s) -> int:
    """Return the topic at which the sum of weights up to it is above a number, or the last one."""
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
def _include(begin: int, document: int, k: int, length: Int32s, held: Array, often: Array) -> None:
    """Count a topic in a document."""
    end = begin + length[document]
    for at in range(begin, end):
        if held[at] == k:
            often[at] += 1
            return
    held[end], often[end] = k, 1
    length[document] += 1


@inline
def _exclude(begin: int, document: int, where: int, length: Int32s, held: Array, often: Array) -> None:
    """Count a topic, of which the place in the list is known, once less."""
    at = begin + where
    often[at] -= 1
    if often[at] == 0:
        length[document] -= 1
        last = begin + length[document]
        held[at], often[at] = held[last], often[last]


@kernel
def documents_likelihood(lengths: Int64s, lists: Lists, alpha: Float64s, table: Any) -> float:
    """Compute log p(z), the part of the joint likelihood that documents have: Griffiths and Steyvers, equation 3.

    Args:
        lengths: tokens of each document.
        table: of ``tabulate_rises``.
    """
    first, length, held, often = lists
    all_alpha = alpha.sum()
    constant = math.lgamma(all_alpha)
    total = 0.0
    for document in range(len(lengths)):
        total += constant - math.lgamma(lengths[document] + all_alpha)
        for at in range(first[document], first[document] + length[document]):
            k, n = int(held[at]), int(often[at])
            if n < table.shape[1]:
                total += table[k, n]
            else:
                total += math.lgamma(n + alpha[k]) - math.lgamma(alpha[k])
    return total


@kernel
def count_counts(lists: Lists, small: Array, rest: Int64s) -> int:
    """Count in how many documents each topic is so often.

    Args:
        small: int64, shape (topics, counts): is added to.
        rest: gets the places of counts that are too large for it.

    Returns:
        How many these are.
    """
    first, length, held, often = lists
    found = 0
    for document in range(len(length)):
        for at in range(first[document], first[document] + length[document]):
            if often[at] < small.shape[1]:
                small[int(held[at]), int(often[at])] += 1
            else:
                rest[found] = at
                found += 1
    return found
