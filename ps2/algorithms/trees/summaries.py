"""Losses of boosted trees after each round, and ranking metrics, for the rows of a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ps2.algorithms.frame.dealing import group_number, shuffled_in_order
from ps2.algorithms.frame.summaries import Summary, TrainingSummary
from ps2.algorithms.frame.tables import check_columns, check_group, column
from ps2.algorithms.training.faults import ColumnNames, Form, error_of
from ps2.algorithms.training.reading import read
from ps2.algorithms.trees.boosted_rows import starting_margins
from ps2.algorithms.trees.gradients import NO_WEIGHTS, Objective
from ps2.algorithms.trees.metrics import Metric
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.ranking import ALL_ROWS, LABELS, RowGroups, sum_of_ndcg, sum_of_precisions
from ps2.algorithms.trees.rows import with_all_columns
from ps2.algorithms.trees.tree import LossName
from ps2.array_types import Float64s
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import in_one_wave, with_python
from ps2.run.spark.errors import plain_job_errors


def losses_by_round(frame: DataFrame, columns: ColumnNames, model: GBTModel, loss: LossName) -> list[float]:
    """Return the mean loss after each round; loss: its name, which must apply to the model's margins."""
    check_columns(frame, columns)
    features = [columns.features] if isinstance(columns.features, str) else list(columns.features)
    number_columns = [name for name in (columns.label, columns.weight, columns.margin) if name is not None]
    selected = [column(name) for name in features]
    selected += [column(name).cast("double").alias(name) for name in number_columns if name not in features]

    if columns.group is not None:
        selected.append(group_number(frame, columns.group).alias(columns.group))

    def sum_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"sums": [_sums_by_round(batches, columns, model, loss).tolist()]})

    rows = frame.select(*selected)
    if columns.group is not None:
        rows = shuffled_in_order(rows, column(columns.group))
    with plain_job_errors():
        partition_rows = with_python(in_one_wave(rows)).mapInArrow(sum_partition, "sums array<double>").collect()
    *losses, weight = np.sum([partition_row["sums"] for partition_row in partition_rows], axis=0)
    if not weight > 0:
        raise InputError("expected rows to evaluate, got none with a weight above 0")
    return [float(loss / weight) for loss in losses]


def _sums_by_round(batches: Any, columns: ColumnNames, model: GBTModel, loss_name: LossName) -> Float64s:
    """Return a partition's sum of weighted losses after each round, and its sum of weights."""
    forest, classes = model.forest, model.classes
    reading = read(batches, columns, Form(model.dim, classes, missing=True))
    if error := error_of(reading.faults[None], columns):
        raise error
    rows = reading.training
    assert rows.y is not None
    objective = Objective(loss_name, forest.width, forest.shape)
    weights = NO_WEIGHTS if rows.weights is None else rows.weights
    groups = None
    if rows.groups is not None:
        groups = RowGroups.in_row_order(rows.groups)
    targets = (rows.y, weights, groups)
    nodes = model.nodes(with_all_columns(rows, model.dim))
    margins = starting_margins(rows, tuple(forest.base.tolist()), None)
    sums = []
    for number, tree in enumerate(forest.trees):
        margins[:, number % forest.width] += tree.value[nodes[:, number]]
        if number % forest.width == forest.width - 1:
            loss, weight = objective.losses(margins, *targets)
            sums.append(loss)
    if not sums:
        weight = objective.losses(margins, *targets)[1]
    return np.array([*sums, weight])


class RankingSummary(Summary):
    """Metrics of a ranking, as means over groups; a group without a relevant row has 1.

    Rows with equal predictions rank in the order of the DataFrame, as in LightGBM.
    """

    @property
    def groupCol(self) -> str:
        """Name of the column of groups."""
        return str(self._model.getGroupCol())

    def ndcgAt(self, k: int) -> float:
        """Return the mean NDCG of the first k rows of each group; a label's gain is 2^label - 1."""
        return self._mean(Metric("ndcg", _checked_depth(k)))

    @property
    def meanAveragePrecision(self) -> float:
        """Mean average precision; rows with a label above 0 are relevant."""
        return self._mean(Metric("map", ALL_ROWS))

    def meanAveragePrecisionAt(self, k: int) -> float:
        """Return the mean average precision of the first k rows of each group."""
        return self._mean(Metric("map", _checked_depth(k)))

    def _mean(self, metric: Metric) -> float:
        rows = self.predictions
        label = column(self.labelCol).cast("double")
        columns = ColumnNames(self.featuresCol, self.labelCol, group=self.groupCol)
        check_relevance(rows, columns)
        ranked = rows.select(
            group_number(rows, self.groupCol).alias("g"), label.alias("y"), column(self.predictionCol).alias("p")
        )

        def sum_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            total, count = sum_of_groups(batches, metric)
            yield pa.RecordBatch.from_pydict({"total": [total], "groups": [count]})

        with plain_job_errors():
            ordered = shuffled_in_order(with_python(ranked), "g")
            partition_rows = ordered.mapInArrow(sum_partition, "total double, groups double").collect()
        groups = sum(row["groups"] for row in partition_rows)
        if not groups:
            raise InputError("expected rows to evaluate, got none")
        return float(sum(row["total"] for row in partition_rows) / groups)


class RankingTrainingSummary(TrainingSummary, RankingSummary):
    """Training summary of a ranking."""


def sum_of_groups(batches: Iterable[pa.RecordBatch], metric: Metric) -> tuple[float, float]:
    """Return the sum of a metric over groups, and the number of groups; columns g, y, p: group, label, prediction."""
    parts = [[batch.column(name).to_numpy(zero_copy_only=False) for name in ("g", "y", "p")] for batch in batches]
    if not parts:
        return 0.0, 0.0
    g, y, p = (np.concatenate(column) for column in zip(*parts, strict=True))
    groups = RowGroups.in_row_order(g)
    total = (sum_of_ndcg if metric.name == "ndcg" else sum_of_precisions)(p, y, groups, metric.depth)
    return total, float(len(groups))


def _checked_depth(k: Any) -> int:
    """Return k; ConfigError unless it is a positive integer."""
    if not isinstance(k, int) or k < 1:
        raise ConfigError(f"k: expected a whole number from 1 on, got {k!r}")
    return k


def check_relevance(frame: DataFrame, columns: ColumnNames) -> None:
    """Raise InputError unless labels are relevances, and no group is null; one Spark job."""
    assert columns.label is not None
    assert columns.group is not None
    check_group(frame, columns.group)
    y = column(columns.label).cast("double")
    is_relevance = F.coalesce((y >= 0) & (y < LABELS) & (y == F.rint(y)), F.lit(False))
    checks = {
        columns.label: (~is_relevance, f"a relevance, a whole number from 0 to {LABELS - 1}"),
        columns.group: (column(columns.group).isNull(), "a group, not null"),
    }
    for name, (is_faulty, expected) in checks.items():
        faulty = frame.where(is_faulty)
        if (count := faulty.count()) > 0:
            sample = faulty.select(column(columns.group), column(columns.label)).head()
            raise InputError(f"column {name!r}: expected {expected}, got {count} other rows, such as {sample}")
