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
        columns: roles of its columns.
        workers: how many rdd_partitions it has.
    """

    frame: Any
    columns: ColumnNames
    workers: int

    @property
    def dealt(self) -> Any:
        """The DataFrame, for ``ps.run``: a client of Spark Connect cannot ask how many rdd_partitions it has."""
        backend_of(self.frame).set_partitions(self.frame, self.workers)
        return self.frame


@dataclass(frozen=True)
class Facts:
    """Of the labels and weights of all training rows; without a column of weights, each row's is 1.

    Attributes:
        rows: how many there are.
        weight: the sum of their weights.
        weight_squared: the sum of their squares.
        class_weights: the summed weight of each class; empty for a regression.
        label_mean: weighted.
        label_std: weighted, unbiased as pyspark's Summarizer: its denominator is weight - weight_squared / weight.
        label_range: the least and the largest, of rows whose weight is above 0.
        weight_unit: a power of two that all weights are multiplied by, those here and those that workers read, where
            squares or sums of them would leave float64's range; else 1. No model knows the difference.
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
