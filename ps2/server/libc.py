"""C library functions, and memory access by address, for compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from ps2.ops.kernels import inline

Address = types.uintp


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a C library function. Compiled code refers to it by name, so numba can cache the code."""
    return types.ExternalFunction(name, result(*arguments))


c_recv = _function("recv", types.int64, types.int32, Address, types.uint64, types.int32)
c_send = _function("send", types.int64, types.int32, Address, types.uint64, types.int32)
c_recvmsg = _function("recvmsg", types.int64, types.int32, Address, types.int32)
c_sendmsg = _function("sendmsg", types.int64, types.int32, Address, types.int32)
c_poll = _function("poll", types.int32, Address, types.uint64, types.int32)
c_errno = _function("__errno_location", Address)
c_clock = _function("clock_gettime", types.int32, types.int32, Address)
c_memcpy = _function("memcpy", Address, Address, Address, types.uint64)
c_memcmp = _function("memcmp", types.int32, Address, Address, types.uint64)
c_trylock = _function("pthread_mutex_trylock", types.int32, Address)
c_lock = _function("pthread_mutex_lock", types.int32, Address)
c_unlock = _function("pthread_mutex_unlock", types.int32, Address)

EINTR, EAGAIN = 4, 11
MSG_PEEK, MSG_DONTWAIT, MSG_WAITALL, MSG_NOSIGNAL = 0x2, 0x40, 0x100, 0x4000
POLLIN = 1
CLOCK_BOOTTIME = 7


def _pointer(_: Any, address: Any) -> Any:
    """Return an address as a pointer, for ``numba.carray``."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(Address), generate


def _atomic_add(_: Any, address: Any, value: Any) -> Any:
    """Atomically add to the int64 at an address."""

    def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        target = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.atomic_rmw("add", target, arguments[1], "monotonic")
        return context.get_dummy_value()

    return types.void(Address, types.int64), generate


pointer: Any = intrinsic(_pointer)
atomic_add: Any = intrinsic(_atomic_add)


@inline
def error_number() -> int:
    return carray(pointer(c_errno()), 1, np.int32)[0]


@inline
def now_ns(timespec: Any) -> int:
    """Return ``fence.now_s()`` in nanoseconds; ``timespec`` is a buffer of two int64."""
    c_clock(CLOCK_BOOTTIME, Address(timespec.ctypes.data))
    return timespec[0] * 1_000_000_000 + timespec[1]


@inline
def receive_all(descriptor: int, address: Any, size: int) -> bool:
    """Receive ``size`` bytes at an address; return False if the connection ends first."""
    while size > 0:
        received = c_recv(descriptor, address, size, MSG_WAITALL)
        if received > 0:
            address += Address(received)
            size -= received
        elif received == 0 or error_number() != EINTR:
            return False
    return True


@inline
def send_all(descriptor: int, address: Any, size: Any) -> bool:
    """Send ``size`` bytes from an address; return False if the connection ends first."""
    while size > 0:
        sent = c_send(descriptor, address, size, MSG_NOSIGNAL)
        if sent >= 0:
            address += Address(sent)
            size -= sent
        elif error_number() != EINTR:
            return False
    return True


@inline
def array_address(array: Any) -> Any:
    return Address(array.ctypes.data)


# The words of a message, int64: a ``struct msghdr``, then from PARTS on its ``iovec`` array, an address and a size for
# each part.
PARTS, PART_WORDS = 8, 2
MESSAGE_WORDS = PARTS + 5 * PART_WORDS


@inline
def set_part(message: Any, part: int, address: Any, size: Any) -> None:
    message[PARTS + PART_WORDS * part], message[PARTS + PART_WORDS * part + 1] = address, size


@inline
def receive_parts(descriptor: int, message: Any, parts: int) -> bool:
    """Receive a message, each part at its address; return False if the connection ends first."""
    _set_head(message, parts)
    received = max(c_recvmsg(descriptor, array_address(message), MSG_WAITALL), np.int64(-1))
    if received == 0 or (received < 0 and error_number() != EINTR):
        return False
    received = max(received, np.int64(0))
    for part in range(parts):
        address, size = message[PARTS + PART_WORDS * part], message[PARTS + PART_WORDS * part + 1]
        if received < size and not receive_all(descriptor, Address(address + received), size - received):
            return False
        received = max(received - size, np.int64(0))
    return True


@inline
def send_parts(descriptor: int, message: Any, parts: int, flags: int) -> int:
    """Send the beginning of a message; return the number of sent bytes, or -1 if the connection has ended."""
    _set_head(message, parts)
    sent = c_sendmsg(descriptor, array_address(message), flags | MSG_NOSIGNAL)
    if sent >= 0:
        return sent
    return 0 if error_number() in (EAGAIN, EINTR) else -1


@inline
def send_rest(descriptor: int, message: Any, parts: int, sent: Any) -> bool:
    """Send a message from byte ``sent`` on; return False if the connection has ended."""
    for part in range(parts):
        address, size = message[PARTS + PART_WORDS * part], message[PARTS + PART_WORDS * part + 1]
        if sent < size and not send_all(descriptor, Address(address + sent), size - sent):
            return False
        sent = max(sent - size, np.int64(0))
    return True


@inline
def _set_head(message: Any, parts: int) -> None:
    message[:7] = 0
    message[2], message[3] = array_address(message) + Address(8 * PARTS), parts
