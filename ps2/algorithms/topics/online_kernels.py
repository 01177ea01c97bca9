"""Variational Bayes for topics, compiled: what a document tells of its topics, given the topics' words.

Hoffman, Blei and Bach, "Online learning for latent Dirichlet allocation" (2010), Algorithm 2 and equations 3 to 5, to
the same end as pyspark.ml's: until the mean change of a document's gamma is 0.001 at most.

A document's weights exp(E[log beta]) lie topic by topic, so a topic that the document has nothing of, to 1e-12 of a
token, is passed over from then on: with a small alpha most are, after a few turns. When the others have come to rest,
all are looked at once more.
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

# Mean change of gamma at which a document is done, as in pyspark.ml; and turns that it takes at most.
REST = 1e-3
MAX_TURNS = 1000
# Tokens of a document at which a topic is none of its.
NOTHING = 1e-12
# Added to what a word's weights sum up to, which may be 0.
LEAST = 1e-100
# A document's words lie in room for a multiple of these, so that loops over them are of whole SIMD registers.
LANES = 16
# Gamma's shape, and inverse scale, of what lambda and gamma begin with, as in pyspark.ml: near 1.
SHAPE = 100.0
# Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
D = SHAPE - 1 / 3
C = 1 / math.sqrt(9 * D)
# Coefficients of digamma's series.
C1, C2, C3, C4 = 1 / 24, -37 / 5760, 10313 / 2903040, -5509121 / 1393459200
C5, C6 = 2709398569 / 367873228800, -499769010050743 / 24103053950976000
# Of exp: a sum with this has its whole part in the lowest bits; log(2) in two parts; where it is as good as 0.
WHOLE = 1.5 * 2.0**52
PER_LOG_2, LOG_2_HIGH, LOG_2_LOW = 1 / math.log(2), 6.93145751953125e-1, 1.42860682030941723212e-6
MAX_EXPONENT = 700.0
E2, E3, E4, E5, E6, E7, E8 = (1 / math.factorial(i) for i in range(2, 9))
EXPONENT_BIAS, FRACTION_BITS = 1023, 52


@inline
def digamma(x: float) -> float:
    """Return digamma of a number above 0, to 1e-12.

    digamma(x) is digamma(x + 8) less the sum of 1 / (x + i) for i in 0..7, here one quotient: with t = x (x + 7) its
    four pairs are (2 x + 7) / t, / (t + 6), / (t + 10) and / (t + 12). exp(digamma(y + 1/2)) is a series in 1 / y**2.
    """
    t = x * (x + 7.0)
    above = ((4.0 * t + 84.0) * t + 504.0) * t + 720.0
    b = (2.0 * x + 7.0) * above / ((((t + 28.0) * t + 252.0) * t + 720.0) * t)
    y = x + 7.5
    z = 1.0 / (y * y)
    return math.log(y * (1.0 + z * (C1 + z * (C2 + z * (C3 + z * (C4 + z * (C5 + z * C6))))))) - b


@inline
def exp_digamma(x: float) -> float:
    """Return exp(digamma(x)) of a number above 0; the relative error is 1e-8 at most.

    The low precision computation of "MLlib*" (Zhang et al., section 4.2): four steps of the recurrence, where
    ``digamma`` has eight, and fewer terms of both series. There is no branch, so loops become SIMD instructions.
    """
    t = x * (x + 3.0)
    b = min((2.0 * x + 3.0) * (2.0 * t + 2.0) / (t * (t + 2.0)), MAX_EXPONENT)
    y = x + 3.5
    z = 1.0 / (y * y)
    a = y * (1.0 + z * (C1 + z * (C2 + z * (C3 + z * (C4 + z * C5)))))
    # exp(-b) is 2**n exp(r), n the whole number that is nearest.
    shifted = np.float64(WHOLE - b * PER_LOG_2)
    n = shifted - WHOLE
    r = -b - n * LOG_2_HIGH - n * LOG_2_LOW
    e = 1.0 + r * (1.0 + r * (E2 + r * (E3 + r * (E4 + r * (E5 + r * (E6 + r * (E7 + r * E8)))))))
    return a * e * np.int64((shifted.view(np.int64) + EXPONENT_BIAS) << FRACTION_BITS).view(np.float64)


@inline
def near_one(state: np.uint64) -> float:
    """Return a number that is distributed as Gamma(100, 1/100), by the state that it is drawn of."""
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
def begin_gamma(seed: np.uint64, gamma: Float64s) -> None:
    """Set what a document's gamma begins with, by a seed of its own."""
    for k in range(len(gamma)):
        gamma[k] = near_one(scrambled(seed + GOLDEN * np.uint64(k + 1)))


