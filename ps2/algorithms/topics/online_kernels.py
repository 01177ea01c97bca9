"""Kernels of variational Bayes for topics: infer the topics of a document, given the topics' words.

Hoffman, Blei and Bach, "Online learning for latent Dirichlet allocation" (2010), Algorithm 2 and equations 3 to 5, with
pyspark.ml's stopping rule: until the mean change of a document's gamma is at most 0.001.

A document's weights exp(E[log beta]) are stored topic by topic. A topic with at most 1e-12 tokens of the document
becomes inactive, and later iterations skip it. With a small alpha, most topics become inactive after a few iterations.
When the active topics have converged, the inactive topics are tested again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.draws import GOLDEN, TO_UNIT, TURN, scrambled
from ps2.ops.kernels import Float64s, Int64s, inline, inline_reduction, kernel, reduction

Array = npt.NDArray[Any]
UInt64s = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

# The mean change of gamma at which a document has converged, as in pyspark.ml.
TOLERANCE = 1e-3
# The maximum number of iterations for a document.
MAX_ITERATIONS = 1000
# The maximum number of a document's tokens in an inactive topic.
MAX_INACTIVE = 1e-12
# This is added to the sum of a word's weights, which may be 0, before a division by it.
TINY = 1e-100
# The number of a document's words is padded to a multiple of this: loops over words then fill SIMD registers.
LANES = 16
# Initial values of lambda and gamma have the distribution Gamma(SHAPE, 1 / SHAPE), as in pyspark.ml. They are near 1.
SHAPE = 100.0
# Constants of Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
D = SHAPE - 1 / 3
C = 1 / math.sqrt(9 * D)
# The coefficients of the series in ``digamma``.
C1, C2, C3, C4 = 1 / 24, -37 / 5760, 10313 / 2903040, -5509121 / 1393459200
C5, C6 = 2709398569 / 367873228800, -499769010050743 / 24103053950976000
# Constants of exp in ``exp_digamma``. Adding ROUNDER rounds to an integer, which is then in the lowest bits. log(2) is
# the sum of two parts, for precision. exp(-MAX_EXPONENT) is about 0. E2, E3, ... are the coefficients of exp's series.
ROUNDER = 1.5 * 2.0**52
PER_LOG_2, LOG_2_HIGH, LOG_2_LOW = 1 / math.log(2), 6.93145751953125e-1, 1.42860682030941723212e-6
MAX_EXPONENT = 700.0
E2, E3, E4, E5, E6, E7, E8 = (1 / math.factorial(i) for i in range(2, 9))
EXPONENT_BIAS, FRACTION_BITS = 1023, 52


@inline
def digamma(x: float) -> float:
    """Return digamma of a number above 0; the error is at most 1e-12.

    digamma(x) is digamma(x + 8) minus the sum of 1 / (x + i) for i in 0..7. The sum is computed as one quotient: with
    t = x (x + 7), pairs of its terms are (2 x + 7) divided by t, t + 6, t + 10 and t + 12. exp(digamma(y + 1/2)) is a
    series in 1 / y**2.
    """
    t = x * (x + 7.0)
    above = ((4.0 * t + 84.0) * t + 504.0) * t + 720.0
    b = (2.0 * x + 7.0) * above / ((((t + 28.0) * t + 252.0) * t + 720.0) * t)
    y = x + 7.5
    z = 1.0 / (y * y)
    return math.log(y * (1.0 + z * (C1 + z * (C2 + z * (C3 + z * (C4 + z * (C5 + z * C6))))))) - b


@inline
def exp_digamma(x: float) -> float:
    """Return exp(digamma(x)) of a number above 0; the relative error is at most 1e-8.

    The low precision computation of "MLlib*" (Zhang et al., section 4.2): four steps of the recurrence, where
    ``digamma`` has eight, and fewer terms of both series. There is no branch, so loops become SIMD instructions.
    """
    t = x * (x + 3.0)
    b = min((2.0 * x + 3.0) * (2.0 * t + 2.0) / (t * (t + 2.0)), MAX_EXPONENT)
    y = x + 3.5
    z = 1.0 / (y * y)
    a = y * (1.0 + z * (C1 + z * (C2 + z * (C3 + z * (C4 + z * C5)))))
    # exp(-b) is 2**n exp(r), where n is the whole number nearest to -b / log(2).
    shifted = np.float64(ROUNDER - b * PER_LOG_2)
    n = shifted - ROUNDER
    r = -b - n * LOG_2_HIGH - n * LOG_2_LOW
    e = 1.0 + r * (1.0 + r * (E2 + r * (E3 + r * (E4 + r * (E5 + r * (E6 + r * (E7 + r * E8)))))))
    return a * e * np.int64((shifted.view(np.int64) + EXPONENT_BIAS) << FRACTION_BITS).view(np.float64)


@inline
def draw_near_one(state: np.uint64) -> float:
    """Draw a random number with the distribution Gamma(100, 1/100) from a state (Marsaglia and Tsang)."""
    while True:
        first, second, third = scrambled(state), scrambled(state + GOLDEN), scrambled(state + GOLDEN + GOLDEN)
        radius = math.sqrt(-2.0 * math.log((np.float64(first >> np.uint64(11)) + 1.0) * TO_UNIT))
        x = radius * math.cos(TURN * TO_UNIT * np.float64(second >> np.uint64(11)))
        v = (1.0 + C * x) ** 3
        u = (np.float64(third >> np.uint64(11)) + 1.0) * TO_UNIT
        if v > 0.0 and math.log(u) < 0.5 * x * x + D * (1.0 - v + math.log(v)):
            return D * v / SHAPE
        state = scrambled(third)


@inline
def draw_gamma(seed: np.uint64, gamma: Float64s) -> None:
    """Draw a document's initial gamma from its seed."""
    for k in range(len(gamma)):
        gamma[k] = draw_near_one(scrambled(seed + GOLDEN * np.uint64(k + 1)))


