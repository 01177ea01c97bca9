"""Layouts in int64 words for compiled code: one line of a fast path's table, and the plan of one request."""

from __future__ import annotations

import numpy as np

from ps2.protocol import binary
from ps2.protocol.arrays import NUMBER_OF
from ps2.protocol.framing import HEAD

# A line describes one handle. HANDLE: the handle. MUTEX: address of the shard's mutex. LAYOUT: address of the shard's
# ``layout``; LAID_OUT: its value when the handle was given. DATA: address of the values of the row, or of all blocks.
# LIVE: number of columns; WIDTH: values per column; DTYPE: their dtype; BEGIN: first column of the partition.
# KIND: the operation; SCALARS: number of its scalars; SCALARS_AT: their word in the header. FORM, FORM_BYTES: address
# and size of a header of this shape. SCOPE: address of the words of the id's scope. CELLS, CELL_COUNT: address and
# number of the key index's cells, for a sparse shard.
HANDLE, MUTEX, LAYOUT, LAID_OUT, DATA, LIVE, WIDTH, DTYPE, BEGIN = range(9)
KIND, SCALARS, SCALARS_AT, FORM, FORM_BYTES, SCOPE, CELLS, CELL_COUNT, FIELDS = range(9, 18)
SLOTS = 64  # lines of a table: a power of two, as the lowest bits of a handle choose one

# The plan of a request. COUNT_OF_KEYS: number of keys; STEPS, STEP_BYTES: dtype and size of their differences. START:
# first column, without keys. FOUND: number of values that the request pulls or brings. CAME_BYTES: size of all arrays
# except the keys; ANSWER_BYTES: of the answer. SLOTS_AT, NARROW_AT: where the buffer holds the keys' slots, and the
# narrowed answer.
COUNT_OF_KEYS, STEPS, STEP_BYTES, START, FOUND, CAME_BYTES, ANSWER_BYTES, SLOTS_AT, NARROW_AT = range(9)
# Then, for each array except the keys: its dtype and element count, and where the buffer holds its values, as received
# and widened to the shard's dtype.
ARRAYS, OF_ARRAY, MAX_ARRAYS = 9, 4, 3
CAME, COUNT, VALUES_AT, WIDE_AT = range(OF_ARRAY)
PLAN_WORDS = ARRAYS + OF_ARRAY * MAX_ARRAYS
# The arrays of ``columns_add_some``.
SIZES, PLACES, CHANGES = range(ARRAYS, PLAN_WORDS, OF_ARRAY)

# In the order of ``messages.PLAIN``.
PULL, PUSH, PUSH_ADD, PUSH_SUB, GATHER, SCATTER, SCATTER_ADD, SCATTER_SUB = range(8)
COLUMNS_PULL, COLUMNS_PUSH, COLUMNS_ADD, COLUMNS_ADD_SOME = range(8, 12)

FLOAT32, FLOAT64, INT8, INT16, INT32, INT64 = (
    NUMBER_OF[np.dtype(name)] for name in ("f4", "f8", "i1", "i2", "i4", "i8")
)
UINT8, UINT16, UINT32 = (NUMBER_OF[np.dtype(name)] for name in ("u1", "u2", "u4"))
# Indexed by dtype number, which may be any byte: the item size, and True for signed or unsigned integers.
ITEMS, SIGNED, UNSIGNED = np.zeros(256, np.int64), np.zeros(256, np.bool_), np.zeros(256, np.bool_)
for _dtype, _number in NUMBER_OF.items():
    ITEMS[_number], SIGNED[_number], UNSIGNED[_number] = _dtype.itemsize, _dtype.kind == "i", _dtype.kind == "u"

# Layout of a buffer: head and header of a request, placed so that its words are aligned; those of a reply; arguments of
# system calls; the plan; then arrays.
HEAD_AT = 4
HEADER_AT = HEAD_AT + HEAD.size
REPLY_AT = 1020
SCRATCH_AT = 1104
PLAN_AT = 1248
ARRAYS_AT = 1424
MAX_HEADER = 800

# Sizes and field offsets of the binary form, in bytes.
HEAD_BYTES, MIN_HEADER = HEAD.size, binary.TAIL_AT
REPLY_HEADER, ARRAY_BYTES = binary.REPLY.size + binary.RESULT.size, binary.ARRAY.size
A_REPLY = binary.A_REPLY
STEPS_BYTE, BECOMES_BYTE = binary.STEPS_AT, binary.STEPS_AT + 2
VERSION_BYTE, STAGE_BYTE = binary.VERSION_AT, binary.STAGE_AT
# Field offsets in int64 words; that of the handle in int32.
HANDLE_WORD, TAIL_WORD = binary.REQUEST.size // 4, binary.TAIL_AT // 8
VERSION_WORD, NUMBER_WORD, SETTLED_WORD = binary.VERSION_AT // 8, binary.NUMBER_AT // 8, binary.SETTLED_AT // 8
KEYS_WORD, FIRST_WORD = binary.KEY_COUNT_AT // 8, binary.FIRST_AT // 8
