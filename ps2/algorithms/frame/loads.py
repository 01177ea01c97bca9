"""How much work the rows of each rdd_partition are, and how evenly a shuffle would deal them. Pure, but for columns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column

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
    """Return the aggregates of rows that ``loads_of`` reads.

    Args:
        cost: of a row.
    """
    from pyspark.sql import functions as F

    return [F.count(F.lit(1)).alias(ROWS), F.sum(cost).alias(COST), F.sum(cost * cost).alias(SQUARES)]


def sums_sql(cost: str) -> str:
    """Return the aggregates of ``sums_of`` in SQL.

    Args:
        cost: of a row.
    """
    return f"count(1) as {ROWS}, sum({cost}) as {COST}, sum({cost} * {cost}) as {SQUARES}"


def loads_of(found: Iterable[Any]) -> dict[int, Load]:
    """Return the load of each non-empty rdd_partition from the rows of a survey."""
    loads: dict[int, Load] = {}
    for row in found:
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
