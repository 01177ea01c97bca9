"""What the reply to a request will take, told before anything of it is made, and before the request's arrays come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

from ps2.ops import table
from ps2.ops.matrix import MAX_PRODUCTS
from ps2.server.kept import Place
from ps2.server.shard import Shard
from ps2.wire.codec import RequestDraft
from ps2.wire.messages import Outline

PRODUCT_BYTES = 8
KEY_BYTES = 8
SHORT_BYTES = 2


def reply_bytes(draft: RequestDraft, shards: Mapping[Place, Shard], copies: int = 0) -> int:
    """Return what the arrays of a reply take at most; users' results, of any size, are not in it.

    Args:
        copies: of what is sent that are made beside it.
    """
    total = 0
    for outline in draft.outlines(_bringing()):
        shard = shards.get((outline.matrix, outline.partition))
        if shard is None:
            continue
        count, itemsize = _count(outline, shard), shard.spec.np_dtype.itemsize
        if outline.name == "keys":
            itemsize = KEY_BYTES
        elif outline.name != "pull" and table.lookup(outline.name).reduce is not None:
            itemsize = PRODUCT_BYTES
        short = outline.wire is not None
        total += count * (itemsize + short * SHORT_BYTES + copies * (SHORT_BYTES if short else itemsize))
    return total


@cache
def _bringing() -> frozenset[str]:
    """Return the names of operations whose results are arrays."""
    table.load()
    found = {op.name for op in table.TABLE.values() if not op.writes and (op.reduce is None or op.arrays)}
    return frozenset(found | {"keys"})


def _count(outline: Outline, shard: Shard) -> int:
    """Return how many numbers a result has at most."""
    if outline.name in ("pull", "keys"):
        start, stop = (outline.params.get(name) for name in ("start", "stop"))
        start = start if isinstance(start, int) else 0
        stop = stop if isinstance(stop, int) and stop != -1 else shard.live
        return max(0, min(stop, shard.live) - max(start, 0))
    op = table.lookup(outline.name)
    count = math.prod(outline.counts) * (1 if outline.keys is None else outline.keys)
    if op.reduce is not None:
        # A number a pair, or one for each of some with each of others, which are few or refused.
        return min(count, max(sum(outline.counts), MAX_PRODUCTS))
    return count if "slots" in op.arrays else count * int(shard.array.shape[1])
