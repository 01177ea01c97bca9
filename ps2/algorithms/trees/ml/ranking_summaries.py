"""Metrics of rankings, and checks of their labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ps2.algorithms.estimators.dealing import group_number, shuffled_in_order
from ps2.algorithms.estimators.summaries import Summary, TrainingSummary
from ps2.algorithms.estimators.tables import check_group, column
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.trees.metrics import Metric
from ps2.algorithms.trees.ranking import ALL, sum_of_ndcg, sum_of_precisions
from ps2.algorithms.trees.ranking_kernels import LABELS
from ps2.algorithms.trees.row_groups import RowGroups
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import with_python
from ps2.run.spark.errors import plain_job_errors


class RankingSummary(Summary):
    """Metrics of a ranking: means over groups, each of which counts 1; a group without a relevant row has 1.

    Rows of equal predictions are in the order of the DataFrame, as in LightGBM.
    """

    @property
    def groupCol(self) -> str:
        """Name of the column of groups."""
        return str(self._model.getGroupCol())

    def ndcgAt(self, k: int) -> float:
        """Return the mean NDCG of the first k rows of groups; a label's gain is 2^label - 1."""
        return self._mean(Metric("ndcg", _checked(k)))

    @property
    def meanAveragePrecision(self) -> float:
        """Mean average precision; rows with a label above 0 are relevant."""
        return self._mean(Metric("map", ALL))

    def meanAveragePrecisionAt(self, k: int) -> float:
        """Return the mean average precision of the first k rows of groups."""
        return self._mean(Metric("map", _checked(k)))

    def _mean(self, metric: Metric) -> float:
        rows = self.predictions
        label = column(self.labelCol).cast("double")
        columns = ColumnNames(self.featuresCol, self.labelCol, group=self.groupCol)
        check_relevance(rows, columns)
        ranked = rows.select(
            group_number(rows, self.groupCol).alias("g"), label.alias("y"), column(self.predictionCol).alias("p")
        )

        def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            total, count = sum_of_groups(batches, metric)
            yield pa.RecordBatch.from_pydict({"total": [total], "groups": [count]})

        with plain_job_errors():
            ordered = shuffled_in_order(with_python(ranked), "g")
            parts = ordered.mapInArrow(summed, "total double, groups double").collect()
        return float(sum(part["total"] for part in parts) / sum(part["groups"] for part in parts))


class RankingTrainingSummary(TrainingSummary, RankingSummary):
    """Training summary of a ranking."""


def sum_of_groups(batches: Iterable[pa.RecordBatch], metric: Metric) -> tuple[float, float]:
    """Return the sum of a metric over groups, and how many there are.

    Args:
        batches: with columns g (int64: the group), y (labels) and p (predictions), both float64; whole groups, whose
            rows of equal predictions rank in this order.
    """
    parts = [[batch.column(name).to_numpy(zero_copy_only=False) for name in ("g", "y", "p")] for batch in batches]
    if not parts:
        return 0.0, 0.0
    g, y, p = (np.concatenate(column) for column in zip(*parts, strict=True))
    groups = RowGroups.in_order(g)
    total = (sum_of_ndcg if metric.name == "ndcg" else sum_of_precisions)(p, y, groups, metric.at)
    return total, float(len(groups))


def _checked(k: Any) -> int:
    if not isinstance(k, int) or k < 1:
        raise ConfigError(f"k: expected a whole number from 1 on, got {k!r}")
    return k


def check_relevance(frame: DataFrame, columns: ColumnNames) -> None:
    """Raise InputError unless labels are relevances, and no group is null; one Spark job.

    Args:
        columns: with a label, which is of numbers, and a group; others are not looked at.
    """
    assert columns.label is not None
    assert columns.group is not None
    check_group(frame, columns.group)
    y = column(columns.label).cast("double")
    is_relevance = F.coalesce((y >= 0) & (y < LABELS) & (y == F.rint(y)), F.lit(False))
    kinds = {
        columns.label: (~is_relevance, f"a relevance, a whole number from 0 to {LABELS - 1}"),
        columns.group: (column(columns.group).isNull(), "a group, not null"),
    }
    for name, (is_wrong, expected) in kinds.items():
        wrong = frame.where(is_wrong)
        if (count := wrong.count()) > 0:
            sample = wrong.select(column(columns.group), column(columns.label)).head()
            raise InputError(f"column {name!r}: expected {expected}, got {count} other rows, such as {sample}")
