"""Compiled training of skip-gram, CBOW and edges with negative sampling.

A *group* is trained at once. It has inputs: the vectors of a word's contexts (skip-gram), their mean (CBOW), or the
vector of an edge's source. It has outputs, which all inputs share: the context vectors of the predicted word and of its
negatives (Ji et al. 2016, "Parallelizing Word2Vec in Shared and Distributed Memory", section III). For every input x
and output o, with the values before the group (Mikolov et al. 2013, equation 4):

    g = rate * (label - sigmoid(x . o)),   x += g o,   o += g x

The label is 1 for the predicted word and 0 for negatives. So a group takes three small matrix products. Several threads
train a table without locks (Hogwild), because they rarely overwrite each other's updates. Arrays are float32 and
C-contiguous; word indices are not checked. In all functions, m is the number of inputs, and k that of outputs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.simd_kernels import INPUTS, OUTPUTS, multiply_lanes, update_lanes
from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, inline_reduction, kernel, reduction
from ps2.ops.simd import LANES

Array = npt.NDArray[Any]

SKIPGRAM, CBOW, EDGES, EDGES_ONE_TABLE = range(4)
# In float32, the sigmoid of larger arguments than ``LARGEST`` is 1.
ZERO, HALF, ONE, LARGEST = np.float32(0), np.float32(0.5), np.float32(1), np.float32(18)
# The minimum number of outputs for which ``update`` is faster than separate loops over inputs and outputs.
MIN_OUTPUTS = 4
# The loss is computed for one of this many groups, because logarithms take longer than updates.
LOSS_INTERVAL = 16
# Indices in arrays of statistics: the sum of -log p over sampled inputs (and their negatives), the number of these
# inputs, and the number of all trained inputs.
LOSS, LOSSES, PAIRS = range(3)
STATISTICS = 3


class Draws(NamedTuple):
    """The tokens of sentences, with their random windows and negatives.

    Attributes:
        tokens, targets: each token's row in the table of vectors, and in that of contexts.
        windows: the number of context words on either side of each token; empty for edges.
        negatives: shape (tokens or edges, negatives): the negatives of a token's first group of contexts, then of the
            second group, and so on.
    """

    tokens: Int32s
    targets: Int32s
    windows: Int32s
    negatives: Int32s


class Buffers(NamedTuple):
    """Arrays for a group: the outputs' old values and changes, the dot products, and the occurrences of each input."""

    old: Float32s
    dots: Float32s
    times: Float32s


@inline_reduction
def sigmoid(x: np.float32) -> np.float32:
    """Return 1 / (1 + exp(-x)), with an error of at most 2e-7.

    The rational approximation of tanh(x / 2) is Eigen's ``generic_fast_tanh_float``, which LLVM vectorizes.
    """
    y = HALF * min(max(x, -LARGEST), LARGEST)
    s = y * y
    p = np.float32(-2.76076847742355e-16) * s + np.float32(2.00018790482477e-13)
    p = p * s + np.float32(-8.60467152213735e-11)
    p = p * s + np.float32(5.12229709037114e-08)
    p = p * s + np.float32(1.48572235717979e-05)
    p = p * s + np.float32(6.37261928875436e-04)
    p = p * s + np.float32(4.89352455891786e-03)
    q = np.float32(1.19825839466702e-06) * s + np.float32(1.18534705686654e-04)
    q = q * s + np.float32(2.26843463243900e-03)
    q = q * s + np.float32(4.89352518554385e-03)
    return HALF + HALF * (y * p / q)


@inline_reduction
def products(table: Float32s, inputs: Int32s, m: int, old: Float32s, k: int, dots: Float32s) -> None:
    """Set ``dots[i, j]`` to the dot product of input i and output j, two inputs and three outputs at a time."""
    width = old.shape[1]
    for i in range(0, m, 2):
        # With an odd number of inputs, the last input is computed twice.
        other = min(i + 1, m - 1)
        x, y = table[inputs[i]], table[inputs[other]]
        j = 0
        while j + 3 <= k:
            a, b, c = old[j], old[j + 1], old[j + 2]
            xa = xb = xc = ya = yb = yc = ZERO
            for n in range(width):
                xa += x[n] * a[n]
                xb += x[n] * b[n]
                xc += x[n] * c[n]
                ya += y[n] * a[n]
                yb += y[n] * b[n]
                yc += y[n] * c[n]
            dots[i, j], dots[i, j + 1], dots[i, j + 2] = xa, xb, xc
            dots[other, j], dots[other, j + 1], dots[other, j + 2] = ya, yb, yc
            j += 3
        while j < k:
            a = old[j]
            xa = ya = ZERO
            for n in range(width):
                xa += x[n] * a[n]
                ya += y[n] * a[n]
            dots[i, j], dots[other, j] = xa, ya
            j += 1


