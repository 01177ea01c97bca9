"""Upper bounds for the size of a reply, computed from the header of its request, before the arrays are received."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ps2.errors import NotFoundError
from ps2.ops.all import KEY_READS, lookup
from ps2.ops.operands import BLOCK, COLUMNS, SLOTS, Axis
from ps2.ops.packing import MIN_NARROWED_BYTES
from ps2.protocol.drafts import RequestDraft
from ps2.protocol.messages import Outline, ShardId
from ps2.server.key_operations import LARGEST
from ps2.server.shard import Shard

SHORT_BYTES = 2
# Elements counted for an axis of unknown length. Longer axes are undercounted.
UNKNOWN = 1 << 16


def reply_bytes(draft: RequestDraft, shards: Mapping[ShardId, Shard], copies: int = 0) -> int:
    """Return the maximum bytes of the arrays of a reply. Results of users' functions are not included.

    Args:
        copies: number of additional copies of the sent bytes that exist at the same time.
    """
    total = 0
    for outline in draft.outlines(ARRAY_OPERATIONS):
        shard = shards.get((outline.matrix, outline.partition))
        if shard is None:
            continue
        for count, dtype in _arrays(outline, shard):
            size = count * dtype.itemsize
            sent = count * SHORT_BYTES if outline.wire is not None else size
            total += size + copies * sent
            # Compressed or narrowed values are copies.
            if outline.wire is not None:
                total += sent
            elif dtype.kind == "i" and size >= MIN_NARROWED_BYTES:
                total += size // 2
    return total


class _ArrayOperations:
    """The names of operations that return arrays; a family's operations are included once it is loaded."""

    def __contains__(self, name: object) -> bool:
        if name == "keys" or name in KEY_READS:
            return True
        try:
            return bool(lookup(str(name)).answers)
        except NotFoundError:
            return False


ARRAY_OPERATIONS = _ArrayOperations()


def _arrays(outline: Outline, shard: Shard) -> Iterator[tuple[int, np.dtype[Any]]]:
    """Yield the maximum number of elements and the dtype of each array of a result."""
    if outline.name in KEY_READS:
        yield LARGEST[outline.name], np.dtype(np.uint8)
        return
    if outline.name in ("pull", "keys"):
        start, stop = (outline.params.get(name) for name in ("start", "stop"))
        start = start if isinstance(start, int) else 0
        stop = stop if isinstance(stop, int) and stop != -1 else shard.live
        dtype = np.dtype(np.int64) if outline.name == "keys" else shard.spec.np_dtype
        yield max(0, min(stop, shard.live) - max(start, 0)), dtype
        return
    op = lookup(outline.name)
    # A scalar gives the length of the axis with its name.
    known: dict[Axis, int] = {name: value for name, value in outline.params.items() if isinstance(value, int)}
    known |= {COLUMNS: int(shard.array.shape[1]), BLOCK: shard.rows}
    shapes = iter(outline.shapes)
    for _, kind, along in op.request_operands:
        if kind == SLOTS and outline.keys is not None:
            known[SLOTS] = outline.keys
        else:
            known |= dict(zip(along.axes, next(shapes, ()), strict=False))
    for answer in op.answers:
        axes = [axis if isinstance(axis, int) else known.get(axis) for axis in answer.axes]
        count = math.prod(axis for axis in axes if axis is not None) * (UNKNOWN if None in axes else 1)
        yield count, answer.dtype or shard.spec.np_dtype
