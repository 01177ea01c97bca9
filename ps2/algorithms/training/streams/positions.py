"""Where a stream is, on the servers and in Spark's checkpoint, and what makes the two agree. Pure.

Spark numbers the batches of a query 0, 1, 2, ... It writes ``offsets/N`` before it runs batch N, and ``commits/N``
after it. A query that starts repeats its newest batch if that has no commit, with the same offsets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ps2.errors import RecoveryError

# Position of a model that has learned no batch.
NOTHING = -1


@dataclass(frozen=True)
class Rewind:
    """The entries to remove from Spark's checkpoint, by number."""

    offsets: tuple[int, ...]
    commits: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.offsets or self.commits)


def rewind_to(learned: int, offsets: Collection[int], commits: Collection[int], where: str) -> Rewind:
    """Return what to remove from Spark's checkpoint, so that its query goes on after batch ``learned``.

    If Spark has not committed batch ``learned``, it repeats that batch, which is skipped then by its number. If Spark
    is ahead, batch ``learned + 1`` becomes the newest: Spark repeats it with the same offsets, and plans later ones
    anew.

    Args:
        learned: the last batch that the model holds; ``NOTHING`` if none.
        offsets, commits: the numbers of the entries that there are.
        where: names the checkpoint in messages.

    Raises:
        RecoveryError: Spark has not come as far as the model, or has removed the entries from which it could go on.
    """
    newest = max(offsets, default=NOTHING)
    if newest < learned:
        raise RecoveryError(
            f"{where}: the model has learned batch {learned}, but the newest batch of Spark's checkpoint is "
            f"{newest if newest > NOTHING else 'none'}: it is not the checkpoint that the model has learned from"
        )
    kept = max(learned, 0)
    if newest > learned and offsets and kept not in offsets:
        raise RecoveryError(
            f"{where}: the model has learned up to batch {learned}, and Spark has removed the offsets of batch {kept}; "
            f"the oldest are those of batch {min(offsets)}: raise spark.sql.streaming.minBatchesToRetain, or make "
            "snapshots more often"
        )
    return Rewind(
        tuple(sorted(number for number in offsets if number > learned + 1)),
        tuple(sorted(number for number in commits if number > learned)),
    )


def is_repeated(learned: int, batch: int) -> bool:
    """Return whether the model has learned a batch already.

    Raises:
        RecoveryError: batches between the two are missing.
    """
    if batch > learned + 1:
        raise RecoveryError(f"expected batch {learned + 1}, got batch {batch}: batches between would be lost")
    return batch <= learned
