"""The server operation of online models: adds workers' changes, and computes weights from FTRL's sums."""

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
    """Add the changes that a worker's local steps have made to the blocks of keys.

    The state of FTRL-Proximal and Adagrad consists of sums, so changes of several workers add up (McMahan et al., 2013,
    Algorithm 1: z and n).

    Args:
        m: blocks of an embedding table with the optimizer "ftrl", "ftrl+adagrad" (one linear weight) or "adagrad".
        changes: the changes of 2 k columns of the blocks, shape (n, 2 k): columns 0 to 2 k - 1; with FTRL, 1 to 2 k.
        ftrl: whether w (column 0 of a block) is computed from n (column k) and z (column 2 k).
        alpha, beta, l1, l2: FTRL's learning rate and penalties.
    """
    expected = changes.shape[1] + (1 if ftrl else 0)
    if changes.shape[1] % 2 or m.shape[1] < expected or len(changes) != slots.size:
        raise ShapeError(
            f"changes: expected shape ({slots.size}, 2 k) for blocks of {m.shape[1]} values, got {changes.shape}"
        )
    slot_indices = check_slots(slots, m.shape[0])
    if ftrl:
        _add_ftrl(m, slot_indices, readable(changes), alpha, beta, l1, l2)
    else:
        blocks.add(m, slot_indices, readable(changes))


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
