"""Skip-gram, CBOW and edges with negative sampling, compiled.

A *group* is trained at once: some inputs (the vectors of a word's contexts, their mean, or that of an edge's source)
and some outputs (the context vectors of the predicted word and of its negatives, which the inputs share: Ji et al.
2016, "Parallelizing Word2Vec in Shared and Distributed Memory", section III). For every input x and output o, with
values before the group (Mikolov et al. 2013, equation 4):

    g = rate * (label - sigmoid(x . o)),   x += g o,   o += g x

So a group is three small matrix products. Several threads may train one table without locks (Hogwild): they rarely
overwrite each other. Arrays are float32 and C-contiguous; word numbers are not checked.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.simd_kernels import INPUTS, OUTPUTS, multiply_lanes, update_lanes
from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, inline_reduction, kernel, reduction
from ps2.ops.simd import LANES

Array = npt.NDArray[Any]

ZERO, HALF, ONE, LARGEST = np.float32(0), np.float32(0.5), np.float32(1), np.float32(18)
# With fewer outputs, separate loops take less time than ``update``.
MIN_OUTPUTS = 4
# The loss is computed for one of so many groups: logarithms take longer than the updates.
LOSS_INTERVAL = 16
# Statistics: sum of losses, number of pairs in it, number of all trained pairs.
LOSS, LOSSES, PAIRS = range(3)
STATISTICS = 3


@inline_reduction
def sigmoid(x: np.float32) -> np.float32:
    """Return 1 / (1 + exp(-x)), to 2e-7, by a rational function that SIMD vectorizes: tanh(x / 2) of Eigen
    (``generic_fast_tanh_float``)."""
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
    """Set ``dots[i, j]`` to the dot product of input i and output j, in register blocks of two by three."""
    width = old.shape[1]
    for i in range(0, m, 2):
        # A last single input is computed twice.
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
    contexts: Float32s, outputs: Int32s, k: int, table: Float32s, inputs: Int32s, m: int, by: Float32s
) -> None:
    """Add each input, times ``by[i, j]``, to output j; two inputs at a time."""
    for i in range(0, m, 2):
        # A last single input is taken twice, once times 0.
        other = min(i + 1, m - 1)
        a, b = table[inputs[i]], table[inputs[other]]
        for j in range(k):
            f, g = by[i, j], by[other, j] if other > i else ZERO
            to = contexts[outputs[j]]
            for n in range(contexts.shape[1]):
                to[n] += f * a[n] + g * b[n]


@inline_reduction
def add_to_inputs(table: Float32s, inputs: Int32s, m: int, old: Float32s, k: int, by: Float32s) -> None:
    """Add each output's old value, times ``by[i, j]``, to input i."""
    width = old.shape[1]
    for i in range(m):
        to = table[inputs[i]]
        j = 0
        while j + 3 <= k:
            a, b, c = old[j], old[j + 1], old[j + 2]
            f, g, h = by[i, j], by[i, j + 1], by[i, j + 2]
            for n in range(width):
                to[n] += f * a[n] + g * b[n] + h * c[n]
            j += 3
        while j < k:
            a, f = old[j], by[i, j]
            for n in range(width):
                to[n] += f * a[n]
            j += 1


@reduction
def coefficients(dots: Float32s, m: int, rate: np.float32) -> None:
    """Turn dot products into coefficients g: output 0 is the predicted word, the others are negatives."""
    # One loop over all, with those of no output: SIMD instructions do eight at a time.
    every = dots.reshape(-1)[: m * dots.shape[1]]
    for i in range(len(every)):
        every[i] = -rate * sigmoid(every[i])
    for i in range(m):
        dots[i, 0] += rate


@inline
def add_losses(dots: Float32s, m: int, k: int, statistics: Float64s) -> None:
    """Add -log p of dot products to the statistics."""
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
        row, to = contexts[outputs[j]], old[j]
        for n in range(old.shape[1]):
            to[n] = row[n]


@inline
def take_mean(vectors: Float32s, inputs: Int32s, m: int, mean: Float32s) -> None:
    """Set the only row of ``mean`` to the mean of some vectors."""
    mean[:] = ZERO
    for i in range(m):
        row = vectors[inputs[i]]
        for n in range(mean.shape[1]):
            mean[0, n] += row[n]
    for n in range(mean.shape[1]):
        mean[0, n] /= np.float32(m)


