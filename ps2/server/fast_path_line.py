"""Layouts of int64 words for compiled code: a line of a fast path's table, and the plan of a request."""

from __future__ import annotations

import numpy as np

from ps2.protocol import binary
from ps2.protocol.arrays import DTYPE_NUMBERS
from ps2.protocol.framing import HEAD

# A line describes one handle, which stands for one shape of requests on one shard.
# HANDLE: the handle. MUTEX: the address of the shard's mutex. LAYOUT: the address of the shard's ``layout`` counter;
# BOUND_LAYOUT: the counter's value when the handle was assigned. DATA: the address of the values of the row, or of all
# blocks. LIVE: the number of columns; WIDTH: the number of values in a column; DTYPE: their dtype number; BEGIN: the
# first column of the partition.
# KIND: the operation; SCALARS: the number of its scalars; SCALARS_OFFSET: the index of their first word in the header.
# SAMPLE, SAMPLE_BYTES: the address and size of a sample header of this shape. SCOPE: the address of the words of the
# id's scope. CELLS, CELL_COUNT: the address and number of the key index's cells, for a sparse shard. FIELDS: the number
# of words in a line.
HANDLE, MUTEX, LAYOUT, BOUND_LAYOUT, DATA, LIVE, WIDTH, DTYPE, BEGIN = range(9)
KIND, SCALARS, SCALARS_OFFSET, SAMPLE, SAMPLE_BYTES, SCOPE, CELLS, CELL_COUNT, FIELDS = range(9, 18)
SLOTS = 64  # number of lines in a table: a power of two, because the lowest bits of a handle are the line's index

# The plan of a request.
# KEY_COUNT: the number of keys; STEPS, STEP_BYTES: dtype number and size of their differences. START: the first column,
# if there are no keys. VALUE_COUNT: the number of values that the request pulls or sends. RECEIVED_BYTES: the size of
# all arrays except the keys; ANSWER_BYTES: the size of the answer. SLOTS_OFFSET, NARROW_OFFSET: the byte offsets of the
# keys' slots and of the narrowed answer in the buffer.
KEY_COUNT, STEPS, STEP_BYTES, START, VALUE_COUNT, RECEIVED_BYTES, ANSWER_BYTES, SLOTS_OFFSET, NARROW_OFFSET = range(9)
# Then, for each array except the keys: its dtype number and element count, and the offsets in the buffer of its values
# as received and in the shard's dtype.
ARRAYS, ARRAY_WORDS, MAX_ARRAYS = 9, 4, 3
RECEIVED_DTYPE, COUNT, VALUES_OFFSET, WIDE_OFFSET = range(ARRAY_WORDS)
PLAN_WORDS = ARRAYS + ARRAY_WORDS * MAX_ARRAYS
# The arrays of ``columns_add_some``.
SIZES, POSITIONS, CHANGES = range(ARRAYS, PLAN_WORDS, ARRAY_WORDS)

# The operations, numbered in the order of ``messages.PLAIN``.
PULL, PUSH, PUSH_ADD, PUSH_SUB, GATHER, SCATTER, SCATTER_ADD, SCATTER_SUB = range(8)
COLUMNS_PULL, COLUMNS_PUSH, COLUMNS_ADD, COLUMNS_ADD_SOME = range(8, 12)

FLOAT32, FLOAT64, INT8, INT16, INT32, INT64 = (
    DTYPE_NUMBERS[np.dtype(name)] for name in ("f4", "f8", "i1", "i2", "i4", "i8")
)
UINT8, UINT16, UINT32 = (DTYPE_NUMBERS[np.dtype(name)] for name in ("u1", "u2", "u4"))
# Tables indexed by dtype number, which may be any byte: item size in bytes, is it a signed or an unsigned integer.
ITEMS, SIGNED, UNSIGNED = np.zeros(256, np.int64), np.zeros(256, np.bool_), np.zeros(256, np.bool_)
for _dtype, _number in DTYPE_NUMBERS.items():
    ITEMS[_number], SIGNED[_number], UNSIGNED[_number] = _dtype.itemsize, _dtype.kind == "i", _dtype.kind == "u"

# Byte offsets in a buffer: head and header of a request, whose int64 words are aligned; head and header of a reply;
# arguments of system calls; the plan; the arrays.
HEAD_OFFSET = 4
HEADER_OFFSET = HEAD_OFFSET + HEAD.size
REPLY_OFFSET = 1020
SCRATCH_OFFSET = 1104
PLAN_OFFSET = 1248
ARRAYS_OFFSET = 1424
# Maximum size of a request's header; longer requests are not plain.
MAX_HEADER = 800

# Sizes and field offsets of the binary form, in bytes.
HEAD_BYTES, MIN_HEADER = HEAD.size, binary.TAIL_OFFSET
REPLY_HEADER, ARRAY_BYTES = binary.REPLY.size + binary.RESULT.size, binary.ARRAY.size
REPLY_KIND = binary.REPLY_KIND
STEPS_BYTE, BECOMES_BYTE = binary.STEPS_OFFSET, binary.STEPS_OFFSET + 2
VERSION_BYTE, STAGE_BYTE = binary.VERSION_OFFSET, binary.STAGE_OFFSET
# Field offsets in int64 words; the offset of the handle in int32 words.
HANDLE_WORD, TAIL_WORD = binary.REQUEST.size // 4, binary.TAIL_OFFSET // 8
VERSION_WORD, NUMBER_WORD, SETTLED_WORD = (
    binary.VERSION_OFFSET // 8,
    binary.NUMBER_OFFSET // 8,
    binary.SETTLED_OFFSET // 8,
)
KEYS_WORD, FIRST_WORD = binary.KEY_COUNT_OFFSET // 8, binary.FIRST_OFFSET // 8
