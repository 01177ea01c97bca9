"""Streams pulls of many blocks: each piece is read just before it is sent, so that it is still in the CPU cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ps2.config import WireConfig
from ps2.ops.blocks import take
from ps2.ops.guards import check_slots, readable
from ps2.ops.packing import narrow_integers
from ps2.ops.table import Array
from ps2.protocol.messages import Operation, StreamedArray
from ps2.server.keycache import KeySet
from ps2.server.shard import Shard

# A smaller result is read as a whole.
MIN_BYTES = WireConfig.block_bytes
PIECE_BYTES = 1 << 20


def streamed_blocks(operation: Operation, shard: Shard, keys: KeySet | None) -> StreamedArray | None:
    """Return the result of a pull of many blocks; None for other operations and for smaller pulls.

    Each piece is read under the shard's lock. All pieces come from the shard's present array, even if the shard is
    resized or freed meanwhile.
    """
    if operation.name != "columns_pull" or keys is None or operation.wire is not None:
        return None
    if shard.spec.key_policy is not None:  # managed keys may lose their slots between pieces
        return None
    if operation.rows or operation.params or operation.arrays or keys.count * shard.spec.block_bytes <= MIN_BYTES:
        return None
    shard.check_rows(np.empty(0, np.int64))
    blocks = readable(shard.blocks)
    slots = check_slots(keys.find(shard, create=False), len(blocks))
    step = max(1, PIECE_BYTES // shard.spec.block_bytes)
    buffer = np.empty((step, shard.rows), blocks.dtype)

    def pieces() -> Iterator[Array]:
        for begin in range(0, slots.size, step):
            some = slots[begin : begin + step]
            piece = buffer[: some.size]
            with shard.lock:
                take(blocks, some, piece)
            yield piece

    # If the integers can be narrowed, the result is read as a whole: the first piece decides.
    if blocks.dtype.kind == "i" and narrow_integers(next(pieces())).dtype != blocks.dtype:
        return None
    return StreamedArray(blocks.dtype, (slots.size, shard.rows), pieces)
