"""One line of a fast path's table, and the plan of one request: what compiled code knows of both, as int64 words."""

from __future__ import annotations

import numpy as np

from ps2.protocol import binary
from ps2.protocol.arrays import NUMBER_OF
from ps2.protocol.framing import HEAD

# What a line says of a handle: itself; the shard's mutex; where the shard's ``layout`` is, and what it was; the numbers
# of the row or of all blocks; how many columns there are, of how many numbers each, of which dtype, from which column
# on; the operation, and its scalars; where those begin in a header, in words; a header of that shape, and its bytes;
# the words of the id's scope; of a sparse shard the cells of its key index, and how many.
HANDLE, MUTEX, LAYOUT, LAID_OUT, DATA, LIVE, WIDTH, DTYPE, BEGIN = range(9)
KIND, SCALARS, SCALARS_AT, FORM, FORM_BYTES, SCOPE, CELLS, CELL_COUNT, FIELDS = range(9, 18)
SLOTS = 64  # lines of a table: a power of two, as the lowest bits of a handle choose one

# The plan of a request: how many keys came, as differences of which dtype, in how many bytes; the first column, if it
# has no keys, and how many numbers it asks for, or brings; bytes of all arrays but the keys, and of the answer; and
# where in the buffer the slots of the keys are, and an answer in fewer bytes.
COUNT_OF_KEYS, STEPS, STEP_BYTES, START, FOUND, CAME_BYTES, ANSWER_BYTES, SLOTS_AT, NARROW_AT = range(9)
# Then of each array but the keys: its dtype, its numbers, and where in the buffer these are, as they came and as wide
# as the shard's.
ARRAYS, OF_ARRAY, MOST_ARRAYS = 9, 4, 3
CAME, COUNT, VALUES_AT, WIDE_AT = range(OF_ARRAY)
PLAN_WORDS = ARRAYS + OF_ARRAY * MOST_ARRAYS
# Of ``columns_add_some``.
SIZES, PLACES, CHANGES = range(ARRAYS, PLAN_WORDS, OF_ARRAY)

# In the order of ``messages.PLAIN``.
PULL, PUSH, PUSH_ADD, PUSH_SUB, GATHER, SCATTER, SCATTER_ADD, SCATTER_SUB = range(8)
COLUMNS_PULL, COLUMNS_PUSH, COLUMNS_ADD, COLUMNS_ADD_SOME = range(8, 12)

FLOAT32, FLOAT64, INT8, INT16, INT32, INT64 = (
    NUMBER_OF[np.dtype(name)] for name in ("f4", "f8", "i1", "i2", "i4", "i8")
)
UINT8, UINT16, UINT32 = (NUMBER_OF[np.dtype(name)] for name in ("u1", "u2", "u4"))
# By the number of a dtype, which is any byte: bytes of one number, and whether these are signed or unsigned integers.
ITEMS, SIGNED, UNSIGNED = np.zeros(256, np.int64), np.zeros(256, np.bool_), np.zeros(256, np.bool_)
for _dtype, _number in NUMBER_OF.items():
    ITEMS[_number], SIGNED[_number], UNSIGNED[_number] = _dtype.itemsize, _dtype.kind == "i", _dtype.kind == "u"

# A buffer, from its beginning: head and header of a request, so that the numbers in it are aligned; those of a reply;
# what the calls to the system take; the plan; and the rest, for arrays.
HEAD_AT = 4
HEADER_AT = HEAD_AT + HEAD.size
REPLY_AT = 1020
SCRATCH_AT = 1104
PLAN_AT = 1248
ARRAYS_AT = 1424
MOST_HEADER = 800

# Of the binary form: bytes, and where fields are.
HEAD_BYTES, LEAST_HEADER = HEAD.size, binary.TAIL_AT
REPLY_HEADER, ARRAY_BYTES = binary.REPLY.size + binary.RESULT.size, binary.ARRAY.size
A_REPLY = binary.A_REPLY
STEPS_BYTE, BECOMES_BYTE = binary.STEPS_AT, binary.STEPS_AT + 2
VERSION_BYTE, STAGE_BYTE = binary.VERSION_AT, binary.STAGE_AT
# The same of what lies at whole words; the handle's in int32.
HANDLE_WORD, TAIL_WORD = binary.REQUEST.size // 4, binary.TAIL_AT // 8
VERSION_WORD, NUMBER_WORD, SETTLED_WORD = binary.VERSION_AT // 8, binary.NUMBER_AT // 8, binary.SETTLED_AT // 8
KEYS_WORD, FIRST_WORD = binary.KEY_COUNT_AT // 8, binary.FIRST_AT // 8
