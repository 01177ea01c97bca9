"""Bring a table's rows to the workers: in the partitions that they have if those are balanced, else by a shuffle."""

from __future__ import annotations

import itertools
from typing import Any, Literal

from ps2.algorithms.estimators.tables import TableSurvey, column, names_of
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table
from ps2.errors import SlotsError
from ps2.run.slots import most_slots
from ps2.run.spark import fixed_frame, total_slots

# Workers wait for the slowest one. Partitions are merged only if no worker gets more than this times its fair share.
UNFAIR = 2.0

Dealing = Literal["keep", "coalesce", "shuffle", "deal"]


def check_workers(spark_context: Any, wanted: int | None) -> None:
    """Raise SlotsError if the application can never have a task slot for each worker."""
    most = most_slots(spark_context)
    if wanted is not None and most is not None and wanted > most:
        raise SlotsError(
            f"numWorkers: {wanted} workers need a task slot each, and Spark at {spark_context.master} has {most}"
        )


def deal(frame: Any, columns: ColumnNames, found: TableSurvey, wanted: int | None) -> Table:
    """Bring the columns of a DataFrame into one rdd_partition for each worker.

    Args:
        wanted: workers; None: one for each partition that has rows, as far as there are task slots.
    """
    spark_context = frame.sparkSession.sparkContext
    slots = most_slots(spark_context) or total_slots(spark_context)
    rows, partitions = fixed_frame(_typed(frame, columns, found.weight_unit))
    counts = [found.rows_in.get(number, 0) for number in range(partitions)]
    workers = min(wanted or min(max(1, sum(map(bool, counts))), slots), found.rows)
    how = way(counts, workers)
    if sum(counts) != found.rows and how != "keep":
        how = "shuffle"  # adaptive execution has cut the rows another way this time
    if how == "coalesce":
        rows = rows.coalesce(workers)
    elif how == "shuffle":
        rows = rows.repartition(workers)
    elif how == "deal":
        # Each partition starts dealing at another worker; only a single partition is sure to reach all workers.
        rows = fixed_frame(rows.coalesce(1))[0].repartition(workers)
    return Table(rows, columns, workers)


def way(counts: list[int], workers: int) -> Dealing:
    """Choose how to make one non-empty partition for each worker.

    Args:
        counts: rows of each partition.
        workers: at most the number of rows.

    Returns:
        "keep": use the partitions as they are. "coalesce": merge neighbours. "shuffle": every partition deals rows to
        all workers. "deal": no partition has a row for each worker, so the few rows go through a single partition.
    """
    if len(counts) == workers and all(counts):
        return "keep"
    # Spark merges cached partitions by location, so one worker might get only empty ones.
    if len(counts) > workers and all(counts):
        sums = _of_neighbours(counts, workers)
        if max(sums) <= UNFAIR * sum(sums) / workers:
            return "coalesce"
    return "shuffle" if max(counts) >= workers else "deal"


def _of_neighbours(counts: list[int], workers: int) -> list[int]:
    """Add up partitions as Spark's coalesce merges them when rows have no preferred location."""
    ends = [worker * len(counts) // workers for worker in range(workers + 1)]
    return [sum(counts[begin:end]) for begin, end in itertools.pairwise(ends)]


def _typed(frame: Any, columns: ColumnNames, weight_unit: float) -> Any:
    """Return the columns that training needs; labels and weights as doubles, weights multiplied by their unit."""
    chosen = {name: column(name) for name in names_of(columns)}
    for name, unit in ((columns.label, 1.0), (columns.weight, weight_unit)):
        if name is not None:
            chosen[name] = column(name).cast("double") * unit if unit != 1.0 else column(name).cast("double")
    return frame.select(*(chosen[name].alias(name) for name in chosen))
