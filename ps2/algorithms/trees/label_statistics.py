"""The driver's jobs before a training: sums and quantiles of labels, for the initial margins; validation sets.

Results do not depend on the order of the rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, StringType

from ps2.algorithms.frame.tables import column, field
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.cut_points import from_bits, integer_weights, ordered_bits, unit_of
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.tree import Forest, leaf_range
from ps2.array_types import Float64s, Int64s
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import in_one_wave, with_python

# A float64 is an integer of 53 bits times a power of two. The upper and the lower bits of the integers are summed
# separately, so that sums fit int64.
BITS, LOW_BITS = 53, 27
# The kinds of sums: of weights, and of labels times weights.
WEIGHT, WEIGHTED = range(2)
# A search for a quantile extends a prefix of the label's ordered bits by these numbers of bits, in three steps.
PREFIX_STEPS = (22, 21, 21)
# The maximum number of validation sets.
MAX_SETS = 16
# The number of bits of the mean weight as an integer: sums of 2^31 weights are exact in float64, too.
WEIGHT_BITS = 20


@dataclass(frozen=True)
class LabelSums:
    """The sum of weights, the mean label, and the weight of each class that has rows (regression: none)."""

    weight: float
    mean: float
    class_weights: Mapping[int, float]


def label_sums(table: Table, of_classes: bool) -> LabelSums:
    """Sum the labels and weights of the training rows exactly, in one job."""
    return add_up(_sums_by_exponent(labelled_rows(table), of_classes), of_classes)


def add_up(parts: Iterable[Any], has_classes: bool) -> LabelSums:
    """Return exact sums; parts: rows of ``sum_rows``."""
    exact: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for label, kind, exponent, high, low in parts:
        exact[label, kind] += ((high << LOW_BITS) + low) * Fraction(2) ** (exponent - BITS)
    weight = sum(value for (_, kind), value in exact.items() if kind == WEIGHT)
    weighted = sum(value for (_, kind), value in exact.items() if kind == WEIGHTED)
    by_class = {label: float(value) for (label, kind), value in exact.items() if kind == WEIGHT}
    return LabelSums(float(weight), float(weighted / weight), by_class if has_classes else {})


def labelled_rows(table: Table) -> DataFrame:
    """Return the labels y and the weights w of the training rows, for Python tasks."""
    columns, rows = table.columns, table.frame
    assert columns.label is not None
    if columns.validation is not None:
        rows = rows.where(~column(columns.validation).cast("boolean"))
    weight = F.lit(1.0) if columns.weight is None else column(columns.weight).cast("double")
    return in_one_wave(rows.select(column(columns.label).cast("double").alias("y"), weight.alias("w")).where("w > 0"))


def _sums_by_exponent(rows: DataFrame, of_classes: bool) -> Any:
    """Return the sums of upper and of lower bits by class (regression: 0), kind (WEIGHT, WEIGHTED) and exponent."""

    names = ["label", "kind", "exponent", "high", "low"]

    def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            y, w = (batch[name].to_numpy(zero_copy_only=False) for name in ("y", "w"))
            sums = sum_rows(y, w, of_classes)
            yield pa.RecordBatch.from_arrays(list(map(pa.array, sums.T)), names)

    parts = with_python(rows).mapInArrow(summed, ", ".join(f"{name} long" for name in names))
    return parts.groupBy("label", "kind", "exponent").agg(F.sum("high"), F.sum("low")).collect()


def sum_rows(y: Float64s, w: Float64s, has_classes: bool) -> Int64s:
    """Return sums by class, kind and exponent: the columns of ``_sums_by_exponent``, shape (n, 5)."""
    labels = y.astype(np.int64) if has_classes else np.zeros(len(y), np.int64)
    return np.concatenate([_sum_values(labels, kind, values) for kind, values in ((WEIGHT, w), (WEIGHTED, w * y))])


def _sum_values(labels: Int64s, kind: int, values: Float64s) -> Int64s:
    fractions, exponents = np.frexp(values)
    mantissas = np.ldexp(fractions, BITS).astype(np.int64)
    keys, key_index = np.unique(np.column_stack([labels, exponents]), axis=0, return_inverse=True)
    sums = np.zeros((2, len(keys)), np.int64)
    for out, bits in zip(sums, (mantissas >> LOW_BITS, mantissas & ((1 << LOW_BITS) - 1)), strict=True):
        np.add.at(out, key_index.reshape(-1), bits)
    return np.column_stack([keys[:, 0], np.full(len(keys), kind), keys[:, 1], *sums]).astype(np.int64)


def label_quantile(table: Table, level: float, facts: Facts) -> float:
    """Return the labels' weighted quantile at a level in (0, 1), in three jobs."""
    unit = 0.0 if table.columns.weight is None else unit_of(facts.weight / facts.rows, WEIGHT_BITS)
    prefix, shift, target = 0, 64, -1.0
    for bits in PREFIX_STEPS:
        shift -= bits
        cells, weights = _weights_by_prefix(table, unit, prefix, shift, bits)
        if target < 0:
            target = level * weights.sum()
        ends = np.cumsum(weights)
        index = min(int(np.searchsorted(ends, target)), len(cells) - 1)
        target -= ends[index] - weights[index]
        prefix = prefix << bits | int(cells[index])
    return float(from_bits(np.array([prefix], np.uint64))[0])


