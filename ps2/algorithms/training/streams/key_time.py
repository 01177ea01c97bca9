"""The time of a model's keys, which goes by the times of rows: one advance after each batch."""

from __future__ import annotations

from ps2.client.embedding_table import EmbeddingTable


def advance_keys(table: EmbeddingTable, now_s: float) -> None:
    """Advance the time of a table to that of the newest row, and let old keys expire.

    The table's policy says whether its keys go by the times of rows (``clock="event"``); otherwise nothing changes.

    Args:
        now_s: time of the newest row, in seconds.
    """
    policy = table.matrix.keyPolicy
    if policy is None or policy.clock != "event":
        return
    # The batch's keys are as new as its newest row, also after a long time without rows. Rows of another training may
    # have been newer.
    table.advance(max(now_s, table.keyStatus().nowS), touched=True)
    if policy.expire_after_s is not None:
        table.expire()
