"""``SparkCheckpoint``: reads Spark's checkpoint of a query, and takes it back to an earlier batch.

Files are removed by Spark's own file system, which keeps checksums beside them.
"""

from __future__ import annotations

from typing import Any

from ps2.algorithms.jvm import file_system_of
from ps2.algorithms.training.streams.positions import Rewind, rewind_to
from ps2.errors import RecoveryError

OFFSETS, COMMITS, METADATA = "offsets", "commits", "metadata"


class SparkCheckpoint:
    """The checkpoint of a streaming query that is not running."""

    def __init__(self, spark_context: Any, location: str) -> None:
        self._context = spark_context
        self.location = location.rstrip("/")

    def exists(self) -> bool:
        """Return True if a query has started with this checkpoint."""
        path, system = file_system_of(self._context, f"{self.location}/{METADATA}")
        return bool(system.exists(path))

    def numbers(self, log: str) -> list[int]:
        """Return the numbers of the entries of a log (OFFSETS or COMMITS), ascending."""
        path, system = file_system_of(self._context, f"{self.location}/{log}")
        if not system.exists(path):
            return []
        names = [status.getPath().getName() for status in system.listStatus(path)]
        return sorted(int(name) for name in names if name.isdecimal())

    def go_back(self, learned: int) -> Rewind:
        """Remove newer entries, so that the query goes on after batch ``learned``; return them. Idempotent.

        Raises:
            RecoveryError: Spark cannot go on from there.
        """
        rewind = rewind_to(learned, self.numbers(OFFSETS), self.numbers(COMMITS), self.location)
        # Commits last: without offsets above them they would only be a query that has nothing to repeat.
        for log, numbers in ((OFFSETS, rewind.offsets), (COMMITS, rewind.commits)):
            for number in sorted(numbers, reverse=True):
                path, system = file_system_of(self._context, f"{self.location}/{log}/{number}")
                if not system.delete(path, False):
                    raise RecoveryError(f"{self.location}: {log}/{number} cannot be removed")
        return rewind
