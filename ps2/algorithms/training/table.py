"""The training data: rows dealt out to workers, and facts about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ps2.algorithms.training.faults import ColumnNames
from ps2.run.spark.backend_lookup import backend_of


@dataclass(frozen=True, eq=False)
class Table:
    """Rows to train on, one rdd_partition for each worker, none of them empty.

    Attributes:
        frame: DataFrame.
        columns: the roles of its columns.
        workers: number of rdd_partitions.
    """

    frame: Any
    columns: ColumnNames
    workers: int

    @property
    def dealt(self) -> Any:
        """The DataFrame for ``ps.run``, marked with its partition count, which Spark Connect cannot be asked for."""
        backend_of(self.frame).set_partitions(self.frame, self.workers)
        return self.frame


@dataclass(frozen=True)
class Facts:
    """Statistics of the labels and weights of all training rows. Without a weight column, each weight is 1.

    Attributes:
        rows: number of rows.
        weight: sum of the weights.
        weight_squared: sum of the squared weights.
        class_weights: summed weight of each class; empty for a regression.
        label_mean: weighted mean of the labels.
        label_std: weighted standard deviation of the labels, unbiased as pyspark's Summarizer: its denominator is
            weight - weight_squared / weight.
        label_range: least and largest label of rows whose weight is above 0.
        weight_unit: power of two that multiplies all weights, here and in workers, so that their squares and sums stay
            within float64's range; usually 1. The models are the same.
    """

    rows: int
    weight: float
    weight_squared: float
    class_weights: tuple[float, ...]
    label_mean: float
    label_std: float
    label_range: tuple[float, float] = (0.0, 0.0)
    weight_unit: float = 1.0


def quoted(name: str) -> str:
    """Return the name of a column as SQL has it."""
    return "`" + name.replace("`", "``") + "`"
