"""Loads the compiled loop of fast paths from numba's cache, or compiles it, and tests it.

``python -m ps2.server.fast_path_compiled`` compiles the loop ahead of time. Otherwise the first server starts a process
that does so.
"""

from __future__ import annotations

import importlib
import logging
import socket
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import numpy as np

from ps2.matrix.partition import MatrixSpec, Partition
from ps2.ops import blocks, kernels, keyindex, packing, warm
from ps2.ops.table import Array
from ps2.ops.warm import compiling_alone
from ps2.protocol import arrays, binary, framing, messages
from ps2.protocol.framing import message_views
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.server import applied, fence, metrics
from ps2.server import fast_path_line as fp
from ps2.server.fast_path_table import HandleTable
from ps2.server.memory import MemoryAccount
from ps2.server.shard import HAS_MUTEX, Shard
from ps2.transport.sockets import send_all

log = logging.getLogger(__name__)

LOOP = "ps2.server.fast_path_loop"
LOCK = "ps2-fast-path.lock"
# The other modules of this package that contain functions or constants of the loop.
PART_MODULES = ("fast_path_arrays", "fast_path_line", "fast_path_request", "libc")
# Initial size of a connection's buffer.
FIRST_BYTES = 1 << 16


def load() -> ModuleType | None:
    """Load or compile the loop; return None if it cannot run here. One process compiles while other processes wait."""
    if not HAS_MUTEX or sys.byteorder != "little":
        return None
    loop = importlib.import_module(LOOP)
    folder = loop.serve.stats.cache_path
    with compiling_alone(Path(folder), LOCK, _sources()) if folder else nullcontext(False) as must_compile:
        if must_compile:
            # Numba's cache checks only the file of each function, but these functions inline functions of other files.
            for stem in (LOOP.rpartition(".")[2], *PART_MODULES):
                for file in Path(folder).glob(f"{stem}.*.nb[ic]"):
                    file.unlink(missing_ok=True)
        empty = np.zeros(1, np.int64)
        loop.serve(-1, 0, empty, 0, empty, HandleTable().lines, new_buffer(fp.ARRAYS_OFFSET), empty)
    return loop


def is_compiled() -> bool:
    """Return True if the loop can run here and is in numba's cache."""
    if not HAS_MUTEX or sys.byteorder != "little":
        return False
    folder = importlib.import_module(LOOP).serve.stats.cache_path
    return bool(folder) and warm.is_compiled(Path(folder), LOCK, _sources())


def is_missing() -> bool:
    """Return True if the loop can run here, and is not in numba's cache, which exists."""
    can_run = HAS_MUTEX and sys.byteorder == "little"
    return can_run and bool(importlib.import_module(LOOP).serve.stats.cache_path) and not is_compiled()


def works(loop: ModuleType) -> bool:
    """Return True if the loop answers an addition and a pull correctly with this C library and processor."""
    shard = Shard(MatrixSpec(3, 1), Partition(0, 0, 3), MemoryAccount(1 << 24))
    add = Operation("push_add", 1, 0, (0,), {"start": 0}, (np.array([1, 2, 3], np.float32),))
    requests = Request((add,), RequestId("s", 0)), Request((Operation("pull", 1, 0, (0,)),))
    table, fence_words = HandleTable(), fence.Fence().words
    server_end, client_end = socket.socketpair()
    with server_end, client_end:
        handles = {
            shape: table.bind(request, shard) for request in requests if (shape := binary.request_shape(request))
        }
        for request in requests:
            send_all(client_end, message_views(binary.request_parts(request, handles)))
        client_end.shutdown(socket.SHUT_WR)
        generation, counts = np.zeros(1, np.int64), metrics.Meter().fast_path
        result = loop.serve(
            server_end.fileno(), 100, generation, 0, fence_words, table.lines, new_buffer(FIRST_BYTES), counts
        )
        server_end.shutdown(socket.SHUT_WR)
        replies = client_end.recv(1 << 16)
    row = shard.array[0].tobytes()
    is_correct = result == loop.OTHER and row == add.arrays[0].tobytes() and replies.endswith(row)
    if not is_correct:
        log.warning("fast paths do not work on this system: Python answers all requests")
    return is_correct


def new_buffer(size: int) -> Array:
    """Return a uint8 array of ``size`` bytes, aligned to 8."""
    return np.zeros(size // 8, np.int64).view(np.uint8)


def _sources() -> list[Path]:
    """Return the source files of the loop."""
    modules = (applied, arrays, binary, blocks, fence, framing, kernels, keyindex, messages, metrics, packing)
    files = [Path(__file__).with_name(f"{name}.py") for name in ("fast_path_compiled", "fast_path_loop", *PART_MODULES)]
    return [*files, *(Path(module.__file__ or "") for module in modules)]


if __name__ == "__main__":
    load()
