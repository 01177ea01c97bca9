"""Fast paths of connections: compiled code (``fast_path_loop``) answers plain requests from a buffer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
from numba.core.errors import NumbaError

from ps2.protocol.framing import HEAD
from ps2.protocol.messages import Request, ShardId, byte_view
from ps2.server import fast_path_line as fp
from ps2.server.fast_path_compiled import FIRST_BYTES, load, new_buffer, works
from ps2.server.fast_path_table import HandleTable, is_plain, may_be_plain
from ps2.server.fence import Fence
from ps2.server.memory import MemoryAccount
from ps2.server.metrics import Meter
from ps2.server.shard import Shard
from ps2.transport.data_server import Generation, ServeResult

log = logging.getLogger(__name__)

# Maximum size of a connection's buffer: 4 MiB of values, and the rest of a request.
MAX_BYTES = (4 << 20) + FIRST_BYTES
# All buffers together take at most 1 / MEMORY_DIVISOR of the server's memory limit.
MEMORY_DIVISOR = 16
# Time that the loop waits for the next request before it returns IDLE.
LINGER_MS = 100
NO_BYTES = np.zeros(0, np.uint8)
# Returns the shard with an id; None if the engine does not have it.
FindShard = Callable[[ShardId], Shard | None]


class FastPaths:
    """Creates fast paths for connections with plain requests, after the loop is loaded. Thread-safe.

    Buffers are freed when requests or shards need the memory (``MemoryAccount.take_cache``).
    """

    def __init__(self, memory: MemoryAccount, meter: Meter) -> None:
        self.meter = meter
        self.loop: ModuleType | None = None
        self._memory = memory
        self._lock = threading.Lock()
        self._fast_paths: set[CompiledFastPath] = set()
        self.nbytes = 0
        memory.cache_releasers.append(self.free_memory)

    def load(self) -> None:
        """Load or compile the loop. Until it is loaded, and if it cannot run here, Python answers all requests."""
        try:
            loop = load()
        except NumbaError as error:
            log.warning("fast paths cannot be compiled here, so Python answers all requests: %s", error)
            return
        if loop is not None and works(loop):
            self.loop = loop

    def open(self, request: Request, fence: Fence, find_shard: FindShard) -> CompiledFastPath | None:
        """Return a fast path for a connection with such a request; None if it is not plain, or memory is short."""
        if self.loop is None:
            return None
        fast_path = CompiledFastPath(self, self.loop, fence, find_shard)
        is_open = fast_path.plain_shard(request) is not None and self.resize(fast_path, FIRST_BYTES)
        return fast_path if is_open else None

    def resize(self, fast_path: CompiledFastPath, size: int) -> bool:
        """Replace a fast path's buffer by one of ``size`` bytes (0: no buffer); return False if memory is short."""
        with self._lock:
            added = size - (fast_path.buffer.size if fast_path in self._fast_paths else 0)
            free = self._memory.limit_bytes // MEMORY_DIVISOR - self.nbytes
            if added > 0 and (added > free or not self._memory.take_cache(added)):
                return False
            self._set(fast_path, size)
            return True

    def free_memory(self, size: int) -> None:
        """Free ``size`` bytes of buffers, or all buffers. Python answers requests while memory is short."""
        with self._lock:
            target = self.nbytes - size
            while self._fast_paths and self.nbytes > target:
                fast_path = next(iter(self._fast_paths))
                self._set(fast_path, 0)
                # A new generation makes a running loop return before its next request; then the buffer is freed.
                fast_path.generation[0] += 1

    def _set(self, fast_path: CompiledFastPath, size: int) -> None:
        old_size = fast_path.buffer.size if fast_path in self._fast_paths else 0
        self.nbytes += size - old_size
        fast_path.buffer = new_buffer(size or fp.ARRAYS_OFFSET)
        if size:
            self._fast_paths.add(fast_path)
        else:
            self._fast_paths.discard(fast_path)
            self._memory.give_cache(old_size)


