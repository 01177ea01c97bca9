"""Operations of topic models: counts are added to, and looked at, where they lie.

A column of the matrix is a word; its block has a count for each topic. Of a word's counts few change at a time, so
changes travel sparsely: for each word the topics whose counts change, and by how much.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops.guards import check_slots, readable
from ps2.ops.kernels import Float64s, Int32s, Int64s, kernel
from ps2.ops.operands import BLOCK, SLOTS, along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import Array, Blocks, Floats, Partition, Slots, Tiny, Unsigned, op

UNSIGNED = (np.uint8, np.uint16, np.uint32)
# Counts whose logarithms of gamma functions are computed once for all words.
TABLE = 1024
# What a logarithm of a gamma function costs, or to find one, in additions.
LOGARITHM = 4

ByWord = Annotated[Unsigned, along(SLOTS)]
ByChange = Annotated[Unsigned, along(SLOTS, by="sizes")]
Topics = Annotated[ByChange, Tiny(lambda dtype: np.zeros(1, np.uint8))]
ByTopic = Annotated[Int64s, along(BLOCK)]
OneFloat = Annotated[Float64s, along(1)]
OneInteger = Annotated[Int64s, along(1)]


def narrow(numbers: npt.NDArray[Any], most: int) -> npt.NDArray[Any]:
    """Return numbers that are not negative as the narrowest unsigned integers that hold ``most``."""
    return numbers.astype(next(dtype for dtype in UNSIGNED if most <= np.iinfo(dtype).max))


def fold(changes: Int32s) -> npt.NDArray[Any]:
    """Return signed numbers as unsigned ones, as narrow as they can be: 0, -1, 1, -2 ... as 0, 1, 2, 3 ..."""
    folded = ((changes << 1) ^ (changes >> 31)).view(np.uint32)
    return narrow(folded, int(folded.max(initial=0)))


def unfold(folded: npt.NDArray[Any]) -> Int32s:
    """Undo ``fold``."""
    numbers = folded.astype(np.uint32).view(np.int32)
    return ((numbers >> 1) & 0x7FFFFFFF) ^ -(numbers & 1)


@op(writes=("m",), dtypes=("int32",))
def add_counts(m: Blocks, words: Slots, sizes: ByWord, topics: Topics, changes: ByChange) -> None:
    """Add to some counts of some words.

    Args:
        sizes: of each word, how many of its counts change.
        topics: of each of these, a word's side by side; changes: by how much, as ``fold`` has it.
    """
    words = check_slots(words, m.shape[0])
    if len(words) and words.min() < 0:
        raise OutOfRangeError("words: expected columns of the matrix")
    if len(topics) != sizes.sum() or len(changes) != len(topics):
        raise ShapeError(f"expected {sizes.sum()} topics and changes, got {len(topics)} and {len(changes)}")
    if len(topics) and topics.max() >= m.shape[1]:
        raise OutOfRangeError(f"topics: expected numbers below {m.shape[1]}, got {topics.max()}")
    _add(m, words, readable(sizes.astype(np.int64)), readable(topics.astype(np.int32)), readable(unfold(changes)))


@op(writes=("m",), dtypes=("int32",))
def clear(m: Blocks, partition: Partition, *, begin: int, end: int) -> None:
    """Set all counts of the words from one to another, which is left out, to 0."""
    m[max(begin - partition.begin, 0) : max(end - partition.begin, 0)] = 0


@op(reduce="sum", dtypes=("int32",))
def look(m: Blocks, beta: Annotated[Floats, along(1)]) -> tuple[OneFloat, ByTopic, OneInteger]:
    """Look at all counts.

    Returns:
        What counts above 0 are to log p(w | z), the sum of log(gamma(n + beta) / gamma(beta)); the sum of each topic's
        counts; how many counts are negative: none should be.

    Raises:
        OutOfRangeError: beta is not positive.
    """
    if not 0 < beta[0] < math.inf:
        raise OutOfRangeError(f"beta: expected a finite positive number, got {beta[0]}")
    logs = np.array([math.lgamma(n + beta[0]) - math.lgamma(beta[0]) for n in range(TABLE)])
    likelihood, sums, negative = np.zeros(1), np.zeros(m.shape[1], np.int64), np.zeros(1, np.int64)
    for some in over_blocks(_look, (readable(m),), float(beta[0]), logs, cost=m.shape[1] * LOGARITHM):
        likelihood += some[0]
        sums += some[1]
        negative += some[2]
    return likelihood, sums, negative


@kernel
def _add(m: Array, words: Int64s, sizes: Int64s, topics: Int32s, changes: Int32s) -> None:
    at = 0
    for i in range(len(words)):
        row = m[words[i]]
        for j in range(at, at + sizes[i]):
            row[topics[j]] += changes[j]
        at += sizes[i]


@kernel
def _look(m: Array, beta: float, logs: Float64s) -> tuple[float, Int64s, int]:
    likelihood, sums, negative = 0.0, np.zeros(m.shape[1], np.int64), 0
    of_0 = math.lgamma(beta)
    for w in range(len(m)):
        for k in range(m.shape[1]):
            n = m[w, k]
            if n != 0:
                sums[k] += n
                if n < 0:
                    negative += 1
                else:
                    likelihood += logs[n] if n < len(logs) else math.lgamma(n + beta) - of_0
    return likelihood, sums, negative
