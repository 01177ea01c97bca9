"""Bring a table's rows to the workers: in the partitions that they have if those are balanced, else by a shuffle.

Balanced are workers whose rows have about equally many stored feature values (see ``Load``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType

from ps2.algorithms.frame.frames import for_arrow, unwrapped
from ps2.algorithms.frame.placement import Cores
from ps2.algorithms.frame.tables import (
    NO_ROWS,
    TableSurvey,
    column,
    field,
    in_one_partition_if_small,
    names_of,
)
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import NO_LOAD, PART, Load, Table, loads_of, sums_of, unevenness
from ps2.errors import InputError, SlotsError
from ps2.run.spark.backend import SparkBackend
from ps2.run.spark.backend_lookup import backend_of, cores_each, cores_of_one, max_slots

# Workers wait for the slowest one. Partitions are kept or merged only if no worker gets more than this times its fair
# share of the work.
UNFAIR = 1.5
# Rows are dealt by their costs if a worker's share would vary more than this from a plain shuffle to the next.
UNEVEN = 0.05
# For each worker there is a number whose hash leads to it, among so many for each: all but surely.
CANDIDATES = 32

# Buckets of groups for each worker, and in all.
BUCKETS, MAX_BUCKETS = 64, 4096

# The column that says where a row goes.
WORKER = "ps2_worker"
# The column that says in which order rows were.
ORDER = "ps2_order"

Dealing = Literal["keep", "coalesce", "shuffle", "balance", "deal"]


def check_workers(spark: SparkBackend, requested_workers: int | None) -> None:
    """Raise SlotsError if the application can never have a task slot for each worker."""
    slots = max_slots(spark)
    if requested_workers is not None and slots is not None and requested_workers > slots:
        raise SlotsError(
            f"numWorkers: {requested_workers} workers need a task slot each, and Spark at {spark.master} has {slots}"
        )


@dataclass(frozen=True, eq=False)
class Dealer:
    """Brings the rows of a surveyed table to the workers when it is called.

    Attributes:
        requested_workers: the user's number of workers; None: not set.
    """

    frame: Any
    columns: ColumnNames
    survey: TableSurvey
    requested_workers: int | None

    def __call__(self, workers: int | None = None) -> Table:
        """Deal the rows to some workers, by default to the user's number of them; see ``deal``."""
        return deal(self.frame, self.columns, self.survey, workers or self.requested_workers)

    @property
    def cores(self) -> Cores:
        """The cores that Spark has for a training with these rows."""
        spark = backend_of(self.frame)
        workers = _workers(spark, self.survey, self.requested_workers)
        return Cores(cores_of_one(spark), workers, cores_each(spark, workers))


def deal(frame: Any, columns: ColumnNames, survey: TableSurvey, requested_workers: int | None) -> Table:
    """Bring the columns of a DataFrame into one rdd_partition for each worker.

    Without a number, there is a worker for each partition that has rows, as far as there are task slots.
    """
    spark = backend_of(frame)
    rows = _typed(frame, columns, survey.weight_unit)
    workers = _workers(spark, survey, requested_workers)
    if columns.group is not None:
        rows, workers = _by_group(spark.with_fixed_plan(rows)[0], columns, workers)
    else:
        rows = deal_rows(rows, survey.loads, workers, cost_of(frame, columns.features))
    return Table(_for_arrow(rows, columns), columns, workers)


def _workers(spark: SparkBackend, survey: TableSurvey, requested_workers: int | None) -> int:
    slots = max_slots(spark) or spark.total_slots()
    return min(requested_workers or min(max(1, len(survey.loads)), slots), survey.rows)


def deal_rows(frame: Any, loads: Mapping[int, Load], workers: int, cost: Column) -> DataFrame:
    """Return rows in one rdd_partition for each worker, none of them empty; there are as many rows as workers."""
    rows: DataFrame
    spark = backend_of(frame)
    rows, partitions = spark.with_fixed_plan(frame)
    ordered_loads = [loads.get(number, NO_LOAD) for number in range(partitions or max(loads) + 1)]
    how = way(ordered_loads, workers)
    if partitions is None:
        return _dealt_anew(rows, how, cost, workers)
    if sum(load.rows for load in ordered_loads) != sum(load.rows for load in loads.values()) and how != "keep":
        how = "shuffle"  # adaptive execution has cut the rows another way this time
    if how == "coalesce":
        return rows.coalesce(workers)
    if how == "shuffle":
        return rows.repartition(workers)
    if how == "balance":
        return _balanced(rows, cost, workers)
    if how == "deal":
        # Each partition starts dealing at another worker; only a single partition is sure to reach all workers.
        return spark.with_fixed_plan(rows.coalesce(1))[0].repartition(workers)
    return rows