@kernel
def weigh(counts: Array, beta: float, totals: Float64s, weights: Array) -> None:
    """Set weights to exp(E[log beta]) of some words.

    Args:
        counts: lambda minus ``beta``, shape (words, topics).
        totals: lambda's sums over all words, shape (topics,).
    """
    scale = np.empty(len(totals))
    for k in range(len(totals)):
        scale[k] = 1.0 / exp_digamma(totals[k])
    for w in range(counts.shape[0]):
        for k in range(counts.shape[1]):
            weights[w, k] = exp_digamma(counts[w, k] + beta) * scale[k]


@reduction
def infer(
    indptr: Array,
    columns: Array,
    tokens: Array,
    weights: Float64s,
    alpha: Float64s,
    seeds: UInt64s,
    gammas: Float64s,
    stats: Float64s,
    log_shares: Float64s,
    bound: float,
) -> float:
    """Infer the topics of documents; add their terms to the bound of the likelihood, and return it.

    Args:
        indptr, columns, tokens: the documents as a CSR matrix; each has at least one token.
        weights: exp(E[log beta]), shape (words, topics).
        alpha: shape (topics,).
        seeds: the seeds of the documents' initial gammas, which are random numbers near 1; empty: gammas begin with 1.
        gammas: the documents' gammas, shape (documents, topics); written, unless its shape is (0, topics).
        stats: the expected number of tokens of words in topics, divided by ``weights``, is added to it.
        log_shares: E[log theta] is added to it, shape (topics,).
        bound: the bound of earlier documents.
    """
    topics, longest = len(alpha), 0
    for d in range(len(indptr) - 1):
        longest = max(longest, indptr[d + 1] - indptr[d])
    longest = -(-longest // LANES) * LANES
    buffer, counts, sums, ratios = (
        np.empty(topics * longest),
        np.empty(longest),
        np.empty(longest),
        np.empty(longest),
    )
    # ``theta`` is exp(digamma(gamma)). ``order`` lists all topics; the first ``count`` are active.
    gamma, theta, order = np.empty(topics), np.empty(topics), np.empty(topics, np.int64)
    # The expected tokens of active topics, and their exp(digamma(gamma)), in the order of ``order``.
    active_tokens, active_theta = np.empty(topics), np.empty(topics)
    # Theta of inactive topics, exp(digamma(alpha)); its logarithm, digamma(alpha); and log(gamma(alpha)).
    idle_theta, log_idle_theta, log_gamma = np.empty(topics), np.empty(topics), np.empty(topics)
    for k in range(topics):
        idle_theta[k], log_idle_theta[k], log_gamma[k] = exp_digamma(alpha[k]), digamma(alpha[k]), math.lgamma(alpha[k])
    total_alpha = alpha.sum()
    for d in range(len(indptr) - 1):
        begin, num_words = indptr[d], indptr[d + 1] - indptr[d]
        width = -(-num_words // LANES) * LANES
        document_weights = buffer[: topics * width].reshape((topics, width))
        _load_document(
            columns[begin : begin + num_words], tokens[begin : begin + num_words], weights, document_weights, counts
        )
        for k in range(topics):
            gamma[k], theta[k], order[k] = 1.0, 1.0, k
        if len(seeds):
            draw_gamma(seeds[d], gamma)
            for k in range(topics):
                theta[k] = exp_digamma(gamma[k])
        count = topics
        for _ in range(MAX_ITERATIONS):
            _divide(document_weights, counts, theta, order[:count], sums, ratios)
            change, count = _iterate(
                document_weights, ratios, alpha, gamma, theta, idle_theta, order, count, active_tokens, active_theta
            )
            if change <= TOLERANCE * topics:
                _divide(document_weights, counts, theta, order[:count], sums, ratios)
                new_count = _reactivate(document_weights, ratios, theta, order, count)
                if new_count == count:
                    break
                count = new_count
        length = 0.0
        for i in range(num_words):
            length += counts[i]
            bound += counts[i] * math.log(sums[i])
        log_total = digamma(total_alpha + length)
        bound += math.lgamma(total_alpha) - math.lgamma(total_alpha + length) - length * log_total
        for j in range(topics):
            k = order[j]
            if j < count:
                log_share = math.log(theta[k]) - log_total
                bound += (alpha[k] - gamma[k]) * log_share + math.lgamma(gamma[k]) - log_gamma[k]
            else:
                log_share, gamma[k] = log_idle_theta[k] - log_total, alpha[k]
            log_shares[k] += log_share
        for i in range(num_words):
            row = stats[columns[begin + i]]
            for j in range(count):
                row[order[j]] += theta[order[j]] * ratios[i]
        if len(gammas):
            gammas[d] = gamma
    return bound


@inline
def _load_document(
    columns: Array, tokens: Array, weights: Float64s, document_weights: Float64s, counts: Float64s
) -> None:
    """Copy the weights of a document's words, topic by topic, and their numbers of tokens; pad with zeros."""
    for i in range(len(columns)):
        counts[i] = tokens[i]
        row = weights[columns[i]]
        for k in range(document_weights.shape[0]):
            document_weights[k, i] = row[k]
    for i in range(len(columns), document_weights.shape[1]):
        counts[i] = 0.0
        for k in range(document_weights.shape[0]):
            document_weights[k, i] = 0.0


@inline
def _divide(
    document_weights: Float64s, counts: Float64s, theta: Float64s, active: Int64s, sums: Float64s, ratios: Float64s
) -> None:
    """Compute each word's sum of theta times weight over the active topics, and its number of tokens over this sum."""
    width, count = document_weights.shape[1], len(active)
    for i in range(width):
        sums[i] = TINY
    for j in range(0, count - count % 4, 4):
        a, b, c, d = (
            document_weights[active[j]],
            document_weights[active[j + 1]],
            document_weights[active[j + 2]],
            document_weights[active[j + 3]],
        )
        theta_a, theta_b = theta[active[j]], theta[active[j + 1]]
        theta_c, theta_d = theta[active[j + 2]], theta[active[j + 3]]
        for i in range(width):
            sums[i] += (theta_a * a[i] + theta_b * b[i]) + (theta_c * c[i] + theta_d * d[i])
    for j in range(count - count % 4, count):
        a, theta_a = document_weights[active[j]], theta[active[j]]
        for i in range(width):
            sums[i] += theta_a * a[i]
    for i in range(width):
        ratios[i] = counts[i] / sums[i]


@inline_reduction
def _dot(a: Float64s, b: Float64s, width: int) -> float:
    total = 0.0
    for i in range(width):
        total += a[i] * b[i]
    return total


@inline
def _iterate(
    document_weights: Float64s,
    ratios: Float64s,
    alpha: Float64s,
    gamma: Float64s,
    theta: Float64s,
    idle_theta: Float64s,
    order: Int64s,
    count: int,
    active_tokens: Float64s,
    active_theta: Float64s,
) -> tuple[float, int]:
    """Update gamma of the active topics; return the absolute change, and the number of topics that remain active."""
    change = 0.0
    for j in range(count):
        k = order[j]
        active_tokens[j] = theta[k] * _dot(document_weights[k], ratios, document_weights.shape[1])
        change += abs(alpha[k] + active_tokens[j] - gamma[k])
        gamma[k] = active_theta[j] = alpha[k] + active_tokens[j]
    # This is a separate loop because it then becomes SIMD instructions.
    for j in range(count):
        active_theta[j] = exp_digamma(active_theta[j])
    new_count = 0
    for j in range(count):
        k = order[j]
        if active_tokens[j] > MAX_INACTIVE:
            theta[k] = active_theta[j]
            order[j], order[new_count] = order[new_count], k
            new_count += 1
        else:
            theta[k] = idle_theta[k]
    return change, new_count


@inline
def _reactivate(document_weights: Float64s, ratios: Float64s, theta: Float64s, order: Int64s, count: int) -> int:
    """Activate inactive topics that have more than ``MAX_INACTIVE`` tokens; return the number of active topics."""
    for j in range(count, len(order)):
        k = order[j]
        if theta[k] * _dot(document_weights[k], ratios, document_weights.shape[1]) > MAX_INACTIVE:
            order[j], order[count] = order[count], k
            count += 1
    return count


@kernel
def identify(indptr: Array, words: Int64s, tokens: UInt64s, ids: UInt64s) -> None:
    """Compute the id of each document from its words and their counts; ``tokens`` has the bits of float64 counts."""
    for d in range(len(ids)):
        state = np.uint64(0)
        for entry in range(indptr[d], indptr[d + 1]):
            state += scrambled(tokens[entry] + GOLDEN * np.uint64(words[entry] + 1))
        ids[d] = scrambled(state)


@kernel
def draw(ids: UInt64s, key: np.uint64, fraction: float) -> Mask:
    """Return a mask of a batch's documents; each is drawn with probability ``fraction``, by its id and a key."""
    mask = np.empty(len(ids), np.bool_)
    for d in range(len(ids)):
        mask[d] = np.float64(scrambled(key + GOLDEN * ids[d]) >> np.uint64(11)) * TO_UNIT < fraction
    return mask
