"""How a table's rows are dealt out to workers: as they lie, if that is fair, else by a shuffle."""

from __future__ import annotations

import itertools
from typing import Any, Literal

from ps2.algorithms.estimators.tables import Look, column, names_of
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table
from ps2.coordinator.slots import most_slots, total_slots
from ps2.errors import SlotsError
from ps2.run.job import fixed

# Workers wait for the slowest: partitions are put together if none has more than this times its share.
UNFAIR = 2.0

Dealing = Literal["keep", "coalesce", "shuffle", "deal"]


def check_workers(spark_context: Any, wanted: int | None) -> None:
    """Raise SlotsError if there can never be a task slot for each worker."""
    most = most_slots(spark_context)
    if wanted is not None and most is not None and wanted > most:
        raise SlotsError(
            f"numWorkers: {wanted} workers need a task slot each, and Spark at {spark_context.master} has {most}"
        )


def deal(frame: Any, columns: ColumnNames, found: Look, wanted: int | None) -> Table:
    """Bring the columns of a DataFrame into one rdd_partition for each worker.

    Args:
        wanted: workers; None: one for each partition that has rows, as far as there are task slots.
    """
    spark_context = frame.sparkSession.sparkContext
    slots = most_slots(spark_context) or total_slots(spark_context)
    rows, partitions = fixed(_typed(frame, columns, found.weight_unit))
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
        # Each partition deals from a place of its own; only rows of a single one come to all workers for sure.
        rows = fixed(rows.coalesce(1))[0].repartition(workers)
    return Table(rows, columns, workers)


def way(counts: list[int], workers: int) -> Dealing:
    """Choose how to make one partition with rows for each worker.

    Args:
        counts: rows of each partition.
        workers: at most as many as rows.

    Returns:
        "keep": as they are; "coalesce": neighbours go together; "shuffle": every partition deals to all workers;
        "deal": no partition has a row for each worker, so the rows, which are few, go through one.
    """
    if len(counts) == workers and all(counts):
        return "keep"
    # Partitions that are cached somewhere are put together by where that is: all of a worker's may be empty ones.
    if len(counts) > workers and all(counts):
        sums = _of_neighbours(counts, workers)
        if max(sums) <= UNFAIR * sum(sums) / workers:
            return "coalesce"
    return "shuffle" if max(counts) >= workers else "deal"


def _of_neighbours(counts: list[int], workers: int) -> list[int]:
    """Add up partitions as Spark's coalesce puts them together where rows lie nowhere in particular."""
    ends = [worker * len(counts) // workers for worker in range(workers + 1)]
    return [sum(counts[begin:end]) for begin, end in itertools.pairwise(ends)]


def _typed(frame: Any, columns: ColumnNames, weight_unit: float) -> Any:
    """Return the columns that training needs; labels and weights as doubles, weights times their unit."""
    chosen = {name: column(name) for name in names_of(columns)}
    for name, unit in ((columns.label, 1.0), (columns.weight, weight_unit)):
        if name is not None:
            chosen[name] = column(name).cast("double") * unit if unit != 1.0 else column(name).cast("double")
    return frame.select(*(chosen[name].alias(name) for name in chosen))
