"""Batches become rows in memory, or in a file where they are too large for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ps2.data.row_spill import RowSpill
from ps2.data.rows import Float, RowParts, checked_dtype
from ps2.data.spilled_rows import KeptRows

if TYPE_CHECKING:
    import pyarrow as pa


def keep_batches(
    batches: Iterable[pa.RecordBatch],
    features: str | Sequence[str],
    label: str | None,
    weight: str | None,
    dtype: Float,
    spill: RowSpill,
) -> KeptRows:
    """Read rows as ``Rows.fromBatches`` does, and number their columns; see ``Worker.keep``."""
    parts = RowParts(checked_dtype(dtype))
    if not isinstance(features, str):
        parts.size = len(features)
    has_y, has_weights = label is not None, weight is not None

    def write() -> None:
        for rows in parts.drained(has_y, has_weights, spill.spill.block_bytes):
            spill.append(rows)

    for batch in batches:
        parts.read(batch, features, label, weight)
        if spill.is_due(parts.nbytes):
            write()
    if not spill.is_begun:
        return parts.joined(has_y, has_weights).localize()
    write()
    kept, _ = spill.finished()
    return kept