def _dealt_anew(rows: DataFrame, how: Dealing, cost: Column, workers: int) -> DataFrame:
    """Deal rows whose partitions Spark does not fix (Spark Connect): none of them may stay where it is.

    A later plan over the same rows may cut them in another way, so each way but a merge into one is a shuffle.
    """
    if workers == 1:
        return rows.coalesce(1)
    if how == "balance":
        return _balanced(rows, cost, workers)
    if how != "deal":
        return rows.repartition(workers)
    # Spark would leave out a merge right below a shuffle, so a column is in between.
    numbers = F.array(*(F.lit(number).cast("bigint") for number in _numbers_with_hash(rows, workers)))
    turn = F.pmod(F.monotonically_increasing_id(), F.lit(workers)).cast("int")
    dealt = rows.coalesce(1).withColumn(WORKER, F.element_at(numbers, turn + 1))
    return dealt.repartition(workers, WORKER).drop(WORKER)


def count_rows(frame: DataFrame) -> dict[int, Load]:
    """Return the load of each rdd_partition with rows, of cost 1 each; one Spark job. InputError: there are none."""
    rows = in_one_partition_if_small(frame.select(F.spark_partition_id().alias(PART)))
    loads = loads_of(rows.groupBy(PART).agg(*sums_of(F.lit(1.0))).collect())
    if not loads:
        raise InputError(NO_ROWS)
    return loads


def together(frame: Any, columns: ColumnNames, number: str) -> Table:
    """Bring the columns, and a new one with the number of each row's rdd_partition, into one rdd_partition."""
    rows = _typed(frame, columns, 1.0).withColumn(number, F.spark_partition_id())
    return Table(_for_arrow(rows.coalesce(1), columns), columns, 1)


def way(loads: Sequence[Load], workers: int) -> Dealing:
    """Choose how to make one non-empty partition for each worker.

    Args:
        loads: the load of each partition.
        workers: at most the number of rows.

    Returns:
        "keep": use the partitions as they are. "coalesce": merge neighbours. "shuffle": every partition deals rows to
        all workers, whatever they cost. "balance": every partition deals rows by falling cost. "deal": no partition has
        a row for each worker, so the few rows go through a single partition.
    """
    are_full = all(load.rows for load in loads)
    if len(loads) == workers and are_full and _is_fair(loads):
        return "keep"
    if workers == 1:
        return "coalesce"
    # Spark merges cached partitions by location, so one worker might get only empty ones.
    if len(loads) > workers and are_full and _is_fair(_of_neighbours(loads, workers)):
        return "coalesce"
    if max(load.rows for load in loads) < workers:
        return "deal"
    return "shuffle" if unevenness(loads, workers) <= UNEVEN else "balance"


def _is_fair(loads: Sequence[Load]) -> bool:
    costs = [load.cost for load in loads]
    return max(costs) <= UNFAIR * sum(costs) / len(costs)


def _of_neighbours(loads: Sequence[Load], workers: int) -> list[Load]:
    """Add up partitions as Spark's coalesce merges them when rows have no preferred location."""
    ends = [worker * len(loads) // workers for worker in range(workers + 1)]
    return [sum(loads[begin:end], NO_LOAD) for begin, end in itertools.pairwise(ends)]


def _balanced(rows: DataFrame, cost: Column, workers: int) -> DataFrame:
    """Deal rows so that workers get about equal sums of costs.

    Each partition deals its rows by falling cost, to the workers forth and back; each begins at another worker. So two
    workers' sums differ by about the largest cost in a partition, at most.
    """
    part, row = F.spark_partition_id(), F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1)
    turn = F.pmod(row, F.lit(workers))
    position = F.when(F.pmod(F.floor(row / workers), F.lit(2)) == 0, turn).otherwise(workers - 1 - turn)
    ordered = rows.sortWithinPartitions(cost.desc())
    # Spark deals by the hash of a column, so the column holds a number with the hash for the worker.
    numbers = F.array(*(F.lit(number).cast("bigint") for number in _numbers_with_hash(rows, workers)))
    worker = F.pmod(position + part, F.lit(workers)).cast("int")
    dealt = ordered.withColumn(WORKER, F.element_at(numbers, worker + 1))
    return dealt.repartition(workers, WORKER).drop(WORKER)