class CompiledFastPath:
    """The fast path of one connection to one engine. One thread at a time may use it.

    Attributes:
        generation: the counter that the running loop checks; ``FastPaths`` increases it to make the loop return.
        buffer: uint8, the buffer for the next call of ``serve``, set by ``FastPaths``.
    """

    def __init__(self, fast_paths: FastPaths, loop: ModuleType, fence: Fence, find_shard: FindShard) -> None:
        """Begin without memory for requests, which ``FastPaths.resize`` allocates.

        ``fence``, ``find_shard``: of the engine. Requests of this connection for another engine are not plain.
        """
        self._fast_paths, self._loop = fast_paths, loop
        self._fence, self._find_shard = fence, find_shard
        self.generation: Generation = np.zeros(1, np.int64)
        self.buffer = new_buffer(fp.ARRAYS_OFFSET)
        self._served_buffer = NO_BYTES
        self._table = HandleTable()

    def close(self) -> None:
        self._fast_paths.resize(self, 0)

    def serve(self, descriptor: int, generation: Generation, expected: int) -> ServeResult:
        """Answer plain requests until another request arrives, or no request arrives for ``LINGER_MS``."""
        self.generation, self._served_buffer = generation, self.buffer
        fence_words, counts = self._fence.words, self._fast_paths.meter.fast_path
        result = self._loop.serve(
            descriptor, LINGER_MS, generation, expected, fence_words, self._table.lines, self._served_buffer, counts
        )
        if result != ServeResult.RECEIVED:
            self._served_buffer = NO_BYTES
        return ServeResult(result)

    def received(self) -> Iterator[memoryview]:
        """Yield the parts of the message that the last ``serve`` read but did not answer (``ServeResult.RECEIVED``)."""
        buffer, plan = (
            byte_view(self._served_buffer),
            self._served_buffer[fp.PLAN_OFFSET :].view(np.int64)[: fp.PLAN_WORDS].tolist(),
        )
        length, _ = HEAD.unpack(buffer[fp.HEAD_OFFSET : fp.HEAD_OFFSET + HEAD.size])
        yield buffer[fp.HEAD_OFFSET : fp.HEAD_OFFSET + HEAD.size + length]
        yield buffer[fp.ARRAYS_OFFSET :][: plan[fp.STEP_BYTES]]
        for array in range(fp.ARRAYS, fp.PLAN_WORDS, fp.ARRAY_WORDS):
            dtype, count, offset, _ = plan[array : array + fp.ARRAY_WORDS]
            yield buffer[offset:][: count * int(fp.ITEMS[dtype])]

    def plain_shard(self, request: Request) -> Shard | None:
        """Return the shard of a request if requests of its shape may be plain; otherwise None."""
        operation = request.operations[0]
        shard = self._find_shard((operation.matrix, operation.partition))
        return shard if may_be_plain(request, shard) else None

    def bind(self, request: Request, nbytes: int) -> int:
        """Return a handle for requests with the shape of this one; 0 if the loop cannot answer such requests now."""
        shard = self.plain_shard(request)
        if shard is None or not is_plain(request):
            return 0
        self._grow(2 * nbytes)  # narrowed integers are in the buffer twice: as received, and widened
        # Do not wait for the lock: Python tries again with the next request of this shape.
        if not shard.lock.acquire(blocking=False):
            return 0
        try:
            return self._table.bind(request, shard)
        finally:
            shard.lock.release()

    def _grow(self, size: int) -> None:
        """Enlarge the buffer for requests of ``size`` bytes, if the buffer is too small and memory allows."""
        if size < self.buffer.size >= FIRST_BYTES:
            return
        new_size = FIRST_BYTES if size < FIRST_BYTES else min(MAX_BYTES, FIRST_BYTES + (1 << size.bit_length()))
        if new_size > self.buffer.size:
            self._fast_paths.resize(self, new_size)
