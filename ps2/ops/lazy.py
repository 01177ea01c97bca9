"""Optimizer steps at the columns whose gradient is not 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ps2.ops import steps
from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s
from ps2.ops.nonzero import nonzero
from ps2.ops.parallel import SLOT_COST, over_blocks
from ps2.ops.table import Array

# Columns scanned at a time, so that the list of nonzero columns takes at most 8 MiB a core.
SCAN = 1 << 20


def over_nonzero(
    loop: Callable[..., None], rows: Sequence[Array], scalars: steps.Scalars, columns: Int64s | None
) -> None:
    """Take an optimizer step at the columns where the gradient, the last of the rows, is not 0.

    Args:
        columns: int64, distinct: the only columns to look at, as the gradient is 0 elsewhere; None for all.
    """
    if columns is None:
        over_blocks(lambda *block: _scan(loop, block, scalars), rows)
    else:
        over_blocks(loop, (readable(columns),), *rows, scalars, cost=SLOT_COST)


def _scan(loop: Callable[..., None], rows: Sequence[Array], scalars: steps.Scalars) -> None:
    for start in range(0, rows[-1].size, SCAN):
        block = [row[start : start + SCAN] for row in rows]
        loop(readable(nonzero(block[-1])), *block, scalars)
