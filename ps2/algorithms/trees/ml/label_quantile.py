"""A quantile of the labels, by weight: where margins begin for losses that are least at one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from ps2.algorithms.estimators.tables import column
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.binning import from_bits, ordered_bits
from ps2.algorithms.trees.quantiles import unit_of, whole

# A label's ordered bits are looked at in two halves.
HALF_BITS = 16
# A mean weight counts as this many bits: sums of 2^31 weights are exact in float64, too.
WEIGHT_BITS = 20


def label_quantile(table: Table, share: float, facts: Facts) -> float:
    """Return the smallest label, rounded to float32, that so large a share of the rows' weight does not exceed.

    Tasks add up weights, as whole numbers, by the first half of labels' bits, then, in the half that has the quantile,
    by the second: two jobs, and the same answer however rows lie.
    """
    unit = 0.0 if table.columns.weight is None else unit_of(facts.weight / facts.rows, WEIGHT_BITS)
    weights = _weights_by_half(table, unit, None)
    wanted = share * weights.sum()
    first = int(np.searchsorted(np.cumsum(weights), wanted))
    before = weights[:first].sum()
    second = int(np.searchsorted(before + np.cumsum(_weights_by_half(table, unit, first)), wanted))
    return float(from_bits(np.array([first << HALF_BITS | second], np.uint32))[0])


def _weights_by_half(table: Table, unit: float, first: int | None) -> np.ndarray:
    """Return the summed weight of labels by the first half of their bits, or by the second of those with one first."""
    columns, rows = table.columns, table.frame
    assert columns.label is not None
    if columns.validation is not None:
        rows = rows.where(~column(columns.validation))
    weight = F.lit(1.0) if columns.weight is None else column(columns.weight).cast("double")
    chosen = rows.select(column(columns.label).cast("double").alias("y"), weight.alias("w")).where("w > 0")

    def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums = np.zeros(1 << HALF_BITS, np.int64)
        for batch in batches:
            bits = ordered_bits(batch["y"].to_numpy(zero_copy_only=False))
            counts = np.ones(len(bits), np.int64)
            if unit:
                counts = whole(batch["w"].to_numpy(zero_copy_only=False), unit)
            if first is None:
                cells = bits >> HALF_BITS
            else:
                mine = bits >> HALF_BITS == first
                cells, counts = bits[mine] & ((1 << HALF_BITS) - 1), counts[mine]
            np.add.at(sums, cells, counts)
        some = np.flatnonzero(sums)
        yield pa.RecordBatch.from_pydict({"cell": some, "weight": sums[some]})

    total = np.zeros(1 << HALF_BITS, np.int64)
    for row in chosen.mapInArrow(summed, "cell long, weight long").groupBy("cell").agg(F.sum("weight")).collect():
        total[row[0]] = row[1]
    return total
