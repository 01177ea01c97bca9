"""``SparkCheckpoint``: reads Spark's checkpoint of a query, and takes it back to an earlier batch."""

from __future__ import annotations

from ps2.algorithms.training.streams.positions import Rewind, file_offset, files_after, rewind_to
from ps2.errors import RecoveryError
from ps2.run.spark.backend import CheckpointFiles

OFFSETS, COMMITS, METADATA, SOURCES = "offsets", "commits", "metadata", "sources"


class SparkCheckpoint:
    """The checkpoint of a streaming query that is not running."""

    def __init__(self, files: CheckpointFiles, location: str) -> None:
        self._files = files
        self.location = location.rstrip("/")

    def exists(self) -> bool:
        """Return True if a query has started with this checkpoint."""
        return self._files.exists(self._path(METADATA))

    def numbers(self, log: str) -> list[int]:
        """Return the numbers of the entries of a log (OFFSETS or COMMITS), ascending."""
        return sorted(int(name) for name in self._names(log) if name.isdecimal())

    def rewind(self, learned: int) -> Rewind:
        """Remove newer entries, so that the query goes on after batch ``learned``; return them. Idempotent.

        Raise RecoveryError if Spark cannot go on from there, or files that it has to read again are gone.
        """
        rewind = rewind_to(learned, self.numbers(OFFSETS), self.numbers(COMMITS), self.location)
        self._check_files(learned)
        # Commits last: without offsets above them they would only be a query that has nothing to repeat.
        for log, numbers in ((OFFSETS, rewind.offsets), (COMMITS, rewind.commits)):
            for number in sorted(numbers, reverse=True):
                if not self._files.delete(self._path(log, number)):
                    raise RecoveryError(f"{self.location}: {log}/{number} cannot be removed")
        return rewind

    def _check_files(self, learned: int) -> None:
        """Raise RecoveryError if files after batch ``learned`` are gone: Spark would leave them out without a word."""
        offsets = self._files.text(self._path(OFFSETS, learned)) if learned in self.numbers(OFFSETS) else ""
        gone = [
            uri
            for source in sorted(name for name in self._names(SOURCES) if name.isdecimal())
            for uri in self._files_after(source, file_offset(offsets, int(source)))
            if not self._files.exists_uri(uri)
        ]
        if gone:
            raise RecoveryError(
                f"{self.location}: the model holds the batches up to {learned}, and files of later batches are gone, "
                f"whose rows would be lost: {len(gone)}, such as {gone[0]}. Keep a stream's files until the snapshot "
                "after their batch, and leave cleanSource off"
            )

    def _files_after(self, source: str, offset: int) -> list[str]:
        """Return the URIs of the files that a source has listed after an offset of its own."""
        log = f"{SOURCES}/{source}"
        names = [name for name in self._names(log) if name.removesuffix(".compact").isdecimal()]
        newer = [name for name in names if int(name.removesuffix(".compact")) > offset]
        return sorted({uri for name in newer for uri in files_after(self._files.text(self._path(log, name)), offset)})

    def _names(self, folder: str) -> list[str]:
        return self._files.names(self._path(folder))

    def _path(self, *names: object) -> str:
        return "/".join([self.location, *map(str, names)])
