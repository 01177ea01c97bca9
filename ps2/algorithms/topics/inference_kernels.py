"""Topics of new documents, compiled: Gibbs sampling with the topics' words fixed.

A token of word w in document d gets topic k with a probability proportional to (n_dk + alpha_k) phi_wk (Griffiths and
Steyvers, 2004, section 2, as for new documents), phi_wk = (n_wk + beta) / (n_k + V beta). It is split in two, as in
``sparse_kernels``:

    n_dk phi_wk     over the topics that the document has: few
    alpha_k phi_wk  over all topics: of a word that never changes, so its sums up to every GROUP-th topic are kept

so a token costs as many steps as its document has topics, however many there are.

A document's random numbers come of an id that its words and how often they come make: where it lies does not matter.
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
# Tokens of a word in a document that are drawn one by one.
MAX_DRAWN = 1 << 20
# Documents: rows of a CSR matrix: indptr, indices, data.
Matrix = tuple[Array, Array, Array]
# Counts, shape (words, topics); beta; alpha; 1 / (n_k + V beta).
Topics = tuple[Array, float, Float64s, Float64s]


@kernel
def sum_groups(indices: Array, topics: Topics, known: Bools, sums: Float64s) -> None:
    """Fill in the sums of words that have none yet.

    Args:
        indices: words, any of them several times.
        known: shape (words,): which words have sums.
        sums: shape (words, groups): of alpha_k phi_wk over the topics up to the end of each group.
    """
    counts, beta, alpha, scale = topics
    for w in indices:
        if known[w]:
            continue
        row, total = counts[w], 0.0
        for group in range(sums.shape[1]):
            for k in range(group * GROUP, min((group + 1) * GROUP, len(row))):
                total += alpha[k] * (row[k] + beta) * scale[k]
            sums[w, group] = total
        known[w] = True


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
    """Estimate how documents share out among topics: the mean of (n_dk + alpha_k) / (n_d + sum of alpha) over sweeps.

    Args:
        rows: of the matrix.
        out: shape (len(rows), topics).
        ids: of all rows of the matrix.
        sums: as of ``sum_groups``, for all words of the documents.
        key: of the seed.
        sweeps: over a document's tokens: that are left out of the mean, and that are in it.
    """
    indptr, indices, data = matrix
    counts, beta, alpha, scale = topics
    left_out, kept = sweeps
    longest = 0
    for row in rows:
        longest = max(longest, _length(data[indptr[row] : indptr[row + 1]]))
    of_tokens = np.empty(longest, np.int32)
    held, place, often = np.empty(len(alpha), np.int32), np.empty(len(alpha), np.int32), np.zeros(len(alpha), np.int64)
    so_far = np.empty(len(alpha))
    all_alpha = alpha.sum()
    for number, row in enumerate(rows):
        begin, end = indptr[row], indptr[row + 1]
        mine = out[number]
        mine[:] = 0.0
        count = 0
        for sweep in range(left_out + kept):
            of_sweep = scrambled(key + GOLDEN * np.uint64(sweep + 1))
            token = 0
            for at in range(begin, end):
                w = indices[at]
                of_word, rest = counts[w], sums[w, sums.shape[1] - 1]
                for nth in range(int(data[at])):
                    if sweep > 0:
                        count = _exclude(of_tokens[token], held, place, often, count)
                    total = 0.0
                    for i in range(count):
                        k = held[i]
                        total += often[k] * (of_word[k] + beta) * scale[k]
                        so_far[i] = total
                    drawn = uniform(of_sweep, ids[row], w, nth) * (total + rest)
                    if drawn < total:
                        new = int(held[first_above(drawn, so_far, count)])
                    else:
                        new = _draw_rest(drawn - total, of_word, topics, sums[w])
                    if often[new] == 0:
                        held[count], place[new] = new, count
                        count += 1
                    often[new] += 1
                    of_tokens[token] = new
                    token += 1
            if sweep >= left_out:
                for i in range(count):
                    mine[held[i]] += often[held[i]]
        length = 0
        for i in range(count):
            length += often[held[i]]
            often[held[i]] = 0
        for k in range(len(alpha)):
            mine[k] = (mine[k] / kept + alpha[k]) / (length + all_alpha)


@kernel
def score(rows: Int64s, out: Float64s, matrix: Matrix, topics: Topics, shares: Float64s) -> None:
    """Compute log p(w | theta, phi), summed over the tokens of each document.

    Args:
        rows: of the matrix, and of ``shares``.
        out: shape (len(rows),).
        shares: theta, shape (documents, topics).
    """
    indptr, indices, data = matrix
    counts, beta, _, scale = topics
    for number, row in enumerate(rows):
        total, theta = 0.0, shares[row]
        for at in range(indptr[row], indptr[row + 1]):
            of_word, chance = counts[indices[at]], 0.0
            for k in range(len(theta)):
                chance += theta[k] * (of_word[k] + beta) * scale[k]
            total += data[at] * math.log(chance)
        out[number] = total


@kernel
def halve(matrix: Matrix, ids: Int64s, key: np.uint64, second: Float64s) -> None:
    """Take half of each document's tokens, less one half if they are odd, any of them with the same probability.

    Args:
        ids: of the documents.
        key: of the seed.
        second: shape (nnz,): gets how many of each word's tokens are taken.
    """
    indptr, indices, data = matrix
    for row in range(len(indptr) - 1):
        begin, end = indptr[row], indptr[row + 1]
        left = _length(data[begin:end])
        wanted = left // 2
        # Of words that come very often, halves are taken as they are.
        for at in range(begin, end):
            half = int(data[at]) // 2 if data[at] > MAX_DRAWN else 0
            second[at] = half
            wanted -= half
            left -= 2 * half
        for at in range(begin, end):
            for nth in range(int(data[at]) - 2 * int(second[at])):
                if uniform(key, ids[row], indices[at], nth) * left < wanted:
                    second[at] += 1.0
                    wanted -= 1
                left -= 1


@inline
def _length(times: Array) -> int:
    total = 0
    for n in times:
        total += int(n)
    return total


@inline
def _exclude(k: int, held: Int32s, place: Int32s, often: Int64s, count: int) -> int:
    """Count a topic of a document once less; return how many topics it has."""
    often[k] -= 1
    if often[k] > 0:
        return count
    last = held[count - 1]
    held[place[k]], place[last] = last, place[k]
    return count - 1


@inline
def _draw_rest(left: float, of_word: Array, topics: Topics, sums: Float64s) -> int:
    """Return the topic at which the sum of alpha_k phi_wk up to it is above a number, or the last one."""
    _, beta, alpha, scale = topics
    group = first_above(left, sums, len(sums))
    if group > 0:
        left -= sums[group - 1]
    k, last = group * GROUP, min((group + 1) * GROUP, len(alpha)) - 1
    while k < last:
        weight = alpha[k] * (of_word[k] + beta) * scale[k]
        if left < weight:
            break
        left -= weight
        k += 1
    return k
