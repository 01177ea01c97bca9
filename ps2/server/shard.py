"""A partition's arrays on one server, and its lock, which Python threads and compiled loops take."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import repeat
from types import TracebackType

import numpy as np

from ps2.array_types import Int64s
from ps2.errors import LimitError, NotColocatedError, NotFoundError, OutOfRangeError, UsageError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.ops.keyindex import KeyIndex
from ps2.ops.managed_index import ManagedIndex
from ps2.ops.table import Array
from ps2.server.applied import AppliedIds
from ps2.server.managed_keys import ManagedKeys
from ps2.server.memory import MemoryAccount
from ps2.server.reply_cache import CachedReply
from ps2.server.touchedrows import TouchedRows

# In the C libraries of Linux a pthread_mutex_t takes 40 or 48 bytes, and all zeros are an unlocked mutex.
MUTEX_WORDS = 8
HAS_MUTEX = sys.platform == "linux"

if HAS_MUTEX:
    # Trylock and unlock do not block, so these calls keep the GIL (PyDLL). Only waiting releases the GIL (CDLL).
    _try_mutex = ctypes.PyDLL(None).pthread_mutex_trylock
    _wait_for_mutex = ctypes.CDLL(None).pthread_mutex_lock
    _free_mutex = ctypes.PyDLL(None).pthread_mutex_unlock
    for _function in (_try_mutex, _wait_for_mutex, _free_mutex):
        _function.argtypes = [ctypes.c_void_p]


class ShardLock:
    """A reentrant lock with the methods of ``threading.RLock``.

    A Python thread first takes a ``threading.RLock``, possibly after a long wait, and then the mutex. Only compiled
    loops compete with it for the mutex, and each holds the mutex for a few microseconds.

    Attributes:
        address: address of the mutex.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._mutex = np.array([0] * MUTEX_WORDS, np.int64)
        self.address = int(self._mutex.ctypes.data)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._lock.acquire(blocking, timeout):
            return False
        self._depth += 1
        if HAS_MUTEX and self._depth == 1 and _try_mutex(self.address):
            _wait_for_mutex(self.address)
        return True

    def release(self) -> None:
        if HAS_MUTEX and self._depth == 1:
            _free_mutex(self.address)
        self._depth -= 1
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


# Initial columns of a sparse shard.
MIN_CAPACITY = 64


