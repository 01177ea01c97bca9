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
    ARRAYS,
    ARRAYS_AT,
    BECOMES_BYTE,
    BEGIN,
    CAME,
    CAME_BYTES,
    CELLS,
    CHANGES,
    COLUMNS_ADD,
    COLUMNS_ADD_SOME,
    COLUMNS_PULL,
    COUNT,
    COUNT_OF_KEYS,
    DTYPE,
    FIRST_WORD,
    FORM,
    FORM_BYTES,
    FOUND,
    GATHER,
    INT8,
    INT16,
    INT32,
    INT64,
    ITEMS,
    KEYS_WORD,
    KIND,
    LIVE,
    MAX_ARRAYS,
    MIN_HEADER,
    NARROW_AT,
    OF_ARRAY,
    PLACES,
    PULL,
    SCALARS,
    SCALARS_AT,
    SIGNED,
    SIZES,
    SLOTS_AT,
    STAGE_BYTE,
    START,
    STEP_BYTES,
    STEPS,
    STEPS_BYTE,
    UINT8,
    UINT16,
    UINT32,
    UNSIGNED,
    VALUES_AT,
    VERSION_BYTE,
    WIDE_AT,
    WIDTH,
)
from ps2.server.libc import Address, c_memcmp, pointer

ALL_KEYS = 2**63 - 1


@inline
def changes(kind: int) -> bool:
    """Return True if a plain operation changes data."""
    return kind != PULL and kind != GATHER and kind != COLUMNS_PULL


@inline
def arrays_of(kind: int) -> int:
    """Return the number of arrays that a plain operation brings, without its keys."""
    return MAX_ARRAYS if kind == COLUMNS_ADD_SOME else int(changes(kind))


@inline
def _dimensions(kind: int) -> int:
    """Return the number of dimensions in the header of the array of values; 0 for one dimension."""
    return 2 if COLUMNS_PULL <= kind <= COLUMNS_ADD else 0


@inline
def is_of_form(line: Int64s, header: Any) -> bool:
    """Return True if the header at an address has the shape of the line.

    The fields that vary within a shape are not compared: the route version, the id's number and settled number, keys,
    scalars, and the arrays' records. ``plan_request`` checks these.
    """
    names = 8 * (line[SCALARS_AT] + line[SCALARS])
    if changes(line[KIND]):
        names += arrays_of(line[KIND]) * ARRAY_BYTES + 8 * _dimensions(line[KIND])
    return (
        _equals(line, header, 0, VERSION_BYTE)
        and _equals(line, header, STAGE_BYTE, STEPS_BYTE - STAGE_BYTE)
        and _equals(line, header, STEPS_BYTE + 1, 1)
        and _equals(line, header, MIN_HEADER, 8 * line[SCALARS_AT] - MIN_HEADER)
        and _equals(line, header, names, line[FORM_BYTES] - names)
    )


@inline
def _equals(line: Int64s, header: Any, begin: Any, size: Any) -> bool:
    return c_memcmp(header + Address(begin), Address(line[FORM] + begin), size) == 0


@inline
def plan_request(line: Int64s, header: Any, words: Int64s, size: Any, room: int, plan: Int64s) -> bool:
    """Fill in the plan of a request of a known shape; return False if it is not plain or does not fit the buffer.

    Args:
        header: uint8.
        words: the header as int64.
        size: size of its arrays in bytes, as the head declares.
        room: size of the buffer in bytes.
    """
    kind, dtype = line[KIND], line[DTYPE]
    plan[:] = 0
    if kind >= GATHER and not _plan_keys(line, header, words, room, plan):
        return False
    if changes(kind) and not _plan_arrays(line, words, room, plan):
        return False
    if kind < GATHER and (line[CELLS] != 0 or not _plan_interval(line, words, plan)):
        return False
    for number in range(arrays_of(kind)):
        array = plan[ARRAYS + OF_ARRAY * number :]
        plan[CAME_BYTES] += array[COUNT] * ITEMS[array[CAME]]
    plan[ANSWER_BYTES] = 0 if changes(kind) else plan[FOUND] * ITEMS[dtype]
    return size == plan[STEP_BYTES] + plan[CAME_BYTES] and _place(line, plan) <= room


