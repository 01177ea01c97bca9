"""A quantile of the labels, by weight: where margins begin for losses that are least at one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.cut_points import unit_of, whole
from ps2.algorithms.trees.feature_columns import from_bits, ordered_bits
from ps2.algorithms.trees.ml.label_sums import rows_of
from ps2.run.spark.backend_lookup import with_python

# A label's ordered bits are looked at in three parts, the first ones first.
PARTS = (22, 21, 21)
# A mean weight counts as this many bits: sums of 2^31 weights are exact in float64, too.
WEIGHT_BITS = 20


def label_quantile(table: Table, share: float, facts: Facts) -> float:
    """Return the smallest label that so large a share of the rows' weight does not exceed.

    Tasks add up weights, as whole numbers, by the first part of labels' bits, then, in the part that has the quantile,
    by the next, and then by the last: three jobs, and the same answer however rows lie.
    """
    unit = 0.0 if table.columns.weight is None else unit_of(facts.weight / facts.rows, WEIGHT_BITS)
    found, below, wanted = 0, 64, -1.0
    for bits in PARTS:
        below -= bits
        cells, weights = _weights_by_part(table, unit, found, below, bits)
        if wanted < 0:
            wanted = share * weights.sum()
        ends = np.cumsum(weights)
        at = min(int(np.searchsorted(ends, wanted)), len(cells) - 1)
        wanted -= ends[at] - weights[at]
        found = found << bits | int(cells[at])
    return float(from_bits(np.array([found], np.uint64))[0])


def _weights_by_part(table: Table, unit: float, before: int, below: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which of a part of labels' bits there are, ascending, and their weights.

    Args:
        before: the bits before the part, which labels have to have.
        below, bits: how many there are below the part, and in it.
    """

    def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = ordered_bits(batch["y"].to_numpy(zero_copy_only=False)) >> np.uint64(below)
            counts = np.ones(len(found), np.int64)
            if unit:
                counts = whole(batch["w"].to_numpy(zero_copy_only=False), unit)
            mine = found >> np.uint64(bits) == before
            cells, place = np.unique(found[mine] & np.uint64((1 << bits) - 1), return_inverse=True)
            sums = np.zeros(len(cells), np.int64)
            np.add.at(sums, place, counts[mine])
            yield pa.RecordBatch.from_pydict({"cell": cells.astype(np.int64), "weight": sums})

    found = (
        with_python(rows_of(table)).mapInArrow(summed, "cell long, weight long").groupBy("cell").agg(F.sum("weight"))
    )
    cells, weights = np.array(found.collect(), np.int64).reshape(-1, 2).T
    order = np.argsort(cells)
    return cells[order], weights[order]
