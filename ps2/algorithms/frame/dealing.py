"""Deal (distribute) a table's rows to the workers: keep the rdd_partitions if they are balanced, else shuffle rows.

Partitions are balanced if the costs of their rows add up to about the same work (see ``Load``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType

from ps2.algorithms.frame.frames import as_arrow_structs
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

# Workers wait for the slowest one. Partitions are kept or merged only if no worker gets more than this many times the
# mean work of a worker.
MAX_RELATIVE_COST = 1.5
# Rows are dealt by cost if random dealing would give workers' costs a larger relative standard deviation than this.
MAX_UNEVENNESS = 0.05
# Spark's ``repartition`` sends a row to the partition that the hash of a column selects. Among the hashes of this many
# integers per worker, almost surely each worker is selected by one (the expected number of workers without is W e^-32).
HASHED_PER_WORKER = 32

# The number of buckets per worker to which groups are hashed, and the maximum number of buckets in total.
BUCKETS_PER_WORKER, MAX_BUCKETS = 64, 4096

# The temporary column whose hash selects the worker of a row.
WORKER = "ps2_worker"
# The temporary column of the rows' order before a shuffle.
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
    """A function that deals the rows of a surveyed table to the workers; ``requested_workers`` None: not set."""

    frame: Any
    columns: ColumnNames
    survey: TableSurvey
    requested_workers: int | None

    def __call__(self, workers: int | None = None) -> Table:
        """Deal the rows to this number of workers; None: the number that the user has set; see ``deal``."""
        return deal(self.frame, self.columns, self.survey, workers or self.requested_workers)

    @property
    def cores(self) -> Cores:
        """The cores that Spark has for a training with these rows."""
        spark = backend_of(self.frame)
        workers = _workers(spark, self.survey, self.requested_workers)
        return Cores(cores_of_one(spark), workers, cores_each(spark, workers))


def deal(frame: Any, columns: ColumnNames, survey: TableSurvey, requested_workers: int | None) -> Table:
    """Return the columns of a DataFrame for training, with one rdd_partition for each worker.

    Without a requested number, there is a worker for each partition with rows, but at most one for each task slot.
    """
    spark = backend_of(frame)
    rows = _typed(frame, columns, survey.weight_unit)
    workers = _workers(spark, survey, requested_workers)
    if columns.group is not None:
        rows, workers = _by_group(spark.with_fixed_plan(rows)[0], columns, workers)
    else:
        rows = deal_rows(rows, survey.loads, workers, cost_of(frame, columns.features))
    return Table(_with_arrow_structs(rows, columns), columns, workers)


def _workers(spark: SparkBackend, survey: TableSurvey, requested_workers: int | None) -> int:
    slots = max_slots(spark) or spark.total_slots()
    return min(requested_workers or min(max(1, len(survey.loads)), slots), survey.rows)


def deal_rows(frame: Any, loads: Mapping[int, Load], workers: int, cost: Column) -> DataFrame:
    """Return rows in one non-empty rdd_partition for each worker. There are at least as many rows as workers."""
    spark = backend_of(frame)
    rows: DataFrame
    rows, partitions = spark.with_fixed_plan(frame)
    # With Spark Connect, ``partitions`` is None: a later plan over the same rows can divide them differently. Then
    # partitions are not kept, and only merged if there is a single worker.
    is_fixed = partitions is not None
    ordered_loads = [loads.get(number, NO_LOAD) for number in range(partitions or max(loads) + 1)]
    dealing = choose_dealing(ordered_loads, workers)
    has_changed = sum(load.rows for load in ordered_loads) != sum(load.rows for load in loads.values())
    if is_fixed and has_changed and dealing != "keep":
        dealing = "shuffle"  # adaptive execution has divided the rows differently than in the survey
    if dealing == "balance":
        return _balanced(rows, cost, workers)
    if dealing == "deal" and is_fixed:
        # Round-robin dealing starts at a random worker in each partition; only a single partition reaches all workers.
        return spark.with_fixed_plan(rows.coalesce(1))[0].repartition(workers)
    if dealing == "deal":
        # Spark's optimizer removes a ``coalesce`` directly below a ``repartition``, so ``_send`` adds a column between.
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
    """Return the columns in one rdd_partition, and a new column with the index of each row's earlier partition."""
    rows = _typed(frame, columns, 1.0).withColumn(part_column, F.spark_partition_id())
    return Table(_with_arrow_structs(rows.coalesce(1), columns), columns, 1)


def choose_dealing(loads: Sequence[Load], workers: int) -> Dealing:
    """Choose how to make one non-empty rdd_partition for each worker; there are at most as many workers as rows.

    Returns:
        "keep": use the partitions as they are. "coalesce": merge neighbours. "shuffle": each partition deals its rows
        to all workers, without regard to cost. "balance": each partition deals its rows in order of descending cost.
        "deal": each partition has fewer rows than there are workers, so the rows are first merged into one partition.
    """
    are_full = all(load.rows for load in loads)
    if len(loads) == workers and are_full and _is_fair(loads):
        return "keep"
    if workers == 1:
        return "coalesce"
    # Spark merges cached partitions by location. If some are empty, a worker could get only empty partitions.
    if len(loads) > workers and are_full and _is_fair(_merged(loads, workers)):
        return "coalesce"
    if max(load.rows for load in loads) < workers:
        return "deal"
    return "shuffle" if unevenness(loads, workers) <= MAX_UNEVENNESS else "balance"


