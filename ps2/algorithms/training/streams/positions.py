"""Makes the position of a stream on the servers and the position in Spark's checkpoint agree. Pure.

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
    """The numbers of the entries to remove from Spark's checkpoint."""

    offsets: tuple[int, ...]
    commits: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.offsets or self.commits)


def rewind_to(learned: int, offsets: Collection[int], commits: Collection[int], where: str) -> Rewind:
    """Return what to remove from Spark's checkpoint so that its query goes on after batch ``learned``.

    If Spark has not committed batch ``learned``, it repeats that batch, and the learner skips it by its number. If
    Spark is ahead, batch ``learned + 1`` becomes the newest: Spark repeats it with the same offsets, and plans later
    batches anew.

    Args:
        learned: the last batch that the model holds; ``NOTHING`` if it holds none.
        offsets, commits: numbers of the entries in Spark's checkpoint.
        where: name of the checkpoint, for messages.

    Raises:
        RecoveryError: Spark is behind the model, or has removed the entries that it needs to go on.
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
    """Return True if the model has learned a batch already.

    Raises:
        RecoveryError: batches between the two are missing.
    """
    if batch > learned + 1:
        raise RecoveryError(f"expected batch {learned + 1}, got batch {batch}: batches between would be lost")
    return batch <= learned
