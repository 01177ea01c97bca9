"""What the loop of a data connection (``fast_path_loop``) knows: rows by handles; and memory for requests and replies.

``python -m ps2.server.fast_path`` compiles the loop; else the first server does, in the background.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core.errors import NumbaError

from ps2.matrix.partition import MatrixSpec, Partition
from ps2.ops import kernels, keyindex, warm
from ps2.ops.all import writes
from ps2.ops.table import Array
from ps2.ops.warm import compiling_alone
from ps2.protocol import binary, framing, messages
from ps2.protocol.arrays import DTYPE_OF, NUMBER_OF
from ps2.protocol.binary import Shape
from ps2.protocol.framing import written
from ps2.protocol.messages import PLAIN, PLAIN_FLOATS, Operation, Request, RequestId, byte_view
from ps2.server import applied, fence, metrics
from ps2.server.lock import HAS_MUTEX
from ps2.server.shard import Shard
from ps2.transport.data_server import Ended, Generation
from ps2.transport.sockets import send_all

log = logging.getLogger(__name__)

LOOP = "ps2.server.fast_path_loop"
LOCK = "ps2-fast-path.lock"

if TYPE_CHECKING:
    from ps2.server.engine import Engine

# Memory of a connection's buffer; the most that it grows to when there is use for it: a block and what is around it.
FIRST_BYTES = 1 << 16
MOST_BYTES = (4 << 20) + FIRST_BYTES
# What buffers may take together, as a part of the server's memory limit.
SHARE = 16
LINGER_MS = 100
NOTHING = np.zeros(0, np.uint8)
KEYED = ("gather", "scatter", "scatter_add", "scatter_sub")


class FastPaths:
    """Makes a fast path for each connection that has use for one, as soon as the loop is there. Safe for threads.

    What they take counts as the server's memory, and is given up as soon as data or requests need it.

    Attributes:
        nbytes: of all buffers.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.loop: ModuleType | None = None
        self._lock = threading.Lock()
        self._fast_paths: set[CompiledFastPath] = set()
        self.nbytes = 0
        engine.memory.sheds.append(self.shed)

    def load(self) -> None:
        """Load the loop, or compile it: until then all is done by Python, as it is where it cannot be had."""
        try:
            loop = load()
        except NumbaError as error:
            log.warning("fast_paths cannot be compiled here, so Python answers all requests: %s", error)
            return
        if loop is not None and works(loop):
            self.loop = loop

    def open(self, request: Request) -> CompiledFastPath | None:
        """Return a fast path for a connection with such requests; None if it is not for them, or takes too much."""
        if self.loop is None or self.shard_of(request) is None:
            return None
        fast_path = CompiledFastPath(self, self.loop)
        return fast_path if self.resize(fast_path, FIRST_BYTES) else None

    def shard_of(self, request: Request) -> Shard | None:
        """Return the shard that a request of a shape is about, if requests like it may be plain."""
        operation = request.operations[0]
        if operation.name not in PLAIN:
            return None
        shard = self.engine.shard((operation.matrix, operation.partition))
        if shard is None or shard.copy or writes(operation.name) != (request.id is not None):
            return None
        spec = shard.spec
        if spec.layout != "row" or spec.np_dtype not in PLAIN_FLOATS:
            return None
        # How many columns a sparse shard has changes with every key.
        return shard if spec.kind == "dense" or operation.keys is not None else None

    def resize(self, fast_path: CompiledFastPath, size: int) -> bool:
        """Give a fast path a buffer of another size, or 0 for none, if there is room for it."""
        with self._lock:
            added = size - (fast_path.buffer.size if fast_path in self._fast_paths else 0)
            room = self.engine.memory.limit_bytes // SHARE - self.nbytes
            if added > 0 and (added > room or not self.engine.memory.spare(added)):
                return False
            self._set(fast_path, size)
            return True

    def shed(self, size: int) -> None:
        """Take buffers away until so many bytes are free, or none is left: Python answers until there is room again."""
        with self._lock:
            left = self.nbytes - size
            while self._fast_paths and self.nbytes > left:
                fast_path = next(iter(self._fast_paths))
                self._set(fast_path, 0)
                # Its loop returns before it does anything more, and what it has used is gone then.
                fast_path.generation[0] += 1

    def _set(self, fast_path: CompiledFastPath, size: int) -> None:
        before = fast_path.buffer.size if fast_path in self._fast_paths else 0
        self.nbytes += size - before
        fast_path.buffer = _buffer(size or fast_path.loop.ARRAYS_AT)
        if size:
            self._fast_paths.add(fast_path)
        else:
            self._fast_paths.discard(fast_path)
            self.engine.memory.give_spare(before)