@kernel
def weigh(counts: Array, beta: float, totals: Float64s, weights: Array) -> None:
    """Set weights to exp(E[log beta]) of some words.

    Args:
        counts: shape (words, topics): expected tokens; with ``beta`` added they are lambda.
        totals: shape (topics,): lambda's sums over all words.
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
) -> float:
    """Find the topics of documents, and what they tell of the topics' words.

    Args:
        indptr, columns, tokens: the documents, rows of a sparse matrix; each has a token at least.
        weights: shape (words, topics): exp(E[log beta]).
        alpha: shape (topics,).
        seeds: shape (documents,): a gamma begins with random numbers about 1, drawn of this; or (0,): with 1.
        gammas: shape (documents, topics), or (0, topics): gets each one's gamma.
        stats: shape (words, topics): the expected tokens of words in topics are added, yet to be multiplied by weights.
        log_shares: shape (topics,): E[log theta] is added.

    Returns:
        The documents' part of the bound of their likelihood.
    """
    topics, longest = len(alpha), 0
    for d in range(len(indptr) - 1):
        longest = max(longest, indptr[d + 1] - indptr[d])
    longest = -(-longest // LANES) * LANES
    room, given, sums, ratios = np.empty(topics * longest), np.empty(longest), np.empty(longest), np.empty(longest)
    gamma, theta, order = np.empty(topics), np.empty(topics), np.empty(topics, np.int64)
    # Of topics that are kept: tokens, and exp(digamma(gamma)).
    mine, fresh = np.empty(topics), np.empty(topics)
    # Of topics that a document has nothing of: exp(digamma(alpha)), digamma(alpha); and log(gamma(alpha)).
    rest, log_rest, log_gamma = np.empty(topics), np.empty(topics), np.empty(topics)
    for k in range(topics):
        rest[k], log_rest[k], log_gamma[k] = exp_digamma(alpha[k]), digamma(alpha[k]), math.lgamma(alpha[k])
    all_alpha = alpha.sum()
    bound = 0.0
    for d in range(len(indptr) - 1):
        begin, size = indptr[d], indptr[d + 1] - indptr[d]
        width = -(-size // LANES) * LANES
        own = room[: topics * width].reshape((topics, width))
        _lay_out(columns[begin : begin + size], tokens[begin : begin + size], weights, own, given)
        for k in range(topics):
            gamma[k], theta[k], order[k] = 1.0, 1.0, k
        if len(seeds):
            begin_gamma(seeds[d], gamma)
            for k in range(topics):
                theta[k] = exp_digamma(gamma[k])
        count = topics
        for _ in range(MAX_TURNS):
            _divide(own, given, theta, order[:count], sums, ratios)
            change, count = _turn(own, ratios, alpha, gamma, theta, rest, order, count, mine, fresh)
            if change <= REST * topics:
                _divide(own, given, theta, order[:count], sums, ratios)
                found = _wake(own, ratios, theta, order, count)
                if found == count:
                    break
                count = found
        length = 0.0
        for i in range(size):
            length += given[i]
            bound += given[i] * math.log(sums[i])
        log_all = digamma(all_alpha + length)
        bound += math.lgamma(all_alpha) - math.lgamma(all_alpha + length) - length * log_all
        for j in range(topics):
            k = order[j]
            if j < count:
                log_share = math.log(theta[k]) - log_all
                bound += (alpha[k] - gamma[k]) * log_share + math.lgamma(gamma[k]) - log_gamma[k]
            else:
                log_share, gamma[k] = log_rest[k] - log_all, alpha[k]
            log_shares[k] += log_share
        for i in range(size):
            row = stats[columns[begin + i]]
            for j in range(count):
                row[order[j]] += theta[order[j]] * ratios[i]
        if len(gammas):
            gammas[d] = gamma
    return bound


@inline
def _lay_out(columns: Array, tokens: Array, weights: Float64s, own: Float64s, given: Float64s) -> None:
    """Copy the weights of a document's words, topic by topic, and its tokens; room that is left has none."""
    for i in range(len(columns)):
        given[i] = tokens[i]
        row = weights[columns[i]]
        for k in range(own.shape[0]):
            own[k, i] = row[k]
    for i in range(len(columns), own.shape[1]):
        given[i] = 0.0
        for k in range(own.shape[0]):
            own[k, i] = 0.0


