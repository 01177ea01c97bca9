"""Writes the initial values of absent keys (``ps2.matrix.key_policy``) into the answers of reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps2.array_types import Int64s
from ps2.ops.initial import fill_initial
from ps2.ops.operands import SLOTS
from ps2.ops.table import Op
from ps2.protocol.messages import Operation
from ps2.server.shard import Shard


def reads_initial(op: Op, shard: Shard) -> bool:
    """Return True if the operation's answer may contain initial values, other than 0, of absent keys."""
    policy = shard.spec.key_policy
    return op.initial and policy is not None and not policy.initial.is_zero


def fill_absent(op: Op, operation: Operation, shard: Shard, keys: Int64s, slots: Int64s, answer: Any) -> None:
    """Write the initial values of absent keys into an operation's answer.

    Args:
        keys, slots: the operation's keys and their slots (-1: absent), in the order of the answer.
        answer: changed in place. Shape (n,) for one row, (n, rows) for blocks, else (rows, n).
    """
    at = np.flatnonzero(slots < 0)
    if not at.size or shard.spec.key_policy is None:
        return
    if answer.ndim == 1:
        written, offsets, step = np.array(operation.rows[:1], np.int64), np.zeros(1, np.int64), 1
    elif op.answers[0].axes[0] == SLOTS:
        written = offsets = np.arange(answer.shape[1])
        step = answer.shape[1]
    else:
        rows = operation.arrays[op.arrays.index("row_ids")].reshape(-1)
        order = np.argsort(rows, kind="stable")
        written, offsets, step = rows[order], order * answer.shape[1], 1
    fill_initial(answer.reshape(-1), shard.spec.key_policy.initial, keys[at], at * step, written, offsets)