@inline
def learn(
    table: Float32s,
    inputs: Int32s,
    m: int,
    contexts: Float32s,
    outputs: Int32s,
    k: int,
    old: Float32s,
    dots: Float32s,
    rate: np.float32,
    with_loss: bool,
    statistics: Float64s,
    times: Float32s,
) -> None:
    """Train one group; ``old`` and ``dots`` are scratch, as of ``scratch``, and so is ``times``, of each input."""
    given = m
    # An input that comes twice has the same products both times.
    m = merge_inputs(inputs, m, times)
    copy_outputs(contexts, outputs, k, old)
    at_once = m > 1 and MIN_OUTPUTS <= k <= OUTPUTS and old.shape[1] % LANES == 0
    if at_once:
        multiply(table, inputs, m, old, dots)
    else:
        products(table, inputs, m, old, k, dots)
    if with_loss:
        for i in range(m):
            for _ in range(int(times[i])):
                add_losses(dots[i : i + 1], 1, k, statistics)
    coefficients(dots, m, rate)
    for i in range(m):
        if times[i] != ONE:
            for j in range(k):
                dots[i, j] *= times[i]
    if at_once:
        update(table, inputs, m, contexts, outputs, k, old, dots)
    else:
        add_to_outputs(contexts, outputs, k, table, inputs, m, dots)
        add_to_inputs(table, inputs, m, old, k, dots)
    statistics[PAIRS] += given


@inline
def merge_inputs(inputs: Int32s, m: int, times: Float32s) -> int:
    """Keep each input once, in the order in which they come, and note how often it came; return their number."""
    count = 0
    for i in range(m):
        word, at = inputs[i], 0
        while at < count and inputs[at] != word:
            at += 1
        if at == count:
            inputs[at], times[at] = word, ZERO
            count += 1
        times[at] += ONE
    return count


@inline
def multiply(table: Float32s, inputs: Int32s, m: int, old: Float32s, dots: Float32s) -> None:
    """Set products of at least two inputs, and of ``OUTPUTS`` outputs."""
    for i in range(0, m, INPUTS):
        # A last single input is taken with the one before.
        one = min(i, m - INPUTS)
        found = multiply_lanes(table, inputs[one], inputs[one + 1], old, old.shape[1])
        f, g = dots[one], dots[one + 1]
        f[0], f[1], f[2], f[3], f[4], f[5] = found[0], found[1], found[2], found[3], found[4], found[5]
        g[0], g[1], g[2], g[3], g[4], g[5] = found[6], found[7], found[8], found[9], found[10], found[11]


@inline
def update(
    table: Float32s,
    inputs: Int32s,
    m: int,
    contexts: Float32s,
    outputs: Int32s,
    k: int,
    old: Float32s,
    dots: Float32s,
) -> None:
    """Do what ``add_to_outputs`` and ``add_to_inputs`` do, for different inputs and at most ``OUTPUTS`` outputs, in one
    pass over the rows."""
    width = old.shape[1]
    changes = old[OUTPUTS : 2 * OUTPUTS]
    changes[:] = ZERO
    # The last outputs may be none: their coefficients are 0.
    dots[:m, k:OUTPUTS] = ZERO
    paired = m - m % INPUTS
    for i in range(0, paired, INPUTS):
        f, g = dots[i], dots[i + 1]
        by = (f[0], f[1], f[2], f[3], f[4], f[5], g[0], g[1], g[2], g[3], g[4], g[5])
        update_lanes(table, inputs[i], inputs[i + 1], old, changes, width, by)
    for j in range(k):
        to, change = contexts[outputs[j]], changes[j]
        for n in range(width):
            to[n] += change[n]
    if paired < m:
        rest, of_rest = inputs[paired:], dots[paired:]
        add_to_outputs(contexts, outputs, k, table, rest, 1, of_rest)
        add_to_inputs(table, rest, 1, old, k, of_rest)


@inline
def scratch(inputs: int, outputs: int, width: int) -> tuple[Float32s, Float32s, Float32s]:
    """Return scratch of groups: outputs' values and changes, zeros; products; and how often each input comes."""
    padded = max(outputs, OUTPUTS)
    old, dots = np.zeros((max(padded, 2 * OUTPUTS), width), np.float32), np.zeros((inputs, padded), np.float32)
    return old, dots, np.empty(inputs, np.float32)


@inline
def choose_outputs(target: int, negatives: Int32s, apart: int, outputs: Int32s) -> int:
    """List the predicted word and its negatives, except those equal to it or to ``apart`` (-1: none); return their
    number."""
    outputs[0] = target
    k = 1
    for j in range(len(negatives)):
        if negatives[j] != target and negatives[j] != apart:
            outputs[k] = negatives[j]
            k += 1
    return k