@inline_reduction
def add_to_outputs(
    contexts: Float32s, outputs: Int32s, k: int, table: Float32s, inputs: Int32s, m: int, factors: Float32s
) -> None:
    """Add input i, times ``factors[i, j]``, to output j, for all i and j; two inputs at a time."""
    for i in range(0, m, 2):
        # With an odd number of inputs, the last input is added twice, once times 0.
        other = min(i + 1, m - 1)
        a, b = table[inputs[i]], table[inputs[other]]
        for j in range(k):
            f, g = factors[i, j], factors[other, j] if other > i else ZERO
            row = contexts[outputs[j]]
            for n in range(contexts.shape[1]):
                row[n] += f * a[n] + g * b[n]


@inline_reduction
def add_to_inputs(table: Float32s, inputs: Int32s, m: int, old: Float32s, k: int, factors: Float32s) -> None:
    """Add the old value of output j, times ``factors[i, j]``, to input i, for all i and j."""
    width = old.shape[1]
    for i in range(m):
        row = table[inputs[i]]
        j = 0
        while j + 3 <= k:
            a, b, c = old[j], old[j + 1], old[j + 2]
            f, g, h = factors[i, j], factors[i, j + 1], factors[i, j + 2]
            for n in range(width):
                row[n] += f * a[n] + g * b[n] + h * c[n]
            j += 3
        while j < k:
            a, f = old[j], factors[i, j]
            for n in range(width):
                row[n] += f * a[n]
            j += 1


@reduction
def to_coefficients(dots: Float32s, m: int, rate: np.float32) -> None:
    """Replace dot products by coefficients g; output 0 is the predicted word, the other outputs are negatives."""
    # One loop over all columns, also unused columns: SIMD instructions process eight float32s at a time.
    flat = dots.reshape(-1)[: m * dots.shape[1]]
    for i in range(len(flat)):
        flat[i] = -rate * sigmoid(flat[i])
    for i in range(m):
        dots[i, 0] += rate


@inline
def add_losses(dots: Float32s, m: int, k: int, statistics: Float64s) -> None:
    """Add the losses -log p of m inputs to the statistics."""
    for i in range(m):
        for j in range(k):
            x = np.float64(dots[i, j] if j else -dots[i, j])
            # log(1 + exp(x)), without overflow
            statistics[LOSS] += max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    statistics[LOSSES] += m


@inline
def copy_outputs(contexts: Float32s, outputs: Int32s, k: int, old: Float32s) -> None:
    """Copy the outputs' vectors to ``old``."""
    for j in range(k):
        row, copy = contexts[outputs[j]], old[j]
        for n in range(old.shape[1]):
            copy[n] = row[n]


@inline
def take_mean(vectors: Float32s, inputs: Int32s, m: int, mean: Float32s) -> None:
    """Set the only row of ``mean`` to the mean of the inputs' vectors."""
    mean[:] = ZERO
    for i in range(m):
        row = vectors[inputs[i]]
        for n in range(mean.shape[1]):
            mean[0, n] += row[n]
    for n in range(mean.shape[1]):
        mean[0, n] /= np.float32(m)


@inline
def add_to_rows(table: Float32s, rows: Int32s, m: int, change: Float32s) -> None:
    """Add a change to each of m rows."""
    for i in range(m):
        row = table[rows[i]]
        for n in range(len(change)):
            row[n] += change[n]


