"""Server operations of topic models: summarize the counts, and set them to 0.

A column of the matrix is a word; its block has a count for each topic. Workers change counts with the shared operation
``columns_add_some``, because few of a word's counts change at a time.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from ps2.errors import OutOfRangeError
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s, kernel
from ps2.ops.operands import BLOCK, along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import Array, Blocks, Floats, Partition, op

# The terms of the likelihood are tabulated for counts below this limit.
TABLE = 1024
# The cost of a term of the likelihood, computed or looked up, in element additions.
LOGARITHM_COST = 4

ByTopic = Annotated[Int64s, along(BLOCK)]
OneFloat = Annotated[Float64s, along(1)]
OneInteger = Annotated[Int64s, along(1)]


@op(writes=("m",), dtypes=("int32",))
def clear(m: Blocks, partition: Partition, *, begin: int, end: int) -> None:
    """Set all counts of the words from ``begin`` up to, but not including, ``end`` to 0."""
    m[max(begin - partition.begin, 0) : max(end - partition.begin, 0)] = 0


@op(reduce="sum", dtypes=("int32",))
def look(m: Blocks, beta: Annotated[Floats, along(1)]) -> tuple[OneFloat, ByTopic, OneInteger]:
    """Summarize all counts.

    Returns:
        The counts' terms of log p(w | z): the sum of log(gamma(n + beta) / gamma(beta)) over counts n above 0; the sum
        of each topic's counts; and the number of negative counts, which should be 0.

    Raises:
        OutOfRangeError: beta is not positive.
    """
    if not 0 < beta[0] < math.inf:
        raise OutOfRangeError(f"beta: expected a finite positive number, got {beta[0]}")
    logs = np.array([math.lgamma(n + beta[0]) - math.lgamma(beta[0]) for n in range(TABLE)])
    likelihood, sums, negative = np.zeros(1), np.zeros(m.shape[1], np.int64), np.zeros(1, np.int64)
    for result in over_blocks(_look, (readable(m),), float(beta[0]), logs, cost=m.shape[1] * LOGARITHM_COST):
        likelihood += result[0]
        sums += result[1]
        negative += result[2]
    return likelihood, sums, negative


@kernel
def _look(m: Array, beta: float, logs: Float64s) -> tuple[float, Int64s, int]:
    likelihood, sums, negative = 0.0, np.zeros(m.shape[1], np.int64), 0
    log_gamma_beta = math.lgamma(beta)
    for w in range(len(m)):
        for k in range(m.shape[1]):
            n = m[w, k]
            if n != 0:
                sums[k] += n
                if n < 0:
                    negative += 1
                else:
                    likelihood += logs[n] if n < len(logs) else math.lgamma(n + beta) - log_gamma_beta
    return likelihood, sums, negative
