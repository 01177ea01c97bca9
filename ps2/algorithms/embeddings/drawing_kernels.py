"""What is drawn for a batch of sentences: which tokens stay, how wide windows are, and negatives.

Every random number is made of the batch's key and its place in the batch, by SplitMix64's finaliser
(``ps2.ops.draws``): whoever draws for a batch draws the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s, kernel
from ps2.ops.parallel import over_blocks

Int32s = npt.NDArray[np.int32]
Float32s = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

ONE = np.uint64(1)
LOW_BITS = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
# Of a batch's key: numbers for subsampling come of another one.
STAYING = np.uint64(0x5851F42D4C957F2D)
# What it costs to draw a word, in additions of one array to another.
DRAW_COST = 32


@kernel
def add_beginnings(rows: Float32s, keys: Int64s, seed: np.uint64, most: float) -> None:
    """Add to rows where vectors begin, uniformly between -most and most: what a key begins with is always the same."""
    for i in range(len(keys)):
        key = scrambled(scrambled(seed + GOLDEN) + GOLDEN * (np.uint64(keys[i]) + ONE))
        for j in range(rows.shape[1]):
            drawn = np.float64(scrambled(key + GOLDEN * np.uint64(j)) >> np.uint64(11)) * TO_UNIT
            rows[i, j] += np.float32(most * (2.0 * drawn - 1.0))


@kernel
def fill_aliases(chances: Float64s, whole: Array, others: Int32s) -> None:
    """Make an alias table: a cell i is word i with a chance of ``whole[i] / 2**32``, and else ``others[i]``.

    Vose, "A linear algorithm for generating random numbers with a given distribution".

    Args:
        chances: of words, of mean 1; used up.
        whole: uint32; others: int32; filled.
    """
    count = len(chances)
    small, large = np.empty(count, np.int32), np.empty(count, np.int32)
    smalls = larges = 0
    for i in range(count):
        others[i] = i
        whole[i] = np.uint32(LOW_BITS)
        if chances[i] < 1.0:
            small[smalls] = i
            smalls += 1
        else:
            large[larges] = i
            larges += 1
    while smalls and larges:
        smalls -= 1
        less, more = small[smalls], large[larges - 1]
        whole[less] = np.uint32(chances[less] * 4294967295.0)
        others[less] = more
        chances[more] -= 1.0 - chances[less]
        if chances[more] < 1.0:
            larges -= 1
            small[smalls] = more
            smalls += 1


@kernel
def draw_windows(key: np.uint64, window: int, windows: Int32s) -> None:
    """Draw how many words on either side are contexts, of each token: from 1 to ``window``."""
    for i in range(len(windows)):
        drawn = scrambled(key - GOLDEN * (np.uint64(i) + ONE)) & LOW_BITS
        windows[i] = 1 + np.int32((drawn * np.uint64(window)) >> HALF)


@kernel
def fill_negatives(rows: Int64s, negatives: Int32s, key: np.uint64, whole: Array, others: Int32s) -> None:
    """Draw words by an alias table.

    Args:
        rows: which of all rows these are: rows may be drawn in any order.
        negatives: some rows, one for each token or edge; filled.
    """
    cells, each = np.uint64(len(whole)), negatives.shape[1]
    for row in range(len(rows)):
        first = np.uint64(rows[row] * each)
        for j in range(each):
            drawn = scrambled(key + GOLDEN * (first + np.uint64(j) + ONE))
            cell = np.int64(((drawn >> HALF) * cells) >> HALF)
            negatives[row, j] = cell if (drawn & LOW_BITS) <= np.uint64(whole[cell]) else others[cell]


def draw_negatives(
    shape: tuple[int, int], key: np.uint64, whole: Array, others: Int32s, threads: int | None = None
) -> Int32s:
    """Return words that are drawn by an alias table, as ``fill_aliases`` makes it: always the same by one key.

    Args:
        threads: at most; None: as many as there are cores.
    """
    negatives = np.empty(shape, np.int32)
    rows, table = readable(np.arange(len(negatives))), (readable(whole), readable(others))
    over_blocks(fill_negatives, (rows, negatives), key, *table, cost=DRAW_COST * shape[1], most=threads)
    return negatives


@kernel
def keep_some(key: np.uint64, tokens: Int32s, offsets: Int64s, chances: Float32s, kept: Int32s, ends: Int64s) -> int:
    """Keep tokens by chance, each by that of its word; return how many.

    Args:
        kept: gets them; ends: gets where sentences begin among them, and the last one ends.
    """
    count = 0
    key = scrambled(key ^ STAYING)
    ends[0] = 0
    for sentence in range(len(offsets) - 1):
        for i in range(offsets[sentence], offsets[sentence + 1]):
            drawn = np.float64(scrambled(key + GOLDEN * (np.uint64(i) + ONE)) >> np.uint64(11)) * TO_UNIT
            if drawn < chances[tokens[i]]:
                kept[count] = tokens[i]
                count += 1
        ends[sentence + 1] = count
    return count


@kernel
def collect(words: Int32s, cells: Int32s, distinct: Int32s) -> int:
    """List the distinct ones among some words, in the order of their first appearance; return how many they are.

    Args:
        cells: of all words, -1; those of words that come are 0 after this.
    """
    count = 0
    for i in range(len(words)):
        if cells[words[i]] < 0:
            cells[words[i]] = 0
            distinct[count] = words[i]
            count += 1
    return count


@kernel
def number_words(words: Int32s, distinct: Int32s, cells: Int32s, numbers: Int32s) -> None:
    """Set of each word the place that it has in the list of distinct ones; cells are -1 again after this."""
    for i in range(len(distinct)):
        cells[distinct[i]] = i
    for i in range(len(words)):
        numbers[i] = cells[words[i]]
    for i in range(len(distinct)):
        cells[distinct[i]] = -1
