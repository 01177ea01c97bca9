"""Server operations of online variational Bayes: draw the initial lambda, and update it in a step.

The block of a word has its lambda minus beta, the expected number of its tokens in each topic. So the step of a word
without statistics, (1 - rho) lambda + rho beta, only multiplies its block by 1 - rho.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.algorithms.topics.online_kernels import draw_near_one
from ps2.ops.draws import GOLDEN, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s, kernel
from ps2.ops.operands import BLOCK, along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Blocks, Partition, op

# The costs of drawing a value of lambda, and of its step, in element additions.
DRAW_COST, STEP_COST = 128, 4
# Sums over words are added up in tiles of this many words, so rounding does not depend on the number of cores.
TILE = 256

Totals = Annotated[Float64s, along(BLOCK)]


@op(writes=("m",), reduce="sum", dtypes=FLOATS)
def begin(m: Blocks, part: Partition, *, seed: int, beta: float) -> Totals:
    """Overwrite blocks with random numbers of Gamma(100, 1/100) minus beta; return the sum of each topic's values.

    A random number depends only on the seed, the word and the topic.
    """
    words, cost = readable(np.arange(m.shape[0])), DRAW_COST * m.shape[1]
    over_blocks(_draw, (words, m), part.begin, np.uint64(seed % 2**64), beta, cost=cost)
    return _sums(m, m[:0], 1.0, 0.0)


@op(writes=("m", "stats"), reduce="sum", dtypes=FLOATS)
def step(m: Blocks, stats: Blocks, *, keep: float, scale: float) -> Totals:
    """Set blocks to ``keep * m + scale * stats``, and statistics to 0; return the sum of each topic's values."""
    return _sums(m, stats, keep, scale)


def _sums(m: Array, stats: Array, keep: float, scale: float) -> Float64s:
    starts = readable(np.arange(0, m.shape[0], TILE))
    sums = np.zeros((len(starts), m.shape[1]))
    over_blocks(_step, (starts, sums), m, stats, keep, scale, cost=STEP_COST * TILE * m.shape[1])
    return np.asarray(sums.sum(axis=0))


@kernel
def _step(starts: Int64s, sums: Float64s, m: Array, stats: Array, keep: float, scale: float) -> None:
    for tile in range(len(starts)):
        for w in range(starts[tile], min(starts[tile] + TILE, m.shape[0])):
            if len(stats):
                for k in range(m.shape[1]):
                    m[w, k] = keep * m[w, k] + scale * stats[w, k]
                    stats[w, k] = 0
            for k in range(m.shape[1]):
                sums[tile, k] += m[w, k]


@kernel
def _draw(words: Int64s, m: Array, first: int, seed: np.uint64, beta: float) -> None:
    key = scrambled(seed)
    for w in range(len(words)):
        word_key = scrambled(key + GOLDEN * np.uint64(first + words[w] + 1))
        for k in range(m.shape[1]):
            m[w, k] = draw_near_one(scrambled(word_key + GOLDEN * np.uint64(k + 1))) - beta
