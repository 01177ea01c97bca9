"""Deal a table's rows to the workers: keep balanced partitions as they are, shuffle others.

Partitions are balanced if the work of their rows is about equal (see ``Load``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType

from ps2.algorithms.frame.frames import for_arrow
from ps2.algorithms.frame.placement import Cores
from ps2.algorithms.frame.tables import (
    NO_ROWS,
    TableSurvey,
    column,
    cost_of,
    field,
    names_of,
    partition_loads,
)
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import NO_LOAD, Load, Table, unevenness
from ps2.errors import InputError, SlotsError
from ps2.run.spark.backend import SparkBackend
from ps2.run.spark.backend_lookup import backend_of, cores_each, cores_of_one, max_slots

# Workers wait for the slowest one. Partitions are kept or merged only if no worker gets more than this many times its
# fair share of the work.
MAX_SHARE = 1.5
# Rows are dealt by cost if random dealing would give workers shares whose relative standard deviation is above this.
MAX_UNEVENNESS = 0.05
# Spark sends a number to the worker that its hash selects. Among this many numbers per worker, each worker almost
# surely has one.
NUMBERS_PER_WORKER = 32

# Groups are hashed to this many buckets per worker, and to at most so many in all.
BUCKETS_PER_WORKER, MAX_BUCKETS = 64, 4096

# The column whose hash selects the worker of a row.
WORKER = "ps2_worker"
# The column of the rows' former order.
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
    """Deals the rows of a surveyed table to the workers when it is called.

    Attributes:
        requested_workers: the user's number of workers; None: not set.
    """

    frame: Any
    columns: ColumnNames
    survey: TableSurvey
    requested_workers: int | None

    def __call__(self, workers: int | None = None) -> Table:
        """Deal the rows to this number of workers, by default the user's; see ``deal``."""
        return deal(self.frame, self.columns, self.survey, workers or self.requested_workers)

    @property
    def cores(self) -> Cores:
        """The cores that Spark has for a training with these rows."""
        spark = backend_of(self.frame)
        workers = _workers(spark, self.survey, self.requested_workers)
        return Cores(cores_of_one(spark), workers, cores_each(spark, workers))


def deal(frame: Any, columns: ColumnNames, survey: TableSurvey, requested_workers: int | None) -> Table:
    """Bring the columns of a DataFrame into one rdd_partition for each worker.

    If the user requests no number of workers, each partition with rows has one, up to the number of task slots.
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
    """Return rows in one non-empty rdd_partition for each worker. There are at least as many rows as workers."""
    spark = backend_of(frame)
    rows: DataFrame
    rows, partitions = spark.with_fixed_plan(frame)
    # With Spark Connect, a later plan over the same rows can cut them into other partitions. Then none is kept, and the
    # only merge is that of all partitions into one.
    is_fixed = partitions is not None
    ordered_loads = [loads.get(number, NO_LOAD) for number in range(partitions or max(loads) + 1)]
    dealing = choose_dealing(ordered_loads, workers)
    has_changed = sum(load.rows for load in ordered_loads) != sum(load.rows for load in loads.values())
    if is_fixed and has_changed and dealing != "keep":
        dealing = "shuffle"  # adaptive execution has cut the rows into other partitions this time
    if dealing == "balance":
        return _balanced(rows, cost, workers)
    if dealing == "deal" and is_fixed:
        # Each partition starts dealing at another worker; only a single partition is sure to reach all workers.
        return spark.with_fixed_plan(rows.coalesce(1))[0].repartition(workers)
    if dealing == "deal":
        # Spark would leave out a merge right below a shuffle, so a column is in between.
        return _send(rows.coalesce(1), F.pmod(F.monotonically_increasing_id(), F.lit(workers)), workers)
    if dealing == "keep" and is_fixed:
        return rows
    merges = workers == 1 or (is_fixed and dealing == "coalesce")
    return rows.coalesce(workers) if merges else rows.repartition(workers)


def count_rows(frame: DataFrame) -> dict[int, Load]:
    """Return the load of each rdd_partition, with cost 1 for each row; raise InputError if there is no row."""
    loads = partition_loads(frame, F.lit(1.0))
    if not loads:
        raise InputError(NO_ROWS)
    return loads


def gather_rows(frame: Any, columns: ColumnNames, part_column: str) -> Table:
    """Bring the columns, and a new one with the number of each row's rdd_partition, into one rdd_partition."""
    rows = _typed(frame, columns, 1.0).withColumn(part_column, F.spark_partition_id())
    return Table(_for_arrow(rows.coalesce(1), columns), columns, 1)


