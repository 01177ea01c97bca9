"""The training data: rows dealt to workers, facts about them, and the work of rows in each rdd_partition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.training.faults import ColumnNames
from ps2.ops.kernels import Int64s, kernel
from ps2.run.spark.backend_lookup import backend_of

if TYPE_CHECKING:
    from pyspark.sql import Column


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


@dataclass(frozen=True, eq=False)
class OwnRows:
    """Rows that a family reads by itself.

    Attributes:
        frame: a DataFrame or an RDD.
        workers: the number of workers.
        read: the argument ``read`` of ``ps.run``.
        first: the run's clock with which the training begins.
    """

    frame: Any
    workers: int
    read: Callable[[Any, Any], Any]
    first: int = 0


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


# Names of the columns of a survey that ``loads_of`` reads; PART numbers the rdd_partition.
PART, ROWS, COST, SQUARES = "part", "rows", "cost", "cost_squared"


@dataclass(frozen=True)
class Load:
    """The work of the rows of one rdd_partition.

    Attributes:
        rows: how many there are.
        cost: the sum of the rows' costs: of each row, 1 and its stored feature values (tokens of a document, words of a
            sentence).
        squares: the sum of the squares of the rows' costs.
    """

    rows: int
    cost: float
    squares: float

    @staticmethod
    def of(rows: int, cost: float | None, squares: float | None) -> Load:
        """Return a load; rows whose cost is no number count alike: workers will report what is wrong with them."""
        if cost is None or squares is None or not math.isfinite(cost) or not math.isfinite(squares):
            return Load(rows, rows, rows)
        return Load(rows, cost, squares)

    def __add__(self, other: Load) -> Load:
        return Load(self.rows + other.rows, self.cost + other.cost, self.squares + other.squares)


NO_LOAD = Load(0, 0.0, 0.0)


def sums_of(cost: Column) -> list[Column]:
    """Return the aggregates of rows that ``loads_of`` reads, of the cost of a row."""
    from pyspark.sql import functions as F

    return [F.count(F.lit(1)).alias(ROWS), F.sum(cost).alias(COST), F.sum(cost * cost).alias(SQUARES)]


def sums_sql(cost: str) -> str:
    """Return the aggregates of ``sums_of`` in SQL."""
    return f"count(1) as {ROWS}, sum({cost}) as {COST}, sum({cost} * {cost}) as {SQUARES}"


def loads_of(survey_rows: Iterable[Any]) -> dict[int, Load]:
    """Return the load of each non-empty rdd_partition from the rows of a survey."""
    loads: dict[int, Load] = {}
    for row in survey_rows:
        loads[row[PART]] = loads.get(row[PART], NO_LOAD) + Load.of(row[ROWS], row[COST], row[SQUARES])
    return loads


def unevenness(loads: Iterable[Load], workers: int) -> float:
    """Return how much a worker's share of the work varies if each gets as many rows, whichever these are.

    That is the standard deviation of the sum of n / workers of n costs, relative to its mean.
    """
    total = sum(loads, NO_LOAD)
    if total.rows < 2 or not total.cost:
        return 0.0
    deviations = max(0.0, total.squares - total.cost**2 / total.rows) * total.rows / (total.rows - 1)
    return math.sqrt(deviations * (workers - 1)) / total.cost


def deal_by_cost(costs: Int64s, parts: int) -> npt.NDArray[np.int32]:
    """Return the part of each item, by the greedy rule: the costliest item first, to the cheapest part not yet full.

    No part gets more than ``ceil(n / parts)`` items.
    """
    capacity = -(-len(costs) // parts)
    part_of_item = np.empty(len(costs), np.int32)
    _deal(np.argsort(-costs, kind="stable"), costs, capacity, np.zeros((2, parts), np.int64), part_of_item)
    return part_of_item


@kernel
def _deal(order: Int64s, costs: Int64s, capacity: int, held: Int64s, part_of_item: npt.NDArray[np.int32]) -> None:
    sums, counts = held[0], held[1]
    for item in order:
        best = -1
        for part in range(len(sums)):
            if counts[part] < capacity and (best < 0 or sums[part] < sums[best]):
                best = part
        part_of_item[item] = best
        sums[best] += costs[item]
        counts[best] += 1