class Shard:
    """The arrays of one partition: ``array`` has shape (rows, width), and each row holds one DCV's columns.

    With layout "row", ``array`` is C-contiguous. With layout "column" it is Fortran-contiguous, and ``blocks`` is its
    transposed view of shape (width, rows), C-contiguous.

    A sparse shard has one key index for all rows, so the rows stay co-located slot by slot. Its array has more
    slots than are live. ``lock`` guards everything here: rows, key index, touched columns and applied ids.

    Attributes:
        incomplete: True while the shard must not be used, because another server has not sent all of its content yet.
        newest_transfer: (route version, number) of the newest transfer of the shard's content that has begun.
        arriving, arriving_keys: the pieces that the current transfer has received of the applied ids' JSON, and of the
            state of managed keys.
        restored: replies read from a checkpoint, until the shard is put in place.
        refused_version: a copy that was sent to a replacement server refuses changes at this or an older route version;
            -1 otherwise.
        rows_changed: (route version, number) of the coordinator's last call that changed which rows are in use.
        layout: generation counter, int64 of shape (1,). It grows when rows move or the set of rows in use changes. A
            fast path's cached addresses of rows are valid for one generation.
        managed: the managed keys; None if the matrix has no ``KeyPolicy``.
    """

    managed: ManagedKeys | None = None

    def __init__(self, spec: MatrixSpec, partition: Partition, memory: MemoryAccount, copy: bool = False) -> None:
        """Allocate the rows as zeros; ``copy``: as a copy of another server's shard.

        Raise LimitError before any allocation.
        """
        self.spec = spec
        self.partition = partition
        self.copy = copy
        self.incomplete = copy
        self.newest_transfer = (-1, -1)
        self.arriving: list[Array] = []
        self.arriving_keys: list[Array] = []
        self.refused_version = -1
        self.rows_changed = (-1, 0)
        self.lock = ShardLock()
        self.layout = np.array([0])
        self.applied = AppliedIds()
        self.restored: list[CachedReply] = []
        self._new_index()
        self._memory = memory
        self._unused: set[int] = set()
        self._freed = False
        columns = MIN_CAPACITY if self.index is not None else partition.width
        self.touched = TouchedRows(memory, columns, self.layout)
        self._counted = 0
        with self._counting(self._bytes(spec.rows, columns), f"{spec.rows} rows of {columns:,} columns"):
            self.array = self._zeros(spec.rows, columns)

    @property
    def rows(self) -> int:
        return int(self.array.shape[0])

    @property
    def live(self) -> int:
        """Columns in use: all of a dense shard, the active keys of a sparse one."""
        return int(self.array.shape[1]) if self.index is None else len(self.index)

    @property
    def blocks(self) -> Array:
        """The blocks of the live columns: a writable view; raises UsageError in layout "row"."""
        if self.spec.layout != "column":
            raise UsageError("a matrix with layout 'row' has no blocks: create it with layout='column', or name rows")
        return self.array.T[: self.live]

    @property
    def nbytes(self) -> int:
        return self._counted + self.touched.nbytes

    @property
    def unused(self) -> frozenset[int]:
        """Row numbers that are not in use."""
        return frozenset(self._unused)

    def row(self, number: int) -> Array:
        """Return a writable view of the live columns of one row; it is strided in layout "column"."""
        self.check_row(number)
        return self.array[number, : self.live]

    @contextmanager
    def contiguous_rows(self, numbers: Iterable[int], written: bool) -> Iterator[list[Array]]:
        """Yield C-contiguous rows for kernels. In layout "column" they are copies, counted as transient memory.

        ``written``: write copies back to the rows, unless the with-block fails.
        """
        rows = [self.row(number) for number in numbers]
        if self.spec.layout == "row":
            yield rows
            return
        size = sum(row.nbytes for row in rows)
        self._memory.take_transient(size, "rows of a matrix with layout 'column'")
        try:
            copies = [row.copy() for row in rows]
            yield copies
            for row, copy in zip(rows if written else (), copies, strict=False):
                row[:] = copy
        finally:
            self._memory.give_transient(size)

    def uses(self, number: int) -> bool:
        """Return True if a row is in use."""
        return not self._freed and number not in self._unused and 0 <= number < self.rows

    def check_row(self, number: int) -> None:
        """Raise unless a row is in use; for many rows ``check_rows`` is faster."""
        if not self.uses(number):
            self.check_rows(np.array([number]))

    def check_rows(self, numbers: Int64s) -> None:
        """Raise unless every row is in use."""
        if self._freed:
            raise NotFoundError("the matrix was freed")
        if self._unused and (freed := self._unused.intersection(numbers.tolist())):
            raise NotFoundError(f"row {min(freed)} was freed")
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.rows):
            raise OutOfRangeError(f"row {outside(numbers, 0)} is outside [0, {self.rows})")

    def slots(self, columns: Int64s, create: bool) -> Int64s:
        """Return the local column of each global column, or the slot of each key (-1 if absent).

        ``create`` adds absent keys to a sparse shard; raises LimitError if they do not fit.
        """
        if self.index is None:
            local = columns - self.partition.begin
            if local.size and (local.min() < 0 or local.max() >= self.partition.width):
                raise OutOfRangeError(
                    f"column {outside(columns, self.partition.begin)} is outside this partition, "
                    f"[{self.partition.begin}, {self.partition.end})"
                )
            return local
        assert isinstance(self.index, KeyIndex)
        slots = self.index.lookup(columns)
        if not create or not len(absent := columns[slots < 0]):
            return slots
        if columns.size and (columns.min() < 0 or int(columns.max()) >= self.spec.dim):
            raise OutOfRangeError(f"key {outside(columns, 0)} is outside [0, {self.spec.dim})")
        self._ensure_capacity(self.index.count_absent(absent))
        old_cells = self.index.cells
        slots = self.index.insert(columns)
        self.layout += self.index.cells is not old_cells
        return slots

    def assign_slots(self, keys: Int64s) -> None:
        """Give distinct keys their slots, in the order of ``keys``. A file or a server sends their values later."""
        self.slots(keys, create=True)

    def clear_free(self, numbers: Sequence[Int64s]) -> None:
        """Zero the keyless columns of these rows, or of all rows if the list is empty.

        An operation on whole rows may leave NaN there (0 * infinity).
        """
        if self.live < self.array.shape[1]:
            rows = np.unique(np.concatenate(numbers)) if numbers else slice(None)
            self.array[rows, self.live :] = 0

    def grow_rows(self, rows: int) -> None:
        """Add rows of zeros until there are ``rows``."""
        self.check_rows(np.empty(0, np.int64))
        if rows > self.rows and self.spec.layout == "column":
            raise UsageError(f"a matrix with layout 'column' cannot grow beyond its {self.rows} rows, got {rows}")
        if rows > self.rows:
            self._resize(rows, int(self.array.shape[1]))

    def retire_rows(self, numbers: list[int]) -> None:
        """Take rows out of use."""
        self.check_rows(np.array(numbers, dtype=np.int64))
        self._unused.update(numbers)
        self.layout += 1
        self.touched.forget(numbers)

    def reuse_rows(self, numbers: list[int]) -> None:
        """Put retired rows in use again, as zeros."""
        self._unused.difference_update(numbers)
        self.layout += 1
        self.check_rows(np.array(numbers, dtype=np.int64))
        # Also zero rows that are still in use here: they were retired while this server was unreachable.
        self.array[numbers] = 0

    def reset(self, rows: int) -> None:
        """Clear the shard to ``rows`` rows of zeros, without keys and ids; raises LimitError if they do not fit."""
        self.check_rows(np.empty(0, np.int64))
        self.layout += 1
        self.touched.forget_all()
        self.applied.end_all()
        self._unused.clear()
        columns = int(self.array.shape[1])
        if self.index is not None:
            self._new_index()
            columns = MIN_CAPACITY
        # The old array is freed first, so that both never exist at the same time.
        self.array = self._zeros(0, columns)
        self.touched.resize(columns)
        with self._counting(self._bytes(rows, columns), f"{rows} rows of {columns:,} columns"):
            self.array = self._zeros(rows, columns)

    def free(self) -> None:
        """Release the memory."""
        self._freed = True
        self.layout += 1
        self.touched.drop_all()
        self.array = self._zeros(0, 0)
        self._memory.give(self._counted)
        self._counted = 0

    def _ensure_capacity(self, added: int) -> None:
        """Double the columns until ``added`` more keys fit."""
        assert self.index is not None
        needed, columns = len(self.index) + added, int(self.array.shape[1])
        if needed <= columns and self.index.nbytes_after(added) == self.index.nbytes:
            return
        while columns < needed:
            columns *= 2
        self._resize(self.rows, columns, self.index.nbytes_after(added))

    def _resize(self, rows: int, columns: int, index_bytes: int | None = None) -> None:
        purpose = f"growing to {rows} rows of {columns:,} columns"
        with self._counting(self._bytes(rows, columns, index_bytes), purpose):
            if (rows, columns) == self.array.shape:
                return
            grown = self._zeros(rows, columns)
            grown[: self.rows, : self.live] = self.array[:, : self.live]
            if columns != self.array.shape[1]:
                self.touched.resize(columns)
            self.layout += 1
            self.array = grown

    def _new_index(self) -> None:
        """Begin without keys."""
        self.index: KeyIndex | ManagedIndex | None = KeyIndex() if self.spec.kind == "sparse" else None

    def _zeros(self, rows: int, columns: int) -> Array:
        # The system allocates zero pages on first access, so untouched rows take no physical memory.
        return np.zeros((rows, columns), self.spec.np_dtype, order="C" if self.spec.layout == "row" else "F")

    def _bytes(self, rows: int, columns: int, index_bytes: int | None = None) -> int:
        index = 0 if self.index is None else (self.index.nbytes if index_bytes is None else index_bytes)
        return rows * columns * self.spec.np_dtype.itemsize + index

    @contextmanager
    def _counting(self, total: int, purpose: str) -> Iterator[None]:
        """Count ``total`` bytes as this shard's permanent memory, unless the allocation in the with-block fails."""
        added = total - self._counted
        self._memory.take(added, purpose)
        try:
            yield
        except MemoryError as error:
            self._memory.give(added)
            raise LimitError(f"{purpose} takes {added:,} more bytes, which the system does not have") from error
        self._counted = total


