"""Read Spark's checkpoint of a streaming query, and rewind it to the last batch from which the model has learned.

Spark numbers the batches of a query 0, 1, 2, ... It writes ``offsets/N`` before it runs batch N, and ``commits/N``
after it. If the newest batch has no commit, a query that starts repeats it with the same offsets. All functions but
those of ``SparkCheckpoint`` are pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ps2.errors import RecoveryError
from ps2.run.spark.backend import CheckpointFiles

# The number of the last batch if there is no batch.
NOTHING = -1
# The names of Spark's files and folders in a checkpoint.
OFFSETS, COMMITS, METADATA, SOURCES = "offsets", "commits", "metadata", "sources"


class SparkCheckpoint:
    """The checkpoint of a streaming query that is not running."""

    def __init__(self, files: CheckpointFiles, location: str) -> None:
        self._files = files
        self.location = location.rstrip("/")

    def exists(self) -> bool:
        """Return whether a query has started with this checkpoint."""
        return self._files.exists(self._path(METADATA))

    def numbers(self, log: str) -> list[int]:
        """Return the numbers of the entries of a log (OFFSETS or COMMITS) in ascending order."""
        return sorted(int(name) for name in self._names(log) if name.isdecimal())

    def rewind(self, learned: int) -> None:
        """Remove newer entries, so that the query continues after batch ``learned``. Idempotent.

        Raise RecoveryError if Spark cannot continue there, or files that it must read again are gone.
        """
        rewind = rewind_to(learned, self.numbers(OFFSETS), self.numbers(COMMITS), self.location)
        self._check_files(learned)
        # Offsets are removed first. If this stops halfway, commits without offsets remain, which do no harm.
        for log, numbers in ((OFFSETS, rewind.offsets), (COMMITS, rewind.commits)):
            for number in sorted(numbers, reverse=True):
                if not self._files.delete(self._path(log, number)):
                    raise RecoveryError(f"{self.location}: {log}/{number} cannot be removed")

    def _check_files(self, learned: int) -> None:
        """Raise RecoveryError if input files of batches after ``learned`` are gone: Spark would silently skip them."""
        offsets = self._files.text(self._path(OFFSETS, learned)) if learned in self.numbers(OFFSETS) else ""
        missing_files = [
            uri
            for source in sorted(name for name in self._names(SOURCES) if name.isdecimal())
            for uri in self._files_after(source, file_offset(offsets, int(source)))
            if not self._files.exists_uri(uri)
        ]
        if missing_files:
            raise RecoveryError(
                f"{self.location}: the model holds the batches up to {learned}, and files of later batches are gone, "
                f"whose rows would be lost: {len(missing_files)}, such as {missing_files[0]}. Keep a stream's files "
                "until the snapshot after their batch, and leave cleanSource off"
            )

    def _files_after(self, source: str, offset: int) -> list[str]:
        """Return the URIs of the files that a source has listed after one of its offsets."""
        log = f"{SOURCES}/{source}"
        names = [name for name in self._names(log) if name.removesuffix(".compact").isdecimal()]
        entries = [self._path(log, name) for name in names if int(name.removesuffix(".compact")) > offset]
        return sorted({uri for entry in entries for uri in files_after(self._files.text(entry), offset)})

    def _names(self, folder: str) -> list[str]:
        return self._files.names(self._path(folder))

    def _path(self, *names: object) -> str:
        return "/".join([self.location, *map(str, names)])


@dataclass(frozen=True)
class Rewind:
    """The numbers of the entries to remove from Spark's checkpoint."""

    offsets: tuple[int, ...]
    commits: tuple[int, ...]


def rewind_to(learned: int, offsets: Collection[int], commits: Collection[int], where: str) -> Rewind:
    """Return the entries to remove from Spark's checkpoint, for its query to continue after batch ``learned``.

    If Spark has not committed batch ``learned``, Spark repeats this batch, and the learner skips it by its number. If
    Spark has committed later batches, batch ``learned + 1`` becomes the newest: Spark repeats it with the same offsets,
    and plans later batches again. RecoveryError: the model has learned from batches that Spark does not have, or Spark
    has removed entries that it would need. ``where`` begins the message.
    """
    newest = max(offsets, default=NOTHING)
    if newest < learned:
        raise RecoveryError(
            f"{where}: the model has learned batch {learned}, but the newest batch of Spark's checkpoint is "
            f"{newest if newest > NOTHING else 'none'}: it is not the checkpoint that the model has learned from"
        )
    oldest_needed = max(learned, 0)
    if newest > learned and offsets and oldest_needed not in offsets:
        raise RecoveryError(
            f"{where}: the model has learned up to batch {learned}, and Spark has removed the offsets of batch "
            f"{oldest_needed}; the oldest are those of batch {min(offsets)}: raise "
            "spark.sql.streaming.minBatchesToRetain, or make snapshots more often"
        )
    return Rewind(
        tuple(sorted(number for number in offsets if number > learned + 1)),
        tuple(sorted(number for number in commits if number > learned)),
    )


def is_repeated(learned: int, batch: int) -> bool:
    """Return whether the model has learned from a batch; raise RecoveryError if batches before it are missing."""
    if batch > learned + 1:
        raise RecoveryError(f"expected batch {learned + 1}, got batch {batch}: batches between would be lost")
    return batch <= learned


def file_offset(offsets: str, source: int) -> int:
    """Return the offset of a file source from an entry of ``offsets``; ``NOTHING`` if the entry does not have it.

    The entry has a line with a version, a line with settings, and a line for each source.
    """
    entries = [_entry(line) for line in offsets.splitlines()[2:]]
    return int(entries[source].get("logOffset", NOTHING)) if source < len(entries) else NOTHING


def files_after(log: str, offset: int) -> list[str]:
    """Return the URIs of the files after an offset from an entry of a file source's log.

    The entry has a line with a version, and a line of JSON for each file. Logs of other sources have no such lines.
    """
    entries = [_entry(line) for line in log.splitlines()[1:]]
    return [entry["path"] for entry in entries if "path" in entry and entry.get("batchId", NOTHING) > offset]


def _entry(line: str) -> dict[str, Any]:
    """Return a line of Spark's logs as a dict; it is empty if the line is not a JSON object."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