@inline
def learn(
    table: Float32s,
    inputs: Int32s,
    m: int,
    contexts: Float32s,
    outputs: Int32s,
    k: int,
    buffers: Buffers,
    rate: np.float32,
    with_loss: bool,
    statistics: Float64s,
) -> None:
    """Train a group; repeated inputs are merged in place."""
    old, dots, times = buffers
    pairs = m
    # A repeated input has the same dot products, so it is computed once, and its coefficients are multiplied.
    m = merge_inputs(inputs, m, times)
    copy_outputs(contexts, outputs, k, old)
    fits_simd = m > 1 and MIN_OUTPUTS <= k <= OUTPUTS and old.shape[1] % LANES == 0
    if fits_simd:
        multiply(table, inputs, m, old, dots)
    else:
        products(table, inputs, m, old, k, dots)
    if with_loss:
        for i in range(m):
            for _ in range(int(times[i])):
                add_losses(dots[i : i + 1], 1, k, statistics)
    to_coefficients(dots, m, rate)
    for i in range(m):
        if times[i] != ONE:
            for j in range(k):
                dots[i, j] *= times[i]
    if fits_simd:
        update(table, inputs, m, contexts, outputs, k, old, dots)
    else:
        add_to_outputs(contexts, outputs, k, table, inputs, m, dots)
        add_to_inputs(table, inputs, m, old, k, dots)
    statistics[PAIRS] += pairs


@inline
def merge_inputs(inputs: Int32s, m: int, times: Float32s) -> int:
    """Move distinct inputs to the front, in order of first appearance, and count occurrences; return their number."""
    count = 0
    for i in range(m):
        word, position = inputs[i], 0
        while position < count and inputs[position] != word:
            position += 1
        if position == count:
            inputs[position], times[position] = word, ZERO
            count += 1
        times[position] += ONE
    return count


@inline
def multiply(table: Float32s, inputs: Int32s, m: int, old: Float32s, dots: Float32s) -> None:
    """Set ``dots`` to the dot products of at least two inputs and ``OUTPUTS`` outputs."""
    for i in range(0, m, INPUTS):
        # With an odd number of inputs, the last input is paired with the input before it.
        first = min(i, m - INPUTS)
        values = multiply_lanes(table, inputs[first], inputs[first + 1], old, old.shape[1])
        f, g = dots[first], dots[first + 1]
        f[0], f[1], f[2], f[3], f[4], f[5] = values[0], values[1], values[2], values[3], values[4], values[5]
        g[0], g[1], g[2], g[3], g[4], g[5] = values[6], values[7], values[8], values[9], values[10], values[11]


@inline
def update(
    table: Float32s, inputs: Int32s, m: int, contexts: Float32s, outputs: Int32s, k: int, old: Float32s, dots: Float32s
) -> None:
    """Do ``add_to_outputs`` and ``add_to_inputs`` together, for distinct inputs and at most ``OUTPUTS`` outputs."""
    width = old.shape[1]
    changes = old[OUTPUTS : 2 * OUTPUTS]
    changes[:] = ZERO
    # The rows of ``old`` after the k outputs have coefficients of 0.
    dots[:m, k:OUTPUTS] = ZERO
    paired = m - m % INPUTS
    for i in range(0, paired, INPUTS):
        f, g = dots[i], dots[i + 1]
        factors = (f[0], f[1], f[2], f[3], f[4], f[5], g[0], g[1], g[2], g[3], g[4], g[5])
        update_lanes(table, inputs[i], inputs[i + 1], old, changes, width, factors)
    for j in range(k):
        row, change = contexts[outputs[j]], changes[j]
        for n in range(width):
            row[n] += change[n]
    if paired < m:
        last, last_factors = inputs[paired:], dots[paired:]
        add_to_outputs(contexts, outputs, k, table, last, 1, last_factors)
        add_to_inputs(table, last, 1, old, k, last_factors)


@inline
def make_buffers(inputs: int, outputs: int, width: int) -> Buffers:
    """Return buffers for groups with at most this many inputs and outputs of ``width`` columns."""
    padded = max(outputs, OUTPUTS)
    old, dots = np.zeros((max(padded, 2 * OUTPUTS), width), np.float32), np.zeros((inputs, padded), np.float32)
    return Buffers(old, dots, np.empty(inputs, np.float32))


@inline
def choose_outputs(target: int, negatives: Int32s, excluded: int, outputs: Int32s) -> int:
    """List the target and the negatives that differ from it and from ``excluded``; return the number of outputs."""
    outputs[0] = target
    k = 1
    for j in range(len(negatives)):
        if negatives[j] != target and negatives[j] != excluded:
            outputs[k] = negatives[j]
            k += 1
    return k


@inline
def list_inputs(tokens: Int32s, begin: int, end: int, token: int, window: int, inputs: Int32s) -> int:
    """List the contexts of a token in its sentence, from ``begin`` to ``end``; return their number."""
    m = 0
    for neighbour in range(max(begin, token - window), min(end, token + window + 1)):
        if neighbour != token:
            inputs[m] = tokens[neighbour]
            m += 1
    return m