def _is_fair(loads: Sequence[Load]) -> bool:
    costs = [load.cost for load in loads]
    return max(costs) <= MAX_RELATIVE_COST * sum(costs) / len(costs)


def _merged(loads: Sequence[Load], workers: int) -> list[Load]:
    """Return the loads of the partitions that Spark's ``coalesce`` makes of partitions without preferred locations."""
    bounds = [worker * len(loads) // workers for worker in range(workers + 1)]
    return [sum(loads[begin:end], NO_LOAD) for begin, end in itertools.pairwise(bounds)]


def _balanced(rows: DataFrame, cost: Column, workers: int) -> DataFrame:
    """Deal rows so that workers get about equal sums of costs.

    Each partition sorts its rows by descending cost, and deals them to the workers 0, ..., W-1, W-1, ..., 0, ...,
    shifted by the partition's index. Of a partition's rows, two workers get sums that differ by at most about the
    largest cost.
    """
    # The lower 33 bits of Spark's id are the index of the row in its partition.
    part, row = F.spark_partition_id(), F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1)
    remainder = F.pmod(row, F.lit(workers))
    worker = F.when(F.pmod(F.floor(row / workers), F.lit(2)) == 0, remainder).otherwise(workers - 1 - remainder)
    return _send(rows.sortWithinPartitions(cost.desc()), F.pmod(worker + part, F.lit(workers)), workers)


def _send(rows: DataFrame, worker: Column, workers: int) -> DataFrame:
    """Send each row to the worker whose index is in the column ``worker``."""
    hashed = F.array(*(F.lit(value).cast("bigint") for value in _hashed_to_workers(rows, workers)))
    with_hashed = rows.withColumn(WORKER, F.element_at(hashed, worker.cast("int") + 1))
    return with_hashed.repartition(workers, WORKER).drop(WORKER)


def _by_group(rows: DataFrame, columns: ColumnNames, workers: int) -> tuple[DataFrame, int]:
    """Deal each group to one worker, so that workers get about equal sums of costs; return also the number of workers.

    Groups are hashed to buckets. In order of descending cost, each bucket is assigned to the worker with the smallest
    sum so far. There are at most as many workers as buckets with rows. A worker's rows keep their order.
    """
    assert columns.group is not None
    num_buckets = min(BUCKETS_PER_WORKER * workers, max(MAX_BUCKETS, workers))
    bucket = F.pmod(F.xxhash64(column(columns.group)), F.lit(num_buckets))
    costs = rows.groupBy(bucket.alias("bucket")).agg(F.sum(cost_of(rows, columns.features)).alias("cost")).collect()
    workers = min(workers, len(costs))
    owners, cost_sums = [0] * num_buckets, [0.0] * workers
    for row in sorted(costs, key=lambda row: (-row["cost"], row["bucket"])):
        owner = cost_sums.index(min(cost_sums))
        owners[row["bucket"]], cost_sums[owner] = owner, cost_sums[owner] + row["cost"]
    hashed = _hashed_to_workers(rows, workers)
    hashed_by_bucket = F.array(*(F.lit(hashed[owner]).cast("bigint") for owner in owners))
    with_hashed = rows.withColumn(WORKER, F.element_at(hashed_by_bucket, (bucket + 1).cast("int")))
    return shuffled_in_order(with_hashed, workers, WORKER).drop(WORKER), workers


def shuffled_in_order(rows: DataFrame, *arguments: Any) -> DataFrame:
    """Return ``rows.repartition(*arguments)`` with the rows of each partition in their order in ``rows``."""
    ordered = rows.withColumn(ORDER, F.monotonically_increasing_id())
    return ordered.repartition(*arguments).sortWithinPartitions(ORDER).drop(ORDER)


def _hashed_to_workers(rows: DataFrame, workers: int) -> list[int]:
    """Return, for each worker, an integer whose hash makes ``repartition`` select this worker."""
    smallest = (
        rows.sparkSession.range(HASHED_PER_WORKER * workers)
        .groupBy(F.pmod(F.hash("id"), F.lit(workers)).alias("worker"))
        .agg(F.min("id").alias("id"))
    )
    return [row["id"] for row in smallest.orderBy("worker").collect()]


def _typed(frame: Any, columns: ColumnNames, weight_unit: float) -> Any:
    """Return the columns for training: groups as int64; labels, margins, and weights times their unit as doubles."""
    typed = {name: column(name) for name in names_of(columns)}
    for name, unit in ((columns.label, 1.0), (columns.weight, weight_unit), (columns.margin, 1.0)):
        if name is not None:
            typed[name] = column(name).cast("double") * unit if unit != 1.0 else column(name).cast("double")
    if columns.group is not None:
        typed[columns.group] = group_number(frame, columns.group)
    return frame.select(*(typed[name].alias(name) for name in typed))


def _with_arrow_structs(rows: DataFrame, columns: ColumnNames) -> DataFrame:
    """Return rows with a column of vectors, if there is one, replaced by structs that Arrow converts fast."""
    features = columns.features
    if not isinstance(features, str) or isinstance(field(rows, features).dataType, ArrayType):
        return rows
    return rows.withColumn(features, as_arrow_structs(column(features)))


def group_number(frame: Any, name: str) -> Column:
    """Return a column of groups as int64: the hash of a string; null stays null."""
    groups = column(name)
    if isinstance(field(frame, name).dataType, StringType):
        return F.when(groups.isNotNull(), F.xxhash64(groups))
    return groups.cast("bigint")
