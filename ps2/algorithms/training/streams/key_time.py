"""The time of a model's keys, which goes by the times of rows: one advance after each batch."""

from __future__ import annotations

from ps2.client.embedding_table import EmbeddingTable
from ps2.errors import ConfigError
from ps2.matrix.key_policy import KeyPolicy


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


def check_clock(table: EmbeddingTable, time: str | None) -> None:
    """Raise ConfigError unless rows have times if, and only if, a table's keys go by them.

    Args:
        time: name of the column of times; None: rows have no times.
    """
    policy = table.matrix.keyPolicy
    if policy is None or policy == KeyPolicy(initial=policy.initial, clock=policy.clock):
        return  # keys get their slots at once, and keep them
    if policy.clock == "event" and time is None:
        raise ConfigError("timeCol: expected a column, as the model's keys go by the times of rows, got none")
    if policy.clock == "wall" and time is not None:
        raise ConfigError(f"timeCol: expected none, as the model's keys go by the driver's clock, got {time!r}")
