"""Makes the position of a stream on the servers and the position in Spark's checkpoint agree. Pure.

Spark numbers the batches of a query 0, 1, 2, ... It writes ``offsets/N`` before it runs batch N, and ``commits/N``
after it. A query that starts repeats its newest batch if that has no commit, with the same offsets.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ps2.errors import RecoveryError

# Position of a model that has learned no batch.
NOTHING = -1


@dataclass(frozen=True)
class Rewind:
    """The numbers of the entries to remove from Spark's checkpoint."""

    offsets: tuple[int, ...]
    commits: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.offsets or self.commits)


def rewind_to(learned: int, offsets: Collection[int], commits: Collection[int], where: str) -> Rewind:
    """Return what to remove from Spark's checkpoint so that its query goes on after batch ``learned``.

    If Spark has not committed batch ``learned``, it repeats that batch, and the learner skips it by its number. If
    Spark is ahead, batch ``learned + 1`` becomes the newest: Spark repeats it with the same offsets, and plans later
    batches again. RecoveryError: Spark is behind the model, or has removed the entries that it needs.
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
    """Return True if the model has learned a batch already; RecoveryError: batches between the two are missing."""
    if batch > learned + 1:
        raise RecoveryError(f"expected batch {learned + 1}, got batch {batch}: batches between would be lost")
    return batch <= learned


def file_offset(offsets: str, source: int) -> int:
    """Return the offset of a file source in the text of an entry of ``offsets``; ``NOTHING`` if it has none.

    The text is a version, a line of settings, and a line for each source.
    """
    entries = [_entry(line) for line in offsets.splitlines()[2:]]
    return int(entries[source].get("logOffset", NOTHING)) if source < len(entries) else NOTHING


def files_after(log: str, offset: int) -> list[str]:
    """Return the URIs of the files in an entry of a file source's log that came after an offset.

    The text is a version, and a line of JSON for each file. Logs of other sources have no such lines.
    """
    entries = [_entry(line) for line in log.splitlines()[1:]]
    return [entry["path"] for entry in entries if "path" in entry and entry.get("batchId", NOTHING) > offset]


def _entry(line: str) -> dict[str, Any]:
    """Return a line of Spark's logs as a dict; an empty one for what other sources write."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
