"""Data in the driver's memory as the rows of a run. Each worker gets its rows as a broadcast value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ps2.errors import UsageError
from ps2.run.spark.backend import Broadcast, SparkBackend, SparkJob


class LocalData(ABC):
    """Rows in the driver's memory, in order."""

    @abstractmethod
    def __init__(self, data: Any) -> None: ...

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def serialized(self, begin: int, end: int) -> bytes:
        """Return the rows in [begin, end) as bytes for ``read``."""

    @staticmethod
    @abstractmethod
    def read(part: bytes) -> Iterable[Any]:
        """Return the rows that ``serialized`` has encoded."""

    def parts(self, count: int) -> list[bytes]:
        """Return the rows as ``count`` serialized parts of (nearly) equal numbers of rows, in order."""
        bounds = [len(self) * part // count for part in range(count + 1)]
        return [self.serialized(bounds[part], bounds[part + 1]) for part in range(count)]


@dataclass(frozen=True)
class DriverRows:
    """Rows in the driver's memory as a ``RowSource``."""

    spark: SparkBackend
    data: LocalData
    partitions: int

    def repartition(self, partitions: int) -> DriverRows:
        if partitions > len(self.data):
            raise UsageError(f"run: {partitions} workers need a row each, but the data have {len(self.data)} rows")
        return DriverRows(self.spark, self.data, partitions)

    def job(self, work: Callable[[Any], int]) -> DriverRowsJob:
        shared = [self.spark.broadcast(part) for part in self.data.parts(self.partitions)]
        read = self.data.read

        def work_on_part(numbered_rows: Iterator[Any]) -> int:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            for _ in numbered_rows:  # Spark reuses a Python worker only if it has read all its rows
                pass
            return work(_rows_of(read, shared[context.partitionId()]))

        return DriverRowsJob(self.spark, self.spark.numbered_rows(self.partitions).job(work_on_part), shared)


@dataclass(frozen=True)
class DriverRowsJob:
    """A job over broadcast parts, which are released when the job has ended."""

    spark: SparkBackend
    job: SparkJob
    shared: list[Broadcast]

    @property
    def tasks(self) -> int | None:
        return self.job.tasks

    def run(self, tag: str) -> None:
        try:
            self.job.run(tag)
        finally:
            if not self.spark.is_stopped():
                for part in self.shared:
                    part.unpersist()


def _rows_of(read: Callable[[bytes], Iterable[Any]], part: Broadcast) -> Iterator[Any]:
    """Yield the rows of a part. In a generator, reading begins when the task can report errors."""
    yield from read(part.value)
