"""The loop that answers the plain requests of one data connection, compiled: nothing of Python runs for them.

It takes requests whose handle stands for a shape of requests on one row of floats, and whose header is equal to one of
that shape (``ps2.protocol.binary``) but for what changes from one to the next; and which nothing speaks against: the
route version is known, the lease holds, the id is new or has been applied, the shard is as it was when the handle was
given. Whatever else comes is left to Python before anything of it has been done: where it can be told by looking,
before it is even received. What is checked, and in which order, is what ``Engine.execute`` checks; see
docs/decisions/0027.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from ps2.ops import kernels
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.keyindex import find
from ps2.protocol import binary
from ps2.protocol.arrays import NUMBER_OF
from ps2.protocol.framing import HEAD
from ps2.server.applied import BASE, BELOW, BITS, END, IRREGULAR, WINDOW
from ps2.server.fence import ANY_VERSION, COPIED, OPEN, UNTIL_NS, VERSION
from ps2.server.libc import (
    EAGAIN,
    EINTR,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    MSG_PEEK,
    MSG_WAITALL,
    POLLIN,
    Address,
    add_at,
    address_of,
    c_lock,
    c_memcmp,
    c_memcpy,
    c_poll,
    c_recv,
    c_recvmsg,
    c_sendmsg,
    c_try,
    c_unlock,
    error_number,
    now_ns,
    pointer,
    receive_all,
    send_all,
)
from ps2.server.metrics import (
    BUCKETS,
    BUCKETS_NS,
    BYTES_IN,
    BYTES_OUT,
    KEYS,
    LOCK_WAIT_NS,
    LOCK_WAITS,
    MUTATIONS,
    NANOSECONDS,
    OF_OPERATION,
    REQUESTS,
    SUMS,
    WAITING,
)

# How a call ends. CLOSED: the connection has. IDLE: nothing has come for a while. OTHER: something is there that is
# not for this loop. TAKEN: the same, and it has been received: ``CompiledFastPath.taken`` has it.
CLOSED, IDLE, OTHER, TAKEN = range(4)

# What a line of the table says of a handle: itself; the shard's mutex, and where its ``layout`` is and was; the row's
# numbers, how many, of which dtype, from which column on; which of the plain operations it is, with how many scalars;
# a header of that shape, and its bytes; the words of the id's scope; and of a sparse shard the cells of its key index,
# and how many.
HANDLE, MUTEX, LAYOUT, LAID_OUT, ROW_DATA, LIVE, DTYPE, BEGIN = range(8)
KIND, SCALARS, FORM, FORM_BYTES, SCOPE, CELLS, CELL_COUNT, FIELDS = range(8, 16)
SLOTS = 64  # a power of two; the lowest bits of a handle say which

# A buffer, from its beginning: head and header of a request, so that the numbers in it are aligned; those of a reply;
# what the calls to the system take; and the rest, for arrays.
HEAD_AT = 4
HEADER_AT = HEAD_AT + HEAD.size
REPLY_AT = 1020
SCRATCH_AT = 1088
ARRAYS_AT = 1344
MOST_HEADER = 800

# In the order of ``messages.PLAIN``.
PULL, PUSH, PUSH_ADD, PUSH_SUB, GATHER, SCATTER, SCATTER_ADD, SCATTER_SUB = range(8)
FLOAT32, UINT8, UINT64 = NUMBER_OF[np.dtype("f4")], NUMBER_OF[np.dtype("u1")], NUMBER_OF[np.dtype("u8")]
ALL_KEYS = 2**63 - 1
# Constants of the form, as compiled code knows them: bytes, and numbers of words of 8 bytes.
HEAD_BYTES, LEAST_HEADER = HEAD.size, binary.TAIL_AT + binary.WORD.size
REPLY_HEADER, ARRAY_BYTES = binary.REPLY.size + binary.RESULT.size, binary.ARRAY.size
A_REPLY = binary.A_REPLY
HANDLE_AT, STEPS_AT = binary.REQUEST.size // 4, binary.STEPS_AT
SCALARS_AT = LEAST_HEADER // 8
VERSION_AT, NUMBER_AT, SETTLED_AT = binary.VERSION_AT // 8, binary.NUMBER_AT // 8, binary.SETTLED_AT // 8
KEYS_AT, FIRST_AT = binary.KEY_COUNT_AT // 8, binary.FIRST_AT // 8
VERSION_BYTE, STAGE_BYTE, KEYS_BYTE = binary.VERSION_AT, binary.STAGE_AT, binary.KEY_COUNT_AT


@kernel
def serve(
    descriptor: int,
    linger_ms: int,
    generation: Int64s,
    expected: int,
    fence: Int64s,
    table: Any,
    buffer: Any,
    counts: Int64s,
) -> int:
    """Answer requests until one comes that is not for this loop.

    Args:
        generation: one number; where it is not the expected one, Python has to look who is there.
        fence: ``Fence.words``, whose clock is that of ``now_ns``.
        table: int64 of shape (SLOTS, FIELDS).
        buffer: uint8, of more than ARRAYS_AT; what it points to is aligned to 8.
        counts: ``Meter.fast_path``.
    """
    at = address_of(buffer)
    header = buffer[HEADER_AT:]
    header32, header64 = header.view(np.int32), header.view(np.int64)
    head32, head64 = buffer.view(np.int32), buffer[8:].view(np.int64)
    reply32, reply64 = buffer[REPLY_AT - 4 :].view(np.int32), buffer[REPLY_AT + 4 :].view(np.int64)
    scratch, scratch32 = buffer[SCRATCH_AT:].view(np.int64), buffer[SCRATCH_AT:].view(np.int32)
    timespec = scratch[:2]
    while True:
        scratch32[0], scratch32[1] = descriptor, POLLIN
        ready = c_poll(at + Address(SCRATCH_AT), 1, linger_ms)
        if ready == 0:
            return IDLE
        if ready < 0:
            if error_number() == EINTR:
                continue
            return CLOSED
        peeked = c_recv(descriptor, at + Address(HEAD_AT), HEAD_BYTES + MOST_HEADER, MSG_PEEK | MSG_DONTWAIT)
        # -- is it for this loop? All that is needed of it is in the header.
        if peeked < HEAD_BYTES + LEAST_HEADER or generation[0] != expected:
            return OTHER
        length, size, handle = head32[1], head64[0], header32[HANDLE_AT]
        line = table[handle & (SLOTS - 1)]
        if handle <= 0 or line[HANDLE] != handle or length != line[FORM_BYTES] or peeked < HEAD_BYTES + length:
            return OTHER
        kind = line[KIND]
        writes, keyed = kind != PULL and kind != GATHER, kind >= GATHER
        if not _is_of_form(line, at, writes):
            return OTHER
        count: Any = header64[SCALARS_AT + line[SCALARS] + 1] if writes else np.int64(0)
        keys: Any = header64[KEYS_AT] if keyed else np.int64(0)
        live, steps = line[LIVE], header[STEPS_AT]
        if keyed:
            # Each key takes a byte of the buffer, at least; sizes of more of them might not be what they seem.
            start, found = np.int64(0), keys
            plain = UINT8 <= steps <= UINT64 and 1 <= keys <= buffer.size and (not writes or count == keys)
        else:
            start, found, plain = _interval(kind, line[SCALARS], header64, count, live)
            plain = plain and line[CELLS] == 0
        if not plain:
            return OTHER
        item = np.int64(4 if line[DTYPE] == FLOAT32 else 8)
        deltas = (keys - 1) << np.int64(steps - UINT8) if keyed else np.int64(0)
        answer = np.int64(0) if writes else found * item
        values_at = ARRAYS_AT + ((deltas + 7) & ~7)
        slots_at = values_at + ((max(count * item, answer) + 7) & ~7)
        if size != deltas + count * item or slots_at + 8 * keys > buffer.size:
            return OTHER
        if not _may(fence, header64[VERSION_AT], writes, timespec):
            return OTHER
        # -- receive it, its arrays where they are aligned
        if not _receive(descriptor, scratch, at, HEAD_BYTES + length, deltas, values_at, count * item):
            return CLOSED
        began_ns = now_ns(timespec)
        slots = carray(pointer(at + Address(slots_at)), keys, np.int64)
        if keyed and not _slots(
            at + Address(ARRAYS_AT),
            steps - UINT8,
            header64[FIRST_AT] - line[BEGIN],
            live if line[CELLS] == 0 else ALL_KEYS,
            slots,
        ):
            return TAKEN
        # -- do it
        mutex = Address(line[MUTEX])
        if c_try(mutex) != 0:
            since_ns = now_ns(timespec)
            _count(counts, WAITING, 1)
            c_lock(mutex)
            _count(counts, WAITING, -1)
            waited_ns = now_ns(timespec) - since_ns
            began_ns += waited_ns
            _count(counts, LOCK_WAITS, 1)
            _count(counts, LOCK_WAIT_NS, waited_ns)
        again = 0
        fine = (
            generation[0] == expected
            and carray(pointer(Address(line[LAYOUT])), 1, np.int64)[0] == line[LAID_OUT]
            and _may(fence, header64[VERSION_AT], writes, timespec)
        )
        if fine and writes:
            scope = carray(pointer(Address(line[SCOPE])), WINDOW + BITS // 64, np.int64)
            again = _applied(scope, header64[NUMBER_AT], header64[SETTLED_AT])
            fine = again >= 0 and header64[SETTLED_AT] >= 0
        if fine and line[CELLS] != 0 and again == 0:
            # Keys that are not there are 0 to a gather; else Python makes place for them.
            cells = carray(pointer(Address(line[CELLS])), (line[CELL_COUNT], 2), np.int64)
            fine = find(cells, slots) or not writes
        if not fine:
            c_unlock(mutex)
            return TAKEN
        reply_bytes = HEAD_BYTES + REPLY_HEADER + (0 if writes else ARRAY_BYTES)
        reply32[1], reply64[0] = reply_bytes - HEAD_BYTES, answer
        # A reply of one result: without a scalar, and with one array if it is a read's.
        reply64[1], reply64[2], reply64[3], reply64[4] = A_REPLY | again << 8, 1, 0 if writes else 1 << 16, 0
        reply64[5], reply64[6] = line[DTYPE], answer // item
        from_at = at + Address(values_at)
        sent: Any = np.int64(0)
        if kind == PULL:
            # Straight from the row, as much as the system takes; what is left is copied: who reads may be slow.
            _count_request(counts, 0, answer, False)
            row_at = Address(line[ROW_DATA] + start * item)
            sent = _send(descriptor, scratch, at, reply_bytes, row_at, answer, MSG_DONTWAIT)
            past = max(np.int64(0), sent - reply_bytes)
            if past < answer and sent >= 0:
                c_memcpy(from_at + Address(past), row_at + Address(past), answer - past)
        elif not again:
            if line[DTYPE] == FLOAT32:
                row = carray(pointer(Address(line[ROW_DATA])), live, np.float32)
                values = carray(pointer(from_at), max(count, answer // item), np.float32)
                _change(kind, row, start, slots, values)
            else:
                row64 = carray(pointer(Address(line[ROW_DATA])), live, np.float64)
                values64 = carray(pointer(from_at), max(count, answer // item), np.float64)
                _change(kind, row64, start, slots, values64)
            if writes:
                _note(scope, header64[NUMBER_AT])
        if writes:
            _settle(scope, header64[SETTLED_AT])
        c_unlock(mutex)
        ended_ns = now_ns(timespec)
        _count_operation(counts, kind, keys, ended_ns - began_ns)
        # It may have been stopped meanwhile, for so long that another server is in its place. Python says so: what has
        # been done here is lost with this server, or known to have been done.
        if kind != PULL and ended_ns > fence[UNTIL_NS]:
            return TAKEN
        # -- answer it
        if kind != PULL:
            _count_request(counts, count * item + 8 * keys, answer, writes and not again)
            sent = _send(descriptor, scratch, at, reply_bytes, from_at, answer, 0)
        if sent < 0 or not _send_rest(descriptor, at, reply_bytes, from_at, answer, sent):
            return CLOSED


@kernel
def _count_request(counts: Int64s, came: Any, sent: Any, changed: bool) -> None:
    _count(counts, REQUESTS, 1)
    _count(counts, BYTES_IN, came)
    _count(counts, BYTES_OUT, sent)
    if changed:
        _count(counts, MUTATIONS, 1)


@kernel
def _count_operation(counts: Int64s, kind: int, keys: Any, took_ns: Any) -> None:
    mine = SUMS + kind * OF_OPERATION
    bucket = 0
    while bucket < BUCKETS_NS.size and took_ns > BUCKETS_NS[bucket]:
        bucket += 1
    _count(counts, mine + KEYS, keys)
    _count(counts, mine + NANOSECONDS, took_ns)
    _count(counts, mine + BUCKETS + bucket, 1)


@kernel
def _is_of_form(line: Int64s, at: Any, writes: bool) -> bool:
    """Tell whether a request is of the shape that its handle stands for: equal to a header of it, but for what may
    change: route version, number and settled number of the id; keys; scalars, and how many values there are."""
    array = LEAST_HEADER + 8 * line[SCALARS]
    names = array
    if writes:
        if not _is_equal(line, at, array, 8):
            return False
        names += ARRAY_BYTES
    return (
        _is_equal(line, at, 0, VERSION_BYTE)
        and _is_equal(line, at, STAGE_BYTE, STEPS_AT - STAGE_BYTE)
        and _is_equal(line, at, STEPS_AT + 1, KEYS_BYTE - STEPS_AT - 1)
        and _is_equal(line, at, LEAST_HEADER - 8, 8)
        and _is_equal(line, at, names, line[FORM_BYTES] - names)
    )


@kernel
def _is_equal(line: Int64s, at: Any, begin: Any, size: Any) -> bool:
    return c_memcmp(at + Address(HEADER_AT + begin), Address(line[FORM] + begin), size) == 0


@kernel
def _interval(kind: int, scalars: int, header64: Int64s, count: Any, live: int) -> tuple[Any, Any, Any]:
    """Return where a request on a part of a row begins, how many numbers it is about, and whether that is plain."""
    start = header64[SCALARS_AT] if scalars > 0 else np.int64(0)
    if kind != PULL:
        return start, count, 0 <= start <= live and 0 <= count <= live - start
    stop = header64[SCALARS_AT + 1] if scalars > 1 else np.int64(-1)
    if stop == -1:
        stop = live
    return start, stop - start, 0 <= start <= stop <= live


@kernel
def _may(fence: Int64s, version: int, writes: bool, timespec: Int64s) -> bool:
    """Tell whether this server may do a request now."""
    return (
        fence[OPEN] != 0
        and (fence[VERSION] == ANY_VERSION or fence[VERSION] == version)
        and (not writes or fence[COPIED] == 0)
        and now_ns(timespec) <= fence[UNTIL_NS]
    )


@kernel
def _count(counts: Int64s, number: int, value: Any) -> None:
    add_at(address_of(counts) + Address(8 * number), value)


@kernel
def _receive(descriptor: int, scratch: Int64s, at: Any, head: int, deltas: Any, values_at: Any, values: int) -> bool:
    """Receive a message: head and header, then arrays, each to its place."""
    _message(scratch, 3)
    scratch[8], scratch[9] = at + Address(HEAD_AT), head
    scratch[10], scratch[11] = at + Address(ARRAYS_AT), deltas
    scratch[12], scratch[13] = at + Address(values_at), values
    got = c_recvmsg(descriptor, address_of(scratch), MSG_WAITALL)
    if got == head + deltas + values:
        return True
    if got == 0 or (got < 0 and error_number() != EINTR):
        return False
    got = max(got, np.int64(0))
    for part in range(3):
        part_at, size = scratch[8 + 2 * part], scratch[9 + 2 * part]
        if got < size and not receive_all(descriptor, Address(part_at + got), size - got):
            return False
        got = max(got - size, np.int64(0))
    return True


@kernel
def _send(descriptor: int, scratch: Int64s, at: Any, header: Any, values: Any, size: Any, flags: int) -> int:
    """Send a reply with its array, as much as goes; return the bytes, -1 if the connection has ended."""
    _message(scratch, 2 if size else 1)
    scratch[8], scratch[9] = at + Address(REPLY_AT), header
    scratch[10], scratch[11] = values, size
    sent = c_sendmsg(descriptor, address_of(scratch), flags | MSG_NOSIGNAL)
    if sent >= 0:
        return sent
    number = error_number()
    return 0 if number in (EAGAIN, EINTR) else -1


@kernel
def _send_rest(descriptor: int, at: Any, header: Any, values: Any, size: Any, sent: Any) -> bool:
    """Send what is left of a reply; False if the connection has ended."""
    if sent < header:
        if not send_all(descriptor, at + Address(REPLY_AT + sent), header - sent):
            return False
        sent = header
    past = sent - header
    return past >= size or send_all(descriptor, values + Address(past), size - past)


@kernel
def _message(scratch: Int64s, parts: int) -> None:
    """Make a ``struct msghdr`` of so many parts, which follow it."""
    scratch[:7] = 0
    scratch[2], scratch[3] = address_of(scratch) + Address(64), parts


@kernel
def _slots(deltas: Any, dtype: int, first: int, live: int, slots: Int64s) -> bool:
    """Set slots from the differences of keys; False if some are not, in order, within the row."""
    count = slots.size - 1
    if first < 0 or first >= live:
        return False
    slots[0] = first
    if dtype == 0:
        return _unpack(carray(pointer(deltas), count, np.uint8), live, slots)
    if dtype == 1:
        return _unpack(carray(pointer(deltas), count, np.uint16), live, slots)
    if dtype == 2:
        return _unpack(carray(pointer(deltas), count, np.uint32), live, slots)
    return _unpack(carray(pointer(deltas), count, np.uint64), live, slots)


@kernel
def _unpack(deltas: Any, live: int, slots: Int64s) -> bool:
    slot, last, one = np.uint64(slots[0]), np.uint64(live - 1), np.uint64(1)
    for i in range(deltas.size):
        delta = np.uint64(deltas[i])
        # Of a delta of 0, delta - 1 is the largest uint64: one comparison finds both faults.
        if delta - one >= last - slot:
            return False
        slot += delta
        slots[i + 1] = np.int64(slot)
    return True


@kernel
def _change(kind: int, row: Any, start: Any, slots: Int64s, values: Any) -> None:
    if kind == GATHER:
        kernels.gather(row, slots, values)
    elif kind == SCATTER:
        kernels.scatter_set(row, slots, values)
    elif kind == SCATTER_ADD:
        kernels.scatter_add(row, slots, values)
    elif kind == SCATTER_SUB:
        kernels.scatter_sub(row, slots, values)
    else:
        # As a slice: with ``start + i`` as an index, the compiler would not use SIMD fast_paths.
        to = row[start : start + values.size]
        if kind == PUSH:
            for i in range(values.size):
                to[i] = values[i]
        elif kind == PUSH_ADD:
            for i in range(values.size):
                to[i] += values[i]
        else:
            for i in range(values.size):
                to[i] -= values[i]


@kernel
def _applied(scope: Int64s, number: int, settled: int) -> int:
    """Return 1 if a number has been applied, 0 if it has not; -1 if the window does not tell."""
    if scope[IRREGULAR] != 0 or number < 0 or scope[BELOW] < 0 or scope[BASE] < 0 or scope[END] < 0:
        return -1
    if number < scope[BELOW]:
        return 1
    at = number - scope[BASE]
    if at < 0:
        return -1
    if at >= BITS:
        # The first of a clock, say, which lies far beyond those before it: all of the window is settled by then.
        return 0 if scope[BASE] + BITS <= settled <= number and number >= scope[END] else -1
    if scope[END] > scope[BASE] + BITS:
        return -1  # the window would come to numbers that Python alone knows
    return (scope[WINDOW + (at >> 6)] >> (at & 63)) & 1


@kernel
def _note(scope: Int64s, number: int) -> None:
    """Note a number of the window, or one beyond it, when that may begin there."""
    at = number - scope[BASE]
    if at >= BITS:
        scope[WINDOW:] = 0
        scope[BASE] = number
        at = 0
    scope[WINDOW + (at >> 6)] |= np.int64(1) << (at & 63)


@kernel
def _settle(scope: Int64s, settled: int) -> None:
    """Forget the numbers below this one, and those that follow without a gap, as ``AppliedIds.add`` does."""
    below = max(scope[BELOW], settled)
    at = below - scope[BASE]
    while 0 <= at < BITS and (scope[WINDOW + (at >> 6)] >> (at & 63)) & 1:
        at += 1
    below = scope[BASE] + at
    scope[BELOW] = below
    if at < BITS // 2:
        return
    # Whole words of what is done with go.
    words = min(at >> 6, BITS // 64)
    for i in range(BITS // 64):
        scope[WINDOW + i] = scope[WINDOW + i + words] if i + words < BITS // 64 else 0
    scope[BASE] += 64 * words
    if scope[BASE] < below and words == BITS // 64:
        scope[BASE] = below