def outside(numbers: Int64s, begin: int) -> int:
    """Return the smallest number if it is below ``begin``, else the largest; for messages about an interval."""
    low, high = int(numbers.min()), int(numbers.max())
    return low if low < begin else high


def check_colocated(shards: Sequence[Shard]) -> None:
    """Raise unless one operation can work on all of these shards; the caller holds their locks."""
    first = shards[0]
    for other in shards[1:]:
        other.check_rows(np.empty(0, np.int64))
        if other is first:
            continue
        # Two sparse shards assign different slots to the same key.
        if "sparse" in (first.spec.kind, other.spec.kind) or first.partition != other.partition:
            descriptions = " and ".join(f"{shard.partition} of a {shard.spec.kind} matrix" for shard in (first, other))
            raise NotColocatedError(f"one operation on {descriptions}: expected dense matrices with equal partitions")


def with_shards(shards: Sequence[Shard], numbers: Sequence[int]) -> Iterator[tuple[Shard, int]]:
    """Yield each row number with its shard; ``shards`` has one shard for all rows, or one per row."""
    return zip(repeat(shards[0]) if len(shards) == 1 else shards, numbers, strict=len(shards) != 1)


def contiguous_rows(
    shards: Sequence[Shard], numbers: Sequence[int], written: bool
) -> AbstractContextManager[list[Array]]:
    """Yield rows like ``Shard.contiguous_rows``; ``shards`` has one shard for all rows, or one per row."""
    return (
        shards[0].contiguous_rows(numbers, written) if len(shards) == 1 else _contiguous_rows(shards, numbers, written)
    )


@contextmanager
def _contiguous_rows(shards: Sequence[Shard], numbers: Sequence[int], written: bool) -> Iterator[list[Array]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(shard.contiguous_rows([number], written))[0]
            for shard, number in zip(shards, numbers, strict=True)
        ]
