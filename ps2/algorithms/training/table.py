"""The training data: a table with one rdd_partition for each worker, its statistics, and the cost of its rows.

Messages and docs call a partition of Spark's data an rdd_partition; a matrix on servers also has partitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.training.faults import ColumnNames
from ps2.ops.kernels import Int64s, kernel
from ps2.run.spark.backend_lookup import backend_of


@dataclass(frozen=True, eq=False)
class Table:
    """Rows to train on, in one non-empty rdd_partition for each worker; ``columns`` has column names by role."""

    frame: Any
    columns: ColumnNames
    workers: int

    @property
    def frame_for_run(self) -> Any:
        """The DataFrame for ``ps.run``, with its number of partitions as an attribute: Spark Connect cannot tell it."""
        backend_of(self.frame).set_partitions(self.frame, self.workers)
        return self.frame


@dataclass(frozen=True, eq=False)
class OwnRows:
    """Rows that the family's own function reads in the workers.

    Attributes:
        frame: a DataFrame or an RDD.
        read: the family's function, which is the argument ``read`` of ``ps.run``.
        first_clock: the clock of the run in which the training begins.
    """

    frame: Any
    workers: int
    read: Callable[[Any, Any], Any]
    first_clock: int = 0


@dataclass(frozen=True)
class Facts:
    """Statistics of the labels and weights of all training rows. Without a weight column, each weight is 1.

    Attributes:
        weight: the sum of the weights.
        weight_squared: the sum of the squared weights.
        class_weights: the sum of the weights of each class; empty for a regression.
        label_mean: the weighted mean of the labels.
        label_std: the weighted standard deviation of the labels, unbiased like that of pyspark's Summarizer: its
            denominator is weight - weight_squared / weight.
        label_range: the smallest and the largest label of rows whose weight is above 0.
        weight_unit: the power of two by which all weights are multiplied, here and in the workers, so that their
            squares and sums stay within float64's range. It is usually 1, and does not change the model.
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
    """Return the name of a column as a quoted SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


# The columns of a survey that ``loads_of`` reads: the index of the rdd_partition, and aggregates of its rows.
PART, ROWS, COST, SQUARES = "part", "rows", "cost", "cost_squared"
# The aggregates in SQL, computed from the column COST of the rows.
LOAD_SUMS = (f"count(1) as {ROWS}", f"sum({COST}) as {COST}", f"sum({COST} * {COST}) as {SQUARES}")


@dataclass(frozen=True)
class Load:
    """The work of the rows of one rdd_partition. (Work that a family measures in seconds is ``placement.Work``.)

    A row costs 1, plus 1 for each stored feature value, token of a document or word of a sentence.

    Attributes:
        cost: the sum of the rows' costs.
        squares: the sum of the squares of the rows' costs.
    """

    rows: int
    cost: float
    squares: float

    @staticmethod
    def of(rows: int, cost: float | None, squares: float | None) -> Load:
        """Return a load. If sums are not finite, each row costs 1; the workers report the fault when they read rows."""
        if cost is None or squares is None or not math.isfinite(cost) or not math.isfinite(squares):
            return Load(rows, rows, rows)
        return Load(rows, cost, squares)

    def __add__(self, other: Load) -> Load:
        return Load(self.rows + other.rows, self.cost + other.cost, self.squares + other.squares)


NO_LOAD = Load(0, 0.0, 0.0)


def loads_of(survey_rows: Iterable[Any]) -> dict[int, Load]:
    """Return the load of each non-empty rdd_partition from the rows of a survey."""
    loads: dict[int, Load] = {}
    for row in survey_rows:
        loads[row[PART]] = loads.get(row[PART], NO_LOAD) + Load.of(row[ROWS], row[COST], row[SQUARES])
    return loads


def unevenness(loads: Iterable[Load], workers: int) -> float:
    """Return the relative standard deviation of a worker's cost if each worker gets equally many random rows.

    A worker's cost is the sum of n / workers of the n costs, which are drawn without replacement.
    """
    total = sum(loads, NO_LOAD)
    if total.rows < 2 or not total.cost:
        return 0.0
    deviations = max(0.0, total.squares - total.cost**2 / total.rows) * total.rows / (total.rows - 1)
    return math.sqrt(deviations * (workers - 1)) / total.cost


def deal_by_cost(costs: Int64s, parts: int) -> npt.NDArray[np.int32]:
    """Assign n items to parts of about equal cost; return each item's part, int32, shape (n,).

    In order of descending cost, an item is assigned to the cheapest part that has fewer than ``ceil(n / parts)`` items.
    """
    capacity = -(-len(costs) // parts)
    part_of_item = np.empty(len(costs), np.int32)
    _deal(np.argsort(-costs, kind="stable"), costs, capacity, np.zeros((2, parts), np.int64), part_of_item)
    return part_of_item


@kernel
def _deal(order: Int64s, costs: Int64s, capacity: int, totals: Int64s, part_of_item: npt.NDArray[np.int32]) -> None:
    sums, counts = totals[0], totals[1]
    for item in order:
        best = -1
        for part in range(len(sums)):
            if counts[part] < capacity and (best < 0 or sums[part] < sums[best]):
                best = part
        part_of_item[item] = best
        sums[best] += costs[item]
        counts[best] += 1
