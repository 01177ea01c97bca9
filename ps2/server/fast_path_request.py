"""Compiled checks of a request: whether it has a known shape and is plain; and its slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from ps2.ops.kernels import Int64s, inline
from ps2.ops.packing import MIN_NARROWED_BYTES
from ps2.server.fast_path_line import (
    ANSWER_BYTES,
    ARRAY_BYTES,
    ARRAY_WORDS,
    ARRAYS,
    ARRAYS_OFFSET,
    BECOMES_BYTE,
    BEGIN,
    CELLS,
    CHANGES,
    COLUMNS_ADD,
    COLUMNS_ADD_SOME,
    COLUMNS_PULL,
    COUNT,
    DTYPE,
    FIRST_WORD,
    FORM,
    FORM_BYTES,
    GATHER,
    INT8,
    INT16,
    INT32,
    INT64,
    ITEMS,
    KEY_COUNT,
    KEYS_WORD,
    KIND,
    LIVE,
    MAX_ARRAYS,
    MIN_HEADER,
    NARROW_OFFSET,
    POSITIONS,
    PULL,
    RECEIVED_BYTES,
    RECEIVED_DTYPE,
    SCALARS,
    SCALARS_OFFSET,
    SIGNED,
    SIZES,
    SLOTS_OFFSET,
    STAGE_BYTE,
    START,
    STEP_BYTES,
    STEPS,
    STEPS_BYTE,
    UINT8,
    UINT16,
    UINT32,
    UNSIGNED,
    VALUE_COUNT,
    VALUES_OFFSET,
    VERSION_BYTE,
    WIDE_OFFSET,
    WIDTH,
)
from ps2.server.libc import Address, c_memcmp, pointer

ALL_KEYS = 2**63 - 1


@inline
def changes(kind: int) -> bool:
    """Return True if a plain operation changes data."""
    return kind != PULL and kind != GATHER and kind != COLUMNS_PULL


@inline
def count_arrays(kind: int) -> int:
    """Return the number of arrays that a plain operation brings, without its keys."""
    return MAX_ARRAYS if kind == COLUMNS_ADD_SOME else int(changes(kind))


@inline
def _dimensions(kind: int) -> int:
    """Return the number of dimensions in the header of the array of values; 0 for one dimension."""
    return 2 if COLUMNS_PULL <= kind <= COLUMNS_ADD else 0


@inline
def has_form(line: Int64s, header: Any) -> bool:
    """Return True if the header at an address has the shape of the line.

    The fields that vary within a shape are not compared: the route version, the id's number and settled number, keys,
    scalars, and the arrays' records. ``plan_request`` checks these.
    """
    names = 8 * (line[SCALARS_OFFSET] + line[SCALARS])
    if changes(line[KIND]):
        names += count_arrays(line[KIND]) * ARRAY_BYTES + 8 * _dimensions(line[KIND])
    return (
        _equals(line, header, 0, VERSION_BYTE)
        and _equals(line, header, STAGE_BYTE, STEPS_BYTE - STAGE_BYTE)
        and _equals(line, header, STEPS_BYTE + 1, 1)
        and _equals(line, header, MIN_HEADER, 8 * line[SCALARS_OFFSET] - MIN_HEADER)
        and _equals(line, header, names, line[FORM_BYTES] - names)
    )


@inline
def _equals(line: Int64s, header: Any, begin: Any, size: Any) -> bool:
    return c_memcmp(header + Address(begin), Address(line[FORM] + begin), size) == 0


@inline
def plan_request(line: Int64s, header: Any, words: Int64s, size: Any, buffer_bytes: int, plan: Int64s) -> bool:
    """Fill in the plan of a request of a known shape; return False if it is not plain or does not fit the buffer.

    ``words`` is the header as int64; ``size`` the bytes of its arrays, as the head declares.
    """
    kind, dtype = line[KIND], line[DTYPE]
    plan[:] = 0
    if kind >= GATHER and not _plan_keys(line, header, words, buffer_bytes, plan):
        return False
    if changes(kind) and not _plan_arrays(line, words, buffer_bytes, plan):
        return False
    if kind < GATHER and (line[CELLS] != 0 or not _plan_interval(line, words, plan)):
        return False
    for number in range(count_arrays(kind)):
        array = plan[ARRAYS + ARRAY_WORDS * number :]
        plan[RECEIVED_BYTES] += array[COUNT] * ITEMS[array[RECEIVED_DTYPE]]
    plan[ANSWER_BYTES] = 0 if changes(kind) else plan[VALUE_COUNT] * ITEMS[dtype]
    return size == plan[STEP_BYTES] + plan[RECEIVED_BYTES] and _plan_offsets(line, plan) <= buffer_bytes


@inline
def _plan_keys(line: Int64s, header: Any, words: Int64s, buffer_bytes: int, plan: Int64s) -> bool:
    keys: Any = words[KEYS_WORD]
    steps, becomes = np.int64(header[STEPS_BYTE]), np.int64(header[BECOMES_BYTE])
    plan[KEY_COUNT], plan[STEPS], plan[VALUE_COUNT] = keys, steps, keys * line[WIDTH]
    plan[STEP_BYTES] = (keys - 1) * ITEMS[steps]
    # Each key takes at least one byte of the buffer. A larger count could make the sizes below overflow.
    if not 1 <= keys <= buffer_bytes:
        return False
    if UNSIGNED[steps]:
        return becomes == 0
    return SIGNED[steps] and (becomes == 0 or (becomes == INT64 and ITEMS[steps] < 8))


@inline
def _plan_arrays(line: Int64s, words: Int64s, buffer_bytes: int, plan: Int64s) -> bool:
    """Plan the arrays of a request, except its keys; return False if one is not plain."""
    kind, dtype, keys = line[KIND], line[DTYPE], plan[KEY_COUNT]
    word = line[SCALARS_OFFSET] + line[SCALARS]
    for number in range(count_arrays(kind)):
        # The dtype as sent, the dtype on arrival (0: the same), and the number of dimensions, if there are several.
        dtype_sent, becomes, count = words[word] & 255, words[word] >> 8 & 255, words[word + 1]
        array = plan[ARRAYS + ARRAY_WORDS * number :]
        array[RECEIVED_DTYPE], array[COUNT] = dtype_sent, count
        if kind == COLUMNS_ADD_SOME:
            fits = dtype_sent in (UINT8, UINT16, UINT32) and becomes == 0 and 0 <= count <= buffer_bytes
        elif becomes == 0:
            fits = dtype_sent == dtype
        else:
            fits = becomes == dtype and SIGNED[dtype_sent] and SIGNED[dtype] and ITEMS[dtype_sent] < ITEMS[dtype]
        if not fits or words[word] >> 16 != _dimensions(kind):
            return False
        word += ARRAY_BYTES // 8
    if kind == COLUMNS_ADD_SOME:
        return plan[SIZES + COUNT] == keys and plan[POSITIONS + COUNT] == plan[CHANGES + COUNT]
    if kind > COLUMNS_PULL and (words[word] != keys or words[word + 1] != line[WIDTH]):
        return False
    return kind < GATHER or plan[ARRAYS + COUNT] == plan[VALUE_COUNT]


@inline
def _plan_interval(line: Int64s, words: Int64s, plan: Int64s) -> bool:
    """Plan a request on an interval of a row; return False if the row does not contain it."""
    word, live = line[SCALARS_OFFSET], line[LIVE]
    start = words[word] if line[SCALARS] > 0 else np.int64(0)
    count = plan[ARRAYS + COUNT]
    if line[KIND] == PULL:
        stop = words[word + 1] if line[SCALARS] > 1 else np.int64(-1)
        if stop == -1:
            stop = live
        if not 0 <= start <= stop <= live:
            return False
        count = stop - start
    plan[START], plan[VALUE_COUNT] = start, count
    return 0 <= start <= live and 0 <= count <= live - start


@inline
def _plan_offsets(line: Int64s, plan: Int64s) -> int:
    """Plan the positions of the arrays in the buffer; return where the last one ends."""
    offset: Any = ARRAYS_OFFSET + _whole(plan[STEP_BYTES])
    for number in range(count_arrays(line[KIND])):
        array = plan[ARRAYS + ARRAY_WORDS * number :]
        array[VALUES_OFFSET], array[WIDE_OFFSET] = offset, offset
        offset += _whole(array[COUNT] * ITEMS[array[RECEIVED_DTYPE]])
        if array[RECEIVED_DTYPE] != line[DTYPE]:
            array[WIDE_OFFSET] = offset
            offset += _whole(array[COUNT] * ITEMS[line[DTYPE]])
    if plan[ANSWER_BYTES] > 0:
        plan[ARRAYS + WIDE_OFFSET] = offset
        offset += _whole(plan[ANSWER_BYTES])
    plan[SLOTS_OFFSET] = offset
    plan[NARROW_OFFSET] = offset + 8 * plan[KEY_COUNT]
    return plan[NARROW_OFFSET] + (plan[ANSWER_BYTES] // 2 if may_narrow(line, plan) else np.int64(0))


@inline
def _whole(size: int) -> int:
    """Return a number of bytes, rounded up to whole int64 words."""
    return (size + 7) & ~7


@inline
def may_narrow(line: Int64s, plan: Int64s) -> bool:
    """Return True if the answer consists of integers that may be narrowed (``packing.narrow_integers``)."""
    return SIGNED[line[DTYPE]] and plan[ANSWER_BYTES] >= MIN_NARROWED_BYTES


# -- keys --------------------------------------------------------------------------------------------------------------


@inline
def unpack_slots(line: Int64s, base: Any, words: Int64s, plan: Int64s, slots: Int64s) -> bool:
    """Compute slots from key differences; return False if a key is outside the shard or an unsigned difference is 0."""
    live = np.uint64(line[LIVE] if line[CELLS] == 0 else ALL_KEYS)
    first = words[FIRST_WORD] - line[BEGIN]
    if first < 0 or np.uint64(first) >= live:
        return False
    slots[0] = first
    deltas, count, steps = pointer(base + Address(ARRAYS_OFFSET)), slots.size - 1, plan[STEPS]
    if steps == UINT8:
        return _ascend(carray(deltas, count, np.uint8), live, slots)
    if steps == UINT16:
        return _ascend(carray(deltas, count, np.uint16), live, slots)
    if steps == UINT32:
        return _ascend(carray(deltas, count, np.uint32), live, slots)
    if UNSIGNED[steps]:
        return _ascend(carray(deltas, count, np.uint64), live, slots)
    if steps == INT8:
        return _go(carray(deltas, count, np.int8), live, slots)
    if steps == INT16:
        return _go(carray(deltas, count, np.int16), live, slots)
    if steps == INT32:
        return _go(carray(deltas, count, np.int32), live, slots)
    return _go(carray(deltas, count, np.int64), live, slots)


@inline
def _ascend(deltas: Any, live: Any, slots: Int64s) -> bool:
    slot, last, one = np.uint64(slots[0]), live - np.uint64(1), np.uint64(1)
    for i in range(deltas.size):
        delta = np.uint64(deltas[i])
        # For a delta of 0, delta - 1 wraps to the largest uint64, so one comparison finds both faults.
        if delta - one >= last - slot:
            return False
        slot += delta
        slots[i + 1] = np.int64(slot)
    return True


@inline
def _go(deltas: Any, live: Any, slots: Int64s) -> bool:
    """Follow signed steps. A slot below 0 wraps to a large unsigned number, so it is also beyond ``live``."""
    slot = np.uint64(slots[0])
    for i in range(deltas.size):
        slot += np.uint64(np.int64(deltas[i]))
        if slot >= live:
            return False
        slots[i + 1] = np.int64(slot)
    return True