class CompiledFastPath:
    """Of one connection; one thread at a time uses it.

    Attributes:
        buffer: for the next call of ``serve``; of ``FastPaths``.
        generation: that the last one has gone by.
    """

    def __init__(self, fast_paths: FastPaths, loop: ModuleType) -> None:
        """It has no room for anything before ``FastPaths.resize``."""
        self._fast_paths = fast_paths
        self.loop = loop
        self.generation: Generation = np.zeros(1, np.int64)
        self.buffer = _buffer(loop.ARRAYS_AT)
        self._used = NOTHING
        self._table = np.zeros((loop.SLOTS, loop.FIELDS), np.int64)
        # By slot: what its line points to, which stays as long as the line; all but the row, which goes when it likes:
        # nobody looks at it before he has seen, under the lock, that the shard's layout is the same.
        self._kept: list[Any] = [None] * loop.SLOTS
        self._slots: dict[Shape, int] = {}
        self._serials = itertools.count(1)

    def close(self) -> None:
        """Give the memory back."""
        self._fast_paths.resize(self, 0)

    def serve(self, descriptor: int, generation: Generation, expected: int) -> Ended:
        """Answer plain requests until another one comes, or none for a while."""
        engine, loop, self.generation = self._fast_paths.engine, self.loop, generation
        self._used = self.buffer
        ended = loop.serve(
            descriptor,
            LINGER_MS,
            generation,
            expected,
            engine.fence.words,
            self._table,
            self._used,
            engine.meter.fast_path,
        )
        if ended != Ended.TAKEN:
            self._used = NOTHING
        return Ended(ended)

    def taken(self) -> Iterator[memoryview]:
        """Yield the parts of the message that the last call has received and left."""
        loop, buffer = self.loop, byte_view(self._used)
        head = loop.HEAD_AT + loop.HEAD.size
        length, size = loop.HEAD.unpack(buffer[loop.HEAD_AT : head])
        yield buffer[loop.HEAD_AT : head + length]
        # What lies before the values is filled up to whole words.
        steps = _steps_bytes(bytes(buffer[head : head + length]))
        yield buffer[loop.ARRAYS_AT :][:steps]
        yield buffer[loop.ARRAYS_AT + (steps + 7 & ~7) :][: size - steps]

    def bind(self, request: Request, size: int) -> int:
        """Return a handle for what a request, which was done, is about; 0 if the loop is not for it.

        Args:
            size: what its arrays, and those of the reply, took.
        """
        shape, shard = binary.shape_of(request), self._fast_paths.shard_of(request)
        if shape is None or shard is None or not _is_plain(request):
            return 0
        self._grow(2 * size)
        # Nobody waits for a handle: the next request like this one asks for it again.
        if not shard.lock.acquire(blocking=False):
            return 0
        try:
            row = request.operations[0].rows[0]
            if row in shard.touched or not shard.uses(row):
                return 0
            return self._put(shape, shard, row, request)
        finally:
            shard.lock.release()

    def _put(self, shape: Shape, shard: Shard, row: int, request: Request) -> int:
        loop, operation, id = self.loop, request.operations[0], request.id
        serial = next(self._serials)
        slot = self._slots.get(shape, len(self._slots) if len(self._slots) < loop.SLOTS else serial % loop.SLOTS)
        handle = (serial & 0xFFFFFF) * loop.SLOTS + slot
        header, _ = binary.request_parts(request, {shape: handle})
        if len(header) > loop.MOST_HEADER:
            return 0
        self._slots = {known: taken for known, taken in self._slots.items() if taken != slot} | {shape: slot}
        line = self._table[slot]
        line[:] = 0
        form, words = np.frombuffer(header, np.uint8), None
        line[[loop.FORM, loop.FORM_BYTES]] = form.ctypes.data, form.size
        line[[loop.KIND, loop.SCALARS]] = PLAIN.index(operation.name), len(operation.params)
        if id is not None:
            words = shard.applied.words(id)
            line[loop.SCOPE] = words.ctypes.data
        values = shard.array[row]
        self._kept[slot] = (shard.lock, shard.layout, form, words)
        line[[loop.MUTEX, loop.LAYOUT, loop.LAID_OUT]] = shard.lock.address, shard.layout.ctypes.data, shard.layout[0]
        line[[loop.ROW_DATA, loop.LIVE]] = values.ctypes.data, values.size
        if shard.index is None:
            line[loop.BEGIN] = shard.partition.begin
        else:
            cells = shard.index.cells
            line[[loop.CELLS, loop.CELL_COUNT]] = cells.ctypes.data, len(cells)
        line[loop.DTYPE] = NUMBER_OF[shard.spec.np_dtype]
        line[loop.HANDLE] = handle
        return handle

    def _grow(self, size: int) -> None:
        """Make the buffer larger, if that is wanted and there is memory for it."""
        if size < self.buffer.size >= FIRST_BYTES:
            return
        wanted = FIRST_BYTES if size < FIRST_BYTES else min(MOST_BYTES, FIRST_BYTES + (1 << size.bit_length()))
        if wanted > self.buffer.size:
            self._fast_paths.resize(self, wanted)


