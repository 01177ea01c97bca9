"""Random draws for a batch of sentences: subsampling, window sizes, negatives.

Each random number is a hash (SplitMix64's finaliser, ``ps2.ops.draws``) of the batch's key and a position in the batch.
So workers and servers draw the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import kernel
from ps2.ops.parallel import over_blocks

Array = npt.NDArray[Any]

ONE = np.uint64(1)
LOW_BITS = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
# The batch's key xor this constant is the key for subsampling, so that it does not repeat other draws.
SUBSAMPLING = np.uint64(0x5851F42D4C957F2D)
# The approximate time of drawing a word, in additions.
DRAW_COST = 32


@kernel
def add_initial_vectors(rows: Float32s, keys: Int64s, seed: np.uint64, limit: float) -> None:
    """Add the initial vectors of keys to rows: random values in [-limit, limit), which depend on seed and key."""
    for i in range(len(keys)):
        key = scrambled(scrambled(seed + GOLDEN) + GOLDEN * (np.uint64(keys[i]) + ONE))
        for j in range(rows.shape[1]):
            unit = np.float64(scrambled(key + GOLDEN * np.uint64(j)) >> np.uint64(11)) * TO_UNIT
            rows[i, j] += np.float32(limit * (2.0 * unit - 1.0))


@kernel
def fill_alias_table(weights: Float64s, thresholds: Array, aliases: Int32s) -> None:
    """Build an alias table: cell i yields word i with probability ``thresholds[i] / 2**32``, else word ``aliases[i]``.

    Vose 1991, "A linear algorithm for generating random numbers with a given distribution". ``weights`` are the words'
    probabilities times the number of words, so their mean is 1. They are overwritten.
    """
    count = len(weights)
    small, large = np.empty(count, np.int32), np.empty(count, np.int32)
    smalls = larges = 0
    for i in range(count):
        aliases[i] = i
        thresholds[i] = np.uint32(LOW_BITS)
        if weights[i] < 1.0:
            small[smalls] = i
            smalls += 1
        else:
            large[larges] = i
            larges += 1
    while smalls and larges:
        smalls -= 1
        less, more = small[smalls], large[larges - 1]
        thresholds[less] = np.uint32(weights[less] * 4294967295.0)
        aliases[less] = more
        weights[more] -= 1.0 - weights[less]
        if weights[more] < 1.0:
            larges -= 1
            small[smalls] = more
            smalls += 1


@kernel
def draw_windows(key: np.uint64, window: int, windows: Int32s) -> None:
    """Draw each token's window size, uniformly from 1 to ``window``."""
    # Minus, because the draws of negatives, with the same key, add.
    for i in range(len(windows)):
        bits = scrambled(key - GOLDEN * (np.uint64(i) + ONE)) & LOW_BITS
        windows[i] = 1 + np.int32((bits * np.uint64(window)) >> HALF)


@kernel
def fill_negatives(rows: Int64s, negatives: Int32s, key: np.uint64, thresholds: Array, aliases: Int32s) -> None:
    """Fill ``negatives`` with words from an alias table; ``rows`` are the indices of the batch's tokens (or edges)."""
    cells, width = np.uint64(len(thresholds)), negatives.shape[1]
    for row in range(len(rows)):
        first = np.uint64(rows[row] * width)
        for j in range(width):
            bits = scrambled(key + GOLDEN * (first + np.uint64(j) + ONE))
            cell = np.int64(((bits >> HALF) * cells) >> HALF)
            negatives[row, j] = cell if (bits & LOW_BITS) <= np.uint64(thresholds[cell]) else aliases[cell]


def draw_negatives(
    shape: tuple[int, int], key: np.uint64, thresholds: Array, aliases: Int32s, threads: int | None = None
) -> Int32s:
    """Draw words from an alias table; ``key`` determines them. ``threads`` None: one for each core."""
    negatives = np.empty(shape, np.int32)
    rows, table = readable(np.arange(len(negatives))), (readable(thresholds), readable(aliases))
    over_blocks(fill_negatives, (rows, negatives), key, *table, cost=DRAW_COST * shape[1], max_cores=threads)
    return negatives


@kernel
def subsample(
    key: np.uint64, tokens: Int32s, offsets: Int64s, keep_probabilities: Float32s, survivors: Int32s, ends: Int64s
) -> int:
    """Copy each token with its word's probability, and set the sentences' bounds; return the number of survivors."""
    count = 0
    key = scrambled(key ^ SUBSAMPLING)
    ends[0] = 0
    for sentence in range(len(offsets) - 1):
        for i in range(offsets[sentence], offsets[sentence + 1]):
            unit = np.float64(scrambled(key + GOLDEN * (np.uint64(i) + ONE)) >> np.uint64(11)) * TO_UNIT
            if unit < keep_probabilities[tokens[i]]:
                survivors[count] = tokens[i]
                count += 1
        ends[sentence + 1] = count
    return count


@kernel
def list_distinct(words: Int32s, cells: Int32s, distinct: Int32s) -> int:
    """List the distinct words in order of first appearance; return their number.

    ``cells`` has -1 for each word of the vocabulary, and is set to 0 for the listed words.
    """
    count = 0
    for i in range(len(words)):
        if cells[words[i]] < 0:
            cells[words[i]] = 0
            distinct[count] = words[i]
            count += 1
    return count


@kernel
def index_words(words: Int32s, distinct: Int32s, cells: Int32s, indices: Int32s) -> None:
    """Set ``indices`` to each word's index in ``distinct``, and reset ``cells`` of ``list_distinct`` to -1."""
    for i in range(len(distinct)):
        cells[distinct[i]] = i
    for i in range(len(words)):
        indices[i] = cells[words[i]]
    for i in range(len(distinct)):
        cells[distinct[i]] = -1