@inline
def _plan_keys(line: Int64s, header: Any, words: Int64s, room: int, plan: Int64s) -> bool:
    keys: Any = words[KEYS_WORD]
    steps, becomes = np.int64(header[STEPS_BYTE]), np.int64(header[BECOMES_BYTE])
    plan[COUNT_OF_KEYS], plan[STEPS], plan[FOUND] = keys, steps, keys * line[WIDTH]
    plan[STEP_BYTES] = (keys - 1) * ITEMS[steps]
    # Each key takes at least one byte of the buffer. A larger count could make the sizes below overflow.
    if not 1 <= keys <= room:
        return False
    if UNSIGNED[steps]:
        return becomes == 0
    return SIGNED[steps] and (becomes == 0 or (becomes == INT64 and ITEMS[steps] < 8))


@inline
def _plan_arrays(line: Int64s, words: Int64s, room: int, plan: Int64s) -> bool:
    """Plan the arrays of a request, except its keys; return False if one is not plain."""
    kind, dtype, keys = line[KIND], line[DTYPE], plan[COUNT_OF_KEYS]
    at = line[SCALARS_AT] + line[SCALARS]
    for number in range(arrays_of(kind)):
        # The dtype as sent, the dtype on arrival (0: the same), and the number of dimensions, if there are several.
        came, becomes, count = words[at] & 255, words[at] >> 8 & 255, words[at + 1]
        array = plan[ARRAYS + OF_ARRAY * number :]
        array[CAME], array[COUNT] = came, count
        if kind == COLUMNS_ADD_SOME:
            fits = came in (UINT8, UINT16, UINT32) and becomes == 0 and 0 <= count <= room
        elif becomes == 0:
            fits = came == dtype
        else:
            fits = becomes == dtype and SIGNED[came] and SIGNED[dtype] and ITEMS[came] < ITEMS[dtype]
        if not fits or words[at] >> 16 != _dimensions(kind):
            return False
        at += ARRAY_BYTES // 8
    if kind == COLUMNS_ADD_SOME:
        return plan[SIZES + COUNT] == keys and plan[PLACES + COUNT] == plan[CHANGES + COUNT]
    if kind > COLUMNS_PULL and (words[at] != keys or words[at + 1] != line[WIDTH]):
        return False
    return kind < GATHER or plan[ARRAYS + COUNT] == plan[FOUND]


@inline
def _plan_interval(line: Int64s, words: Int64s, plan: Int64s) -> bool:
    """Plan a request on an interval of a row; return False if the row does not contain it."""
    at, live = line[SCALARS_AT], line[LIVE]
    start = words[at] if line[SCALARS] > 0 else np.int64(0)
    found = plan[ARRAYS + COUNT]
    if line[KIND] == PULL:
        stop = words[at + 1] if line[SCALARS] > 1 else np.int64(-1)
        if stop == -1:
            stop = live
        if not 0 <= start <= stop <= live:
            return False
        found = stop - start
    plan[START], plan[FOUND] = start, found
    return 0 <= start <= live and 0 <= found <= live - start


@inline
def _place(line: Int64s, plan: Int64s) -> int:
    """Plan the positions of the arrays in the buffer; return where the last one ends."""
    at: Any = ARRAYS_AT + _whole(plan[STEP_BYTES])
    for number in range(arrays_of(line[KIND])):
        array = plan[ARRAYS + OF_ARRAY * number :]
        array[VALUES_AT], array[WIDE_AT] = at, at
        at += _whole(array[COUNT] * ITEMS[array[CAME]])
        if array[CAME] != line[DTYPE]:
            array[WIDE_AT] = at
            at += _whole(array[COUNT] * ITEMS[line[DTYPE]])
    if plan[ANSWER_BYTES] > 0:
        plan[ARRAYS + WIDE_AT] = at
        at += _whole(plan[ANSWER_BYTES])
    plan[SLOTS_AT] = at
    plan[NARROW_AT] = at + 8 * plan[COUNT_OF_KEYS]
    return plan[NARROW_AT] + (plan[ANSWER_BYTES] // 2 if may_narrow(line, plan) else np.int64(0))


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
def unpack_slots(line: Int64s, at: Any, words: Int64s, plan: Int64s, slots: Int64s) -> bool:
    """Compute slots from key differences; return False if a key is outside the shard or an unsigned difference is 0."""
    live = np.uint64(line[LIVE] if line[CELLS] == 0 else ALL_KEYS)
    first = words[FIRST_WORD] - line[BEGIN]
    if first < 0 or np.uint64(first) >= live:
        return False
    slots[0] = first
    deltas, count, steps = pointer(at + Address(ARRAYS_AT)), slots.size - 1, plan[STEPS]
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