@inline
def list_inputs(tokens: Int32s, begin: int, end: int, at: int, reach: int, inputs: Int32s) -> int:
    """List the contexts of a token in its sentence; return their number."""
    m = 0
    for place in range(max(begin, at - reach), min(end, at + reach + 1)):
        if place != at:
            inputs[m] = tokens[place]
            m += 1
    return m


@kernel
def train_skipgram(
    begins: Int64s,
    ends: Int64s,
    tokens: Int32s,
    targets: Int32s,
    windows: Int32s,
    negatives: Int32s,
    vectors: Float32s,
    contexts: Float32s,
    rate: np.float32,
    window: int,
    sharing: int,
) -> Float64s:
    """Train skip-gram on sentences.

    Args:
        begins, ends: bounds of the sentences in ``tokens``.
        tokens, targets: each word's row of ``vectors`` and of ``contexts``.
        windows: context words on either side of each token; at most ``window``.
        negatives: shape (tokens, negatives): those of the first contexts that share them, then of the next, ...
        sharing: number of contexts that share negatives.
    """
    each = negatives.shape[1] // ((2 * window + sharing - 1) // sharing)
    statistics = np.zeros(STATISTICS)
    inputs, outputs = np.empty(2 * window, np.int32), np.empty(each + 1, np.int32)
    old, dots, times = scratch(len(inputs), len(outputs), vectors.shape[1])
    for sentence in range(len(begins)):
        begin, end = begins[sentence], ends[sentence]
        for at in range(begin, end):
            m = list_inputs(tokens, begin, end, at, windows[at], inputs)
            with_loss = at % LOSS_INTERVAL == 0
            for turn in range((m + sharing - 1) // sharing):
                first = turn * sharing
                k = choose_outputs(targets[at], negatives[at, turn * each : (turn + 1) * each], -1, outputs)
                some = min(sharing, m - first)
                learn(
                    vectors, inputs[first:], some, contexts, outputs, k, old, dots, rate, with_loss, statistics, times
                )
    return statistics


@kernel
def train_cbow(
    begins: Int64s,
    ends: Int64s,
    tokens: Int32s,
    targets: Int32s,
    windows: Int32s,
    negatives: Int32s,
    vectors: Float32s,
    contexts: Float32s,
    rate: np.float32,
    window: int,
) -> Float64s:
    """Train CBOW on sentences: the only input is the mean of the contexts, and each context gets its whole change."""
    statistics = np.zeros(STATISTICS)
    inputs, outputs = np.empty(2 * window, np.int32), np.empty(negatives.shape[1] + 1, np.int32)
    width = vectors.shape[1]
    old, dots, times = scratch(1, len(outputs), width)
    mean, before, only = np.empty((1, width), np.float32), np.empty(width, np.float32), np.zeros(1, np.int32)
    for sentence in range(len(begins)):
        begin, end = begins[sentence], ends[sentence]
        for at in range(begin, end):
            m = list_inputs(tokens, begin, end, at, windows[at], inputs)
            if not m:
                continue
            take_mean(vectors, inputs, m, mean)
            before[:] = mean[0]
            k = choose_outputs(targets[at], negatives[at], -1, outputs)
            learn(mean, only, 1, contexts, outputs, k, old, dots, rate, at % LOSS_INTERVAL == 0, statistics, times)
            for n in range(width):
                before[n] = mean[0, n] - before[n]
            for i in range(m):
                row = vectors[inputs[i]]
                for n in range(width):
                    row[n] += before[n]
    return statistics


@kernel
def train_edges(
    begins: Int64s,
    ends: Int64s,
    tokens: Int32s,
    targets: Int32s,
    negatives: Int32s,
    vectors: Float32s,
    contexts: Float32s,
    rate: np.float32,
    is_one: bool,
) -> Float64s:
    """Train on sentences of two: predict the second from the first. A sentence's row of negatives is half of where it
    begins. If contexts are the vectors, loops, and negatives equal to the source, are skipped."""
    statistics = np.zeros(STATISTICS)
    inputs, outputs = np.empty(1, np.int32), np.empty(negatives.shape[1] + 1, np.int32)
    old, dots, times = scratch(1, len(outputs), vectors.shape[1])
    for sentence in range(len(begins)):
        begin = begins[sentence]
        source, target = tokens[begin], targets[begin + 1]
        if is_one and source == target:
            continue
        inputs[0] = source
        k = choose_outputs(target, negatives[begin // 2], source if is_one else -1, outputs)
        with_loss = (begin // 2) % LOSS_INTERVAL == 0
        learn(vectors, inputs, 1, contexts, outputs, k, old, dots, rate, with_loss, statistics, times)
    return statistics
