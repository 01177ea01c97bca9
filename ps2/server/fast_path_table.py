"""The table of a fast path: a line for each handle, in the layout that the compiled loop reads."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ps2.ops.all import writes
from ps2.ops.keyindex import KeyIndex
from ps2.protocol import binary
from ps2.protocol.arrays import DTYPE_NUMBERS
from ps2.protocol.binary import Shape
from ps2.protocol.messages import PLAIN, Request
from ps2.server import fast_path_line as fp
from ps2.server.shard import Shard

KEY_OPERATIONS, BLOCK_OPERATIONS = PLAIN[fp.GATHER :], PLAIN[fp.COLUMNS_PULL :]


class HandleTable:
    """The table of one connection. Not thread-safe. ``lines``: the loop's table, int64 of shape (SLOTS, FIELDS)."""

    def __init__(self) -> None:
        self.lines = np.zeros((fp.SLOTS, fp.FIELDS), np.int64)
        # By slot: references to the objects whose addresses are in the line, except the shard's array. The array may be
        # freed at any time: the loop uses it only under the lock, if the shard's layout has not changed.
        self._references: list[Any] = [None] * fp.SLOTS
        self._slots: dict[Shape, int] = {}
        self._serials = itertools.count(1)

    def bind(self, request: Request, shard: Shard) -> int:
        """Return a handle for a finished request's shape; 0 if it is not plain now. Call under the shard's lock."""
        shape, operation, id = binary.request_shape(request), request.operations[0], request.id
        if shape is None or not _has_plain_rows(shard, operation.rows, operation.name):
            return 0
        serial = next(self._serials)
        slot = self._slots.get(shape, len(self._slots) if len(self._slots) < fp.SLOTS else serial % fp.SLOTS)
        handle = (serial & 0xFFFFFF) * fp.SLOTS + slot
        header, _ = binary.request_parts(request, {shape: handle})
        if len(header) > fp.MAX_HEADER:
            return 0
        self._slots = {other: other_slot for other, other_slot in self._slots.items() if other_slot != slot} | {
            shape: slot
        }
        line = self.lines[slot]
        line[:] = 0
        sample, words = np.frombuffer(header, np.uint8), None
        line[[fp.SAMPLE, fp.SAMPLE_BYTES]] = sample.ctypes.data, sample.size
        line[[fp.KIND, fp.SCALARS]] = PLAIN.index(operation.name), len(operation.params)
        line[fp.SCALARS_OFFSET] = fp.TAIL_WORD + len(operation.rows)
        if id is not None:
            words = shard.applied.words(id)
            line[fp.SCOPE] = words.ctypes.data
        self._references[slot] = (shard.lock, shard.layout, sample, words)
        line[[fp.MUTEX, fp.LAYOUT, fp.BOUND_LAYOUT]] = shard.lock.address, shard.layout.ctypes.data, shard.layout[0]
        values = shard.array[operation.rows[0]] if operation.rows else shard.array
        line[[fp.DATA, fp.LIVE, fp.WIDTH]] = (
            values.ctypes.data,
            shard.array.shape[1],
            1 if operation.rows else shard.rows,
        )
        if shard.index is None:
            line[fp.BEGIN] = shard.partition.begin
        elif isinstance(shard.index, KeyIndex):
            cells = shard.index.cells
            line[[fp.CELLS, fp.CELL_COUNT]] = cells.ctypes.data, len(cells)
        line[fp.DTYPE] = DTYPE_NUMBERS[shard.spec.np_dtype]
        line[fp.HANDLE] = handle
        return handle


def may_be_plain(request: Request, shard: Shard | None) -> bool:
    """Return True if requests of this shape on the shard may be plain."""
    operation = request.operations[0]
    if shard is None or shard.copy or writes(operation.name) != (request.id is not None):
        return False
    if shard.spec.key_policy is not None:  # the loop supports neither ticks of keys nor initial values
        return False
    if (shard.spec.layout == "column") != (operation.name in BLOCK_OPERATIONS):
        return False
    if operation.name == "columns_add_some" and shard.spec.dtype != "int32":
        return False
    # The number of columns of a sparse shard changes with every new key, so requests without keys are not plain.
    return shard.spec.kind == "dense" or operation.keys is not None


def is_plain(request: Request) -> bool:
    """Return True if the request has the form of a plain request."""
    operation, id = request.operations[0], request.id
    if operation.wire is not None or (id is not None and (id.part or id.parts > 1)):
        return False
    if (operation.keys is not None) != (operation.name in KEY_OPERATIONS):
        return False
    if operation.keys is not None:
        return not operation.params and operation.keys.digest is None and operation.keys.columns is not None
    scalars = tuple(operation.params)
    return scalars in ((), ("start",)) or (operation.name == "pull" and scalars == ("start", "stop"))


def _has_plain_rows(shard: Shard, rows: tuple[int, ...], name: str) -> bool:
    if name in BLOCK_OPERATIONS:
        return not rows and not shard.touched
    return len(rows) == 1 and rows[0] not in shard.touched and shard.uses(rows[0])