def choose_dealing(loads: Sequence[Load], workers: int) -> Dealing:
    """Choose how to make one non-empty partition for each worker.

    Args:
        loads: the load of each partition.
        workers: the number of workers, at most the number of rows.

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
    # Spark merges cached partitions by location, so a worker could get empty partitions only.
    if len(loads) > workers and are_full and _is_fair(_merged(loads, workers)):
        return "coalesce"
    if max(load.rows for load in loads) < workers:
        return "deal"
    return "shuffle" if unevenness(loads, workers) <= MAX_UNEVENNESS else "balance"


def _is_fair(loads: Sequence[Load]) -> bool:
    costs = [load.cost for load in loads]
    return max(costs) <= MAX_SHARE * sum(costs) / len(costs)


def _merged(loads: Sequence[Load], workers: int) -> list[Load]:
    """Return the loads of partitions that Spark's coalesce makes of neighbours without a preferred location."""
    bounds = [worker * len(loads) // workers for worker in range(workers + 1)]
    return [sum(loads[begin:end], NO_LOAD) for begin, end in itertools.pairwise(bounds)]


def _balanced(rows: DataFrame, cost: Column, workers: int) -> DataFrame:
    """Deal rows so that workers get about equal sums of costs.

    Each partition deals its rows by falling cost, to the workers in turn and then in reverse; each partition begins at
    another worker. So the sums of two workers differ at most by about the largest cost in a partition.
    """
    part, row = F.spark_partition_id(), F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1)
    turn = F.pmod(row, F.lit(workers))
    position = F.when(F.pmod(F.floor(row / workers), F.lit(2)) == 0, turn).otherwise(workers - 1 - turn)
    return _send(rows.sortWithinPartitions(cost.desc()), F.pmod(position + part, F.lit(workers)), workers)


def _send(rows: DataFrame, worker: Column, workers: int) -> DataFrame:
    """Send each row to a worker, by the worker's index."""
    # Spark deals by the hash of a column, so the column has a number whose hash selects the worker.
    numbers = F.array(*(F.lit(number).cast("bigint") for number in _numbers_by_worker(rows, workers)))
    with_numbers = rows.withColumn(WORKER, F.element_at(numbers, worker.cast("int") + 1))
    return with_numbers.repartition(workers, WORKER).drop(WORKER)


def _by_group(rows: DataFrame, columns: ColumnNames, workers: int) -> tuple[DataFrame, int]:
    """Deal each group to one worker, so that workers get about equal sums of costs; return the number of workers, too.

    Groups are hashed to buckets. By falling cost, each bucket goes to the worker with the smallest sum. There are no
    more workers than buckets with rows. A worker's rows keep their order.
    """
    assert columns.group is not None
    count = min(BUCKETS_PER_WORKER * workers, max(MAX_BUCKETS, workers))
    bucket = F.pmod(F.xxhash64(column(columns.group)), F.lit(count))
    costs = rows.groupBy(bucket.alias("bucket")).agg(F.sum(cost_of(rows, columns.features)).alias("cost")).collect()
    workers = min(workers, len(costs))
    owners, loads = [0] * count, [0.0] * workers
    for row in sorted(costs, key=lambda row: (-row["cost"], row["bucket"])):
        owner = loads.index(min(loads))
        owners[row["bucket"]], loads[owner] = owner, loads[owner] + row["cost"]
    numbers = _numbers_by_worker(rows, workers)
    numbers_by_bucket = F.array(*(F.lit(numbers[owner]).cast("bigint") for owner in owners))
    with_numbers = rows.withColumn(WORKER, F.element_at(numbers_by_bucket, (bucket + 1).cast("int")))
    return shuffled_in_order(with_numbers, workers, WORKER).drop(WORKER), workers


def shuffled_in_order(rows: DataFrame, *arguments: Any) -> DataFrame:
    """Return ``rows.repartition(*arguments)``, in which the rows of each partition keep their present order."""
    ordered = rows.withColumn(ORDER, F.monotonically_increasing_id())
    return ordered.repartition(*arguments).sortWithinPartitions(ORDER).drop(ORDER)


def _numbers_by_worker(rows: DataFrame, workers: int) -> list[int]:
    """Return, for each worker, a number that ``repartition`` sends to it."""
    smallest = (
        rows.sparkSession.range(NUMBERS_PER_WORKER * workers)
        .groupBy(F.pmod(F.hash("id"), F.lit(workers)).alias("worker"))
        .agg(F.min("id").alias("id"))
    )
    return [row["id"] for row in smallest.orderBy("worker").collect()]


def _typed(frame: Any, columns: ColumnNames, weight_unit: float) -> Any:
    """Return the columns for training: groups as int64, other numbers as doubles, weights multiplied by their unit."""
    chosen = {name: column(name) for name in names_of(columns)}
    for name, unit in ((columns.label, 1.0), (columns.weight, weight_unit), (columns.margin, 1.0)):
        if name is not None:
            chosen[name] = column(name).cast("double") * unit if unit != 1.0 else column(name).cast("double")
    if columns.group is not None:
        chosen[columns.group] = group_number(frame, columns.group)
    return frame.select(*(chosen[name].alias(name) for name in chosen))


def _for_arrow(rows: DataFrame, columns: ColumnNames) -> DataFrame:
    """Return rows whose vectors are structs that Arrow converts fast."""
    features = columns.features
    if not isinstance(features, str) or isinstance(field(rows, features).dataType, ArrayType):
        return rows
    return rows.withColumn(features, for_arrow(column(features)))


def group_number(frame: Any, name: str) -> Column:
    """Return a column of groups as int64: the hash of a string; null stays null."""
    groups = column(name)
    if isinstance(field(frame, name).dataType, StringType):
        return F.when(groups.isNotNull(), F.xxhash64(groups))
    return groups.cast("bigint")