def load() -> ModuleType | None:
    """Load the compiled loop, or compile it, which one process does while others wait; None where it cannot run."""
    if not HAS_MUTEX or sys.byteorder != "little":
        return None
    loop = importlib.import_module(LOOP)
    folder = loop.serve.stats.cache_path
    with compiling_alone(Path(folder), LOCK, _sources()) if folder else nullcontext(False) as wanted:
        if wanted:
            # Numba looks at the file of a function alone, and this one has numbers and functions of others in it.
            for file in Path(folder).glob(f"{LOOP.rpartition('.')[2]}.*.nb[ic]"):
                file.unlink(missing_ok=True)
        nothing = np.zeros(1, np.int64)
        table = np.zeros((loop.SLOTS, loop.FIELDS), np.int64)
        loop.serve(-1, 0, nothing, 0, nothing, table, _buffer(loop.ARRAYS_AT), nothing)
    return loop


def is_compiled() -> bool:
    """Tell whether ``load`` would take a moment only."""
    if not HAS_MUTEX or sys.byteorder != "little":
        return False
    folder = importlib.import_module(LOOP).serve.stats.cache_path
    return bool(folder) and warm.is_compiled(Path(folder), LOCK, _sources())


def works(loop: ModuleType) -> bool:
    """Tell whether the loop does what it should, with this C library and this processor: an addition, and a pull."""
    from ps2.server.engine import Engine

    engine = Engine(1 << 24, allow_udf=False)
    engine.create_matrix(1, MatrixSpec(3, 1), [Partition(0, 0, 3)])
    add = Operation("push_add", 1, 0, (0,), {"start": 0}, (np.array([1, 2, 3], np.float32),))
    requests = Request((add,), RequestId("s", 0)), Request((Operation("pull", 1, 0, (0,)),))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fast_path = CompiledFastPath(engine.fast_paths, loop)
        engine.fast_paths.resize(fast_path, FIRST_BYTES)
        handles = {shape: fast_path.bind(request, 0) for request in requests if (shape := binary.shape_of(request))}
        for request in requests:
            send_all(theirs, written(binary.request_parts(request, handles)))
        theirs.shutdown(socket.SHUT_WR)
        ended = fast_path.serve(ours.fileno(), np.zeros(1, np.int64), 0)
        ours.shutdown(socket.SHUT_WR)
        replies = theirs.recv(1 << 16)
    row = engine.shards()[1, 0].array[0].tobytes()
    fine = ended == Ended.OTHER and row == add.arrays[0].tobytes() and replies.endswith(row)
    if not fine:
        log.warning("fast_paths do not work on this system: Python answers all requests")
    return fine


def _sources() -> list[Path]:
    """Return the files that the loop is made of."""
    modules = (applied, fence, framing, kernels, keyindex, metrics, binary, messages)
    here = [Path(__file__).with_name(name) for name in ("fast_path.py", "fast_path_loop.py", "libc.py")]
    return [*here, *(Path(module.__file__ or "") for module in modules)]


def _buffer(size: int) -> Array:
    return np.zeros(size // 8, np.int64).view(np.uint8)


def _is_plain(request: Request) -> bool:
    """Tell whether requests of this one's shape may be plain, and it is written as they are."""
    operation, id = request.operations[0], request.id
    if operation.wire is not None or (id is not None and (id.part or id.parts > 1)):
        return False
    if (operation.keys is not None) != (operation.name in KEYED):
        return False
    if operation.keys is not None:
        return not operation.params and operation.keys.digest is None and operation.keys.columns is not None
    scalars = tuple(operation.params)
    return scalars in ((), ("start",)) or (operation.name == "pull" and scalars == ("start", "stop"))


def _steps_bytes(header: bytes) -> int:
    """Return what the differences of keys take that come before the values."""
    dtype = DTYPE_OF.get(header[binary.STEPS_AT])
    (count,) = binary.WORD.unpack_from(header, binary.KEY_COUNT_AT)
    return 0 if dtype is None else (count - 1) * dtype.itemsize


if __name__ == "__main__":
    load()