def _by_group(rows: DataFrame, columns: ColumnNames, workers: int) -> tuple[DataFrame, int]:
    """Deal the rows of a group to one worker, so that workers get about equal sums of costs; return how many they are.

    Groups go by their hash to buckets, and these, by falling cost, to the worker that has least. There are no more
    workers than buckets with rows. A worker's rows keep their order.
    """
    assert columns.group is not None
    count = min(BUCKETS * workers, max(MAX_BUCKETS, workers))
    bucket = F.pmod(F.xxhash64(column(columns.group)), F.lit(count))
    costs = rows.groupBy(bucket.alias("bucket")).agg(F.sum(cost_of(rows, columns.features)).alias("cost")).collect()
    workers = min(workers, len(costs))
    owners, loads = [0] * count, [0.0] * workers
    for row in sorted(costs, key=lambda row: (-row["cost"], row["bucket"])):
        owner = loads.index(min(loads))
        owners[row["bucket"]], loads[owner] = owner, loads[owner] + row["cost"]
    numbers = _numbers_with_hash(rows, workers)
    of_buckets = F.array(*(F.lit(numbers[owner]).cast("bigint") for owner in owners))
    dealt = rows.withColumn(WORKER, F.element_at(of_buckets, (bucket + 1).cast("int")))
    return shuffled_in_order(dealt, workers, WORKER).drop(WORKER), workers


def shuffled_in_order(rows: DataFrame, *how: Any) -> DataFrame:
    """Return ``rows.repartition(*how)`` with the rows of each partition in the order in which they are now."""
    ordered = rows.withColumn(ORDER, F.monotonically_increasing_id())
    return ordered.repartition(*how).sortWithinPartitions(ORDER).drop(ORDER)


def _numbers_with_hash(rows: DataFrame, workers: int) -> list[int]:
    """Return, for each worker, a number that ``repartition`` sends to it."""
    smallest = (
        rows.sparkSession.range(CANDIDATES * workers)
        .groupBy(F.pmod(F.hash("id"), F.lit(workers)).alias("worker"))
        .agg(F.min("id").alias("id"))
    )
    return [row["id"] for row in smallest.orderBy("worker").collect()]


def _typed(frame: Any, columns: ColumnNames, weight_unit: float) -> Any:
    """Return the columns that training needs: groups as int64, numbers as doubles, weights times their unit."""
    chosen = {name: column(name) for name in names_of(columns)}
    for name, unit in ((columns.label, 1.0), (columns.weight, weight_unit), (columns.margin, 1.0)):
        if name is not None:
            chosen[name] = column(name).cast("double") * unit if unit != 1.0 else column(name).cast("double")
    if columns.group is not None:
        chosen[columns.group] = group_number(frame, columns.group)
    return frame.select(*(chosen[name].alias(name) for name in chosen))


def _for_arrow(rows: DataFrame, columns: ColumnNames) -> DataFrame:
    """Return rows whose vectors have the form that Arrow is fast with."""
    features = columns.features
    if not isinstance(features, str) or isinstance(field(rows, features).dataType, ArrayType):
        return rows
    return rows.withColumn(features, for_arrow(column(features)))


def cost_of(frame: DataFrame, features: str | tuple[str, ...]) -> Column:
    """Return what a row costs to compute with: 1, and its stored feature values."""
    if not isinstance(features, str):
        return F.lit(1.0 + len(features))
    values = column(features)
    if not isinstance(field(frame, features).dataType, ArrayType):
        values = unwrapped(values)["values"]
    return F.lit(1.0) + F.when(values.isNotNull(), F.size(values)).otherwise(0)


def group_number(frame: Any, name: str) -> Column:
    """Return a column of groups as int64: strings by their hash; null stays null."""
    groups = column(name)
    if isinstance(field(frame, name).dataType, StringType):
        return F.when(groups.isNotNull(), F.xxhash64(groups))
    return groups.cast("bigint")