@kernel
def train_skipgram(
    begins: Int64s,
    ends: Int64s,
    draws: Draws,
    vectors: Float32s,
    contexts: Float32s,
    rate: np.float32,
    window: int,
    sharing: int,
) -> Float64s:
    """Train skip-gram on sentences with these bounds; ``sharing`` contexts of a token share negatives."""
    tokens, targets, windows, negatives = draws
    num_negatives = negatives.shape[1] // ((2 * window + sharing - 1) // sharing)
    statistics = np.zeros(STATISTICS)
    inputs, outputs = np.empty(2 * window, np.int32), np.empty(num_negatives + 1, np.int32)
    buffers = make_buffers(len(inputs), len(outputs), vectors.shape[1])
    for sentence in range(len(begins)):
        begin, end = begins[sentence], ends[sentence]
        for token in range(begin, end):
            m = list_inputs(tokens, begin, end, token, windows[token], inputs)
            with_loss = token % LOSS_INTERVAL == 0
            for group in range((m + sharing - 1) // sharing):
                first = group * sharing
                group_negatives = negatives[token, group * num_negatives : (group + 1) * num_negatives]
                k = choose_outputs(targets[token], group_negatives, -1, outputs)
                count = min(sharing, m - first)
                learn(vectors, inputs[first:], count, contexts, outputs, k, buffers, rate, with_loss, statistics)
    return statistics


@kernel
def train_cbow(
    begins: Int64s, ends: Int64s, draws: Draws, vectors: Float32s, contexts: Float32s, rate: np.float32, window: int
) -> Float64s:
    """Train CBOW on sentences: the input is the mean of the contexts, and its change is added to each context."""
    tokens, targets, windows, negatives = draws
    statistics = np.zeros(STATISTICS)
    inputs, outputs = np.empty(2 * window, np.int32), np.empty(negatives.shape[1] + 1, np.int32)
    width = vectors.shape[1]
    buffers = make_buffers(1, len(outputs), width)
    mean, change, only_row = np.empty((1, width), np.float32), np.empty(width, np.float32), np.zeros(1, np.int32)
    for sentence in range(len(begins)):
        begin, end = begins[sentence], ends[sentence]
        for token in range(begin, end):
            m = list_inputs(tokens, begin, end, token, windows[token], inputs)
            if not m:
                continue
            take_mean(vectors, inputs, m, mean)
            change[:] = mean[0]
            k = choose_outputs(targets[token], negatives[token], -1, outputs)
            learn(mean, only_row, 1, contexts, outputs, k, buffers, rate, token % LOSS_INTERVAL == 0, statistics)
            for n in range(width):
                change[n] = mean[0, n] - change[n]
            add_to_rows(vectors, inputs, m, change)
    return statistics


@kernel
def train_edges(
    begins: Int64s,
    ends: Int64s,
    draws: Draws,
    vectors: Float32s,
    contexts: Float32s,
    rate: np.float32,
    has_one_table: bool,
) -> Float64s:
    """Train on sentences of two words: predict the second word from the first.

    With one table, vectors are also the contexts, and loops and negatives equal to the source are skipped.
    """
    tokens, targets, _, negatives = draws
    statistics = np.zeros(STATISTICS)
    inputs, outputs = np.empty(1, np.int32), np.empty(negatives.shape[1] + 1, np.int32)
    buffers = make_buffers(1, len(outputs), vectors.shape[1])
    for sentence in range(len(begins)):
        begin = begins[sentence]
        source, target = tokens[begin], targets[begin + 1]
        if has_one_table and source == target:
            continue
        inputs[0] = source
        k = choose_outputs(target, negatives[begin // 2], source if has_one_table else -1, outputs)
        with_loss = (begin // 2) % LOSS_INTERVAL == 0
        learn(vectors, inputs, 1, contexts, outputs, k, buffers, rate, with_loss, statistics)
    return statistics


def kernel_of(kind: int, window: int, sharing: int) -> tuple[Any, tuple[int, ...]]:
    """Return the kernel of an architecture, and its arguments after the rate."""
    if kind == SKIPGRAM:
        return train_skipgram, (window, sharing)
    if kind == CBOW:
        return train_cbow, (window,)
    return train_edges, (kind == EDGES_ONE_TABLE,)
