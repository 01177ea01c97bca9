"""Server operations of online models: changes of keys add up, and weights follow from FTRL's sums."""

from __future__ import annotations

from math import sqrt
from typing import Annotated

import numpy as np

from ps2.errors import ShapeError
from ps2.ops import blocks
from ps2.ops.guards import check_slots, readable
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.operands import SLOTS, along
from ps2.ops.optimizers import NonNegative, Positive
from ps2.ops.prefetch import AHEAD, prefetch
from ps2.ops.table import Array, Blocks, Slots, Tiny, Values, op

FLOAT = ("float32",)
Table = Annotated[Blocks, Tiny(lambda dtype: np.ones((1, 3), dtype))]
Changes = Annotated[Values, along(SLOTS, "numbers"), Tiny(lambda dtype: np.ones((1, 2), dtype))]


@op(writes=("m",), dtypes=FLOAT, creates=True)
def add_changes(
    m: Table,
    slots: Slots,
    changes: Changes,
    *,
    ftrl: bool,
    alpha: Positive = 0.05,
    beta: NonNegative = 1.0,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
) -> None:
    """Add what workers' steps have changed to the blocks of keys.

    Steps of FTRL-Proximal and Adagrad leave sums behind, so changes of several workers add up (McMahan et al., 2013,
    Algorithm 1: z and n).

    Args:
        m: blocks of an embedding table with the optimizer "ftrl", "ftrl+adagrad" (one linear weight) or "adagrad".
        changes: shape (n, 2 k), for the first 2 k numbers of the blocks; with FTRL, for those from the second one on.
        ftrl: the block's first number is w, which follows from the second half's first number, n, and the last one, z.
    """
    expected = changes.shape[1] + (1 if ftrl else 0)
    if changes.shape[1] % 2 or m.shape[1] < expected or len(changes) != slots.size:
        raise ShapeError(
            f"changes: expected shape ({slots.size}, 2 k) for blocks of {m.shape[1]} numbers, got {changes.shape}"
        )
    some = check_slots(slots, m.shape[0])
    if ftrl:
        _add_ftrl(m, some, readable(changes), alpha, beta, l1, l2)
    else:
        blocks.add(m, some, readable(changes))


@kernel
def _add_ftrl(m: Array, slots: Int64s, changes: Array, alpha: float, beta: float, l1: float, l2: float) -> None:
    k = changes.shape[1] // 2
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(m, slots[i + AHEAD])
        slot = slots[i]
        if slot < 0:
            continue
        for j in range(changes.shape[1]):
            m[slot, j + 1] += changes[i, j]
        z, n = float(m[slot, 2 * k]), float(m[slot, k])
        w = 0.0
        if abs(z) > l1:
            w = -((z - l1) if z > 0 else (z + l1)) / ((beta + sqrt(n)) / alpha + l2)
        m[slot, 0] = np.float32(w)