@inline
def _divide(own: Float64s, given: Float64s, theta: Float64s, kept: Int64s, sums: Float64s, ratios: Float64s) -> None:
    """Sum up the weights of each word in the topics that are kept, and divide its tokens by that."""
    width, count = own.shape[1], len(kept)
    for i in range(width):
        sums[i] = LEAST
    for j in range(0, count - count % 4, 4):
        a, b, c, d = own[kept[j]], own[kept[j + 1]], own[kept[j + 2]], own[kept[j + 3]]
        of_a, of_b, of_c, of_d = theta[kept[j]], theta[kept[j + 1]], theta[kept[j + 2]], theta[kept[j + 3]]
        for i in range(width):
            sums[i] += (of_a * a[i] + of_b * b[i]) + (of_c * c[i] + of_d * d[i])
    for j in range(count - count % 4, count):
        a, of_a = own[kept[j]], theta[kept[j]]
        for i in range(width):
            sums[i] += of_a * a[i]
    for i in range(width):
        ratios[i] = given[i] / sums[i]


@inline_reduction
def _dot(a: Float64s, b: Float64s, width: int) -> float:
    total = 0.0
    for i in range(width):
        total += a[i] * b[i]
    return total


@inline
def _turn(
    own: Float64s,
    ratios: Float64s,
    alpha: Float64s,
    gamma: Float64s,
    theta: Float64s,
    rest: Float64s,
    order: Int64s,
    count: int,
    mine: Float64s,
    fresh: Float64s,
) -> tuple[float, int]:
    """Compute gamma anew of the topics that are kept; return by how much it has changed, and how many are kept."""
    change = 0.0
    for j in range(count):
        k = order[j]
        mine[j] = theta[k] * _dot(own[k], ratios, own.shape[1])
        change += abs(alpha[k] + mine[j] - gamma[k])
        gamma[k] = fresh[j] = alpha[k] + mine[j]
    # On its own, this loop becomes SIMD instructions.
    for j in range(count):
        fresh[j] = exp_digamma(fresh[j])
    kept = 0
    for j in range(count):
        k = order[j]
        if mine[j] > NOTHING:
            theta[k] = fresh[j]
            order[j], order[kept] = order[kept], k
            kept += 1
        else:
            theta[k] = rest[k]
    return change, kept


@inline
def _wake(own: Float64s, ratios: Float64s, theta: Float64s, order: Int64s, count: int) -> int:
    """Take back the topics that the document has something of by now; return how many are kept."""
    for j in range(count, len(order)):
        k = order[j]
        if theta[k] * _dot(own[k], ratios, own.shape[1]) > NOTHING:
            order[j], order[count] = order[count], k
            count += 1
    return count


@kernel
def identify(indptr: Array, words: Int64s, tokens: UInt64s, ids: UInt64s) -> None:
    """Set each document's id, made of its words and how often they come, in any order, wherever it lies.

    Args:
        words: numbers of the entries' words among all.
        tokens: bits of float64.
    """
    for d in range(len(ids)):
        state = np.uint64(0)
        for at in range(indptr[d], indptr[d + 1]):
            state += scrambled(tokens[at] + GOLDEN * np.uint64(words[at] + 1))
        ids[d] = scrambled(state)


@kernel
def draw(ids: UInt64s, key: np.uint64, fraction: float) -> Mask:
    """Tell which documents a batch is of: each with a probability, by its id and the key of seed and iteration."""
    drawn = np.empty(len(ids), np.bool_)
    for d in range(len(ids)):
        drawn[d] = np.float64(scrambled(key + GOLDEN * ids[d]) >> np.uint64(11)) * TO_UNIT < fraction
    return drawn