def _weights_by_prefix(table: Table, unit: float, prefix: int, shift: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``bits`` bits after a prefix of labels, distinct and ascending, and weights; ``shift`` bits follow."""

    def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            prefixes = ordered_bits(batch["y"].to_numpy(zero_copy_only=False)) >> np.uint64(shift)
            counts = np.ones(len(prefixes), np.int64)
            if unit:
                counts = integer_weights(batch["w"].to_numpy(zero_copy_only=False), unit)
            has_prefix = prefixes >> np.uint64(bits) == prefix
            cells, cell_index = np.unique(prefixes[has_prefix] & np.uint64((1 << bits) - 1), return_inverse=True)
            sums = np.zeros(len(cells), np.int64)
            np.add.at(sums, cell_index, counts[has_prefix])
            yield pa.RecordBatch.from_pydict({"cell": cells.astype(np.int64), "weight": sums})

    parts = with_python(labelled_rows(table)).mapInArrow(summed, "cell long, weight long")
    sums = parts.groupBy("cell").agg(F.sum("weight")).collect()
    cells, weights = np.array(sums, np.int64).reshape(-1, 2).T
    order = np.argsort(cells)
    return cells[order], weights[order]


def with_set_numbers(frame: DataFrame, name: str) -> tuple[DataFrame, tuple[str, ...]]:
    """Replace a column with names of validation sets by the numbers of the sets, and return the names in sorted order.

    A column of another type than strings or integers stays as it is, and there are no names. InputError: the column
    has too many names.
    """
    kind, value = field(frame, name).dataType, column(name)
    if not isinstance(kind, (IntegralType, StringType)):
        return frame, ()
    is_named = value.isNotNull() & (value != F.lit("" if isinstance(kind, StringType) else 0))
    rows = frame.where(is_named).select(value).distinct().limit(MAX_SETS + 1).collect()
    if len(rows) > MAX_SETS:
        raise InputError(f"column {name!r}: expected the names of at most {MAX_SETS} validation sets, got more")
    names = sorted(row[0] for row in rows)
    number = F.lit(0)
    for index, set_name in enumerate(names, 1):
        number = F.when(value == F.lit(set_name), F.lit(index)).otherwise(number)
    return frame.withColumn(name, number.cast("tinyint")), tuple(map(str, names))


def base_of_score(objective: Objective, score: float) -> tuple[float, ...]:
    """Return the margins, one for each output, at which a model without trees predicts a score."""
    if objective.loss == "softmax":
        return (score,) * objective.width
    if objective.loss == "logistic":
        if not 0 < score < 1:
            raise ConfigError(f"baseScore: expected a probability in (0, 1), got {score:g}")
        return (float(np.log(score / (1 - score))),)
    if objective.loss == "poisson":
        if not score > 0:
            raise ConfigError(f"baseScore: expected a positive mean for loss 'poisson', got {score:g}")
        return (float(np.log(score)),)
    return (score,)


def margin_reach(table: Table, initial: Forest | None) -> tuple[float, float]:
    """Return ``TreeProblem.reach``: the lowest and highest initial margin, relative to the base."""
    low, high = (0.0, 0.0) if initial is None else leaf_range(initial.trees)
    if table.columns.margin is not None:
        margin = column(table.columns.margin).cast("double")
        limits = table.frame.agg(F.min(margin), F.max(margin)).first()
        low, high = low + (limits[0] or 0.0), high + (limits[1] or 0.0)
    return low, high
