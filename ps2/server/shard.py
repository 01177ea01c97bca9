"""A partition's arrays on one server, and the lock that Python threads and compiled loops acquire."""

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

# In the C libraries of Linux a pthread_mutex_t has 40 or 48 bytes, and an unlocked mutex is all zeros.
MUTEX_WORDS = 8
HAS_MUTEX = sys.platform == "linux"

if HAS_MUTEX:
    # Trylock and unlock do not block, so they keep the GIL (PyDLL). Only the call that waits releases the GIL (CDLL).
    _try_mutex = ctypes.PyDLL(None).pthread_mutex_trylock
    _wait_for_mutex = ctypes.CDLL(None).pthread_mutex_lock
    _free_mutex = ctypes.PyDLL(None).pthread_mutex_unlock
    for _function in (_try_mutex, _wait_for_mutex, _free_mutex):
        _function.argtypes = [ctypes.c_void_p]


class ShardLock:
    """A reentrant lock with the methods of ``threading.RLock``.

    A Python thread first acquires a ``threading.RLock``, possibly after a long wait, and then the mutex at ``address``.
    Only compiled loops compete with this thread for the mutex, and each holds it for a few microseconds.
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


# Initial number of columns of a sparse shard.
MIN_CAPACITY = 64


class Shard:
    """The arrays of one partition. ``lock`` guards all attributes.

    A sparse shard has one key index for all rows, so a key has the same slot in each row. Its array has more slots than
    keys.

    Attributes:
        array: the values of shape (rows, columns), one row for each DCV. C-contiguous with layout "row",
            Fortran-contiguous with layout "column".
        copy: True if this is a copy of another server's shard.
        incomplete: True while another server has not sent all of the content; then the shard must not be used.
        newest_transfer: (route version, number) of the newest transfer of content to this shard.
        received_state, received_key_state: the received parts of the current transfer: of the JSON data with the
            applied ids, and of the state of managed keys.
        restored_replies: cached replies from a checkpoint, until the shard is activated.
        refused_version: a copy that was sent to a replacement server refuses changes at this or an older route version;
            -1: the copy was not sent.
        rows_changed: (route version, number) of the coordinator's last call that changed which rows are in use.
        layout: a counter, int64 of shape (1,), which increases when rows move in memory or are freed or reused. The
            addresses of rows that a fast path has stored are valid for one value of the counter.
        managed: the managed keys; None if the matrix has no ``KeyPolicy``.
    """

    managed: ManagedKeys | None = None

    def __init__(self, spec: MatrixSpec, partition: Partition, memory: MemoryAccount, copy: bool = False) -> None:
        """Allocate rows of zeros. Raises LimitError before any allocation."""
        self.spec = spec
        self.partition = partition
        self.copy = copy
        self.incomplete = copy
        self.newest_transfer = (-1, -1)
        self.received_state: list[Array] = []
        self.received_key_state: list[Array] = []
        self.refused_version = -1
        self.rows_changed = (-1, 0)
        self.lock = ShardLock()
        self.layout = np.array([0])
        self.applied = AppliedIds()
        self.restored_replies: list[CachedReply] = []
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
        """The number of columns in use: all columns of a dense shard, or the keys of a sparse shard."""
        return int(self.array.shape[1]) if self.index is None else len(self.index)

    @property
    def blocks(self) -> Array:
        """The blocks of the columns in use: a writable view of shape (columns, rows); UsageError in layout "row"."""
        if self.spec.layout != "column":
            raise UsageError("a matrix with layout 'row' has no blocks: create it with layout='column', or name rows")
        return self.array.T[: self.live]

    @property
    def nbytes(self) -> int:
        return self._counted + self.touched.nbytes

    @property
    def unused(self) -> frozenset[int]:
        """The ids of rows that are not in use."""
        return frozenset(self._unused)

    def row(self, row_id: int) -> Array:
        """Return a writable view of the columns in use of one row; the view is strided in layout "column"."""
        self.check_row(row_id)
        return self.array[row_id, : self.live]

    @contextmanager
    def contiguous_rows(self, row_ids: Iterable[int], write_back: bool) -> Iterator[list[Array]]:
        """Yield C-contiguous rows for kernels. In layout "column" these are copies, counted as transient memory.

        ``write_back``: at the end of the with-block, copy the copies to the rows, unless the block has failed.
        """
        rows = [self.row(row_id) for row_id in row_ids]
        if self.spec.layout == "row":
            yield rows
            return
        size = sum(row.nbytes for row in rows)
        self._memory.take_transient(size, "rows of a matrix with layout 'column'")
        try:
            copies = [row.copy() for row in rows]
            yield copies
            for row, copy in zip(rows if write_back else (), copies, strict=False):
                row[:] = copy
        finally:
            self._memory.give_transient(size)

    def uses(self, row_id: int) -> bool:
        """Return True if a row is in use."""
        return not self._freed and row_id not in self._unused and 0 <= row_id < self.rows

    def check_row(self, row_id: int) -> None:
        """Raise NotFoundError or OutOfRangeError unless a row is in use; for many rows ``check_rows`` is faster."""
        if not self.uses(row_id):
            self.check_rows(np.array([row_id]))

    def check_rows(self, row_ids: Int64s) -> None:
        """Raise NotFoundError or OutOfRangeError unless every row is in use."""
        if self._freed:
            raise NotFoundError("the matrix was freed")
        if self._unused and (freed := self._unused.intersection(row_ids.tolist())):
            raise NotFoundError(f"row {min(freed)} was freed")
        if row_ids.size and (row_ids.min() < 0 or row_ids.max() >= self.rows):
            raise OutOfRangeError(f"row {outlier(row_ids, 0)} is outside [0, {self.rows})")

    def slots(self, columns: Int64s, create: bool) -> Int64s:
        """Return the local column of each global column (dense), or the slot of each key, -1 if absent (sparse).

        ``create``: add absent keys to a sparse shard; raises LimitError if they do not fit into memory.
        """
        if self.index is None:
            local_columns = columns - self.partition.begin
            if local_columns.size and (local_columns.min() < 0 or local_columns.max() >= self.partition.width):
                raise OutOfRangeError(
                    f"column {outlier(columns, self.partition.begin)} is outside this partition, "
                    f"[{self.partition.begin}, {self.partition.end})"
                )
            return local_columns
        assert isinstance(self.index, KeyIndex)
        slots = self.index.lookup(columns)
        if not create or not len(absent := columns[slots < 0]):
            return slots
        if columns.size and (columns.min() < 0 or int(columns.max()) >= self.spec.dim):
            raise OutOfRangeError(f"key {outlier(columns, 0)} is outside [0, {self.spec.dim})")
        self._ensure_capacity(self.index.count_absent(absent))
        old_cells = self.index.cells
        slots = self.index.insert(columns)
        self.layout += self.index.cells is not old_cells
        return slots

    def assign_slots(self, keys: Int64s) -> None:
        """Assign slots to distinct keys, in the order of ``keys``; their values come later."""
        self.slots(keys, create=True)

    def clear_free(self, row_ids: Sequence[Int64s]) -> None:
        """Set slots without keys to 0 in these rows, or in all rows if the list is empty.

        An operation on whole rows may have written NaN (0 * infinity) to them.
        """
        if self.live < self.array.shape[1]:
            rows = np.unique(np.concatenate(row_ids)) if row_ids else slice(None)
            self.array[rows, self.live :] = 0

    def grow_rows(self, rows: int) -> None:
        """Add rows of zeros until there are ``rows`` rows."""
        self.check_rows(np.empty(0, np.int64))
        if rows > self.rows and self.spec.layout == "column":
            raise UsageError(f"a matrix with layout 'column' cannot grow beyond its {self.rows} rows, got {rows}")
        if rows > self.rows:
            self._resize(rows, int(self.array.shape[1]))

    def retire_rows(self, row_ids: list[int]) -> None:
        """Take rows out of use."""
        self.check_rows(np.array(row_ids, dtype=np.int64))
        self._unused.update(row_ids)
        self.layout += 1
        self.touched.forget(row_ids)

    def reuse_rows(self, row_ids: list[int]) -> None:
        """Put retired rows in use again, as zeros."""
        self._unused.difference_update(row_ids)
        self.layout += 1
        self.check_rows(np.array(row_ids, dtype=np.int64))
        # This also clears rows that are still in use here, because this server did not get the call that retired them.
        self.array[row_ids] = 0

    def reset(self, rows: int) -> None:
        """Replace the content by ``rows`` rows of zeros, without keys and ids; raises LimitError if they do not fit."""
        self.check_rows(np.empty(0, np.int64))
        self.layout += 1
        self.touched.forget_all()
        self.applied.end_all()
        self._unused.clear()
        columns = int(self.array.shape[1])
        if self.index is not None:
            self._new_index()
            columns = MIN_CAPACITY
        # Free the old array first, so that both arrays never exist at the same time.
        self.array = self._zeros(0, columns)
        self.touched.resize(columns)
        with self._counting(self._bytes(rows, columns), f"{rows} rows of {columns:,} columns"):
            self.array = self._zeros(rows, columns)

    def free(self) -> None:
        self._freed = True
        self.layout += 1
        self.touched.drop_all()
        self.array = self._zeros(0, 0)
        self._memory.give(self._counted)
        self._counted = 0

    def _ensure_capacity(self, added: int) -> None:
        """Double the number of columns until ``added`` more keys fit."""
        assert self.index is not None
        count, columns = len(self.index) + added, int(self.array.shape[1])
        if count <= columns and self.index.nbytes_after(added) == self.index.nbytes:
            return
        while columns < count:
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
        # The system allocates pages on first access, so rows that were never written take no physical memory.
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
            raise LimitError(f"{purpose} takes {added:,} more bytes, but the system has no more memory") from error
        self._counted = total


def outlier(values: Int64s, begin: int) -> int:
    """Return the smallest value if it is below ``begin``, otherwise the largest, for an error about a range."""
    low, high = int(values.min()), int(values.max())
    return low if low < begin else high


def check_colocated(shards: Sequence[Shard]) -> None:
    """Raise unless one operation can use all of these shards. The caller must hold their locks."""
    first = shards[0]
    for other in shards[1:]:
        other.check_rows(np.empty(0, np.int64))
        if other is first:
            continue
        # Two sparse shards assign different slots to the same key.
        if "sparse" in (first.spec.kind, other.spec.kind) or first.partition != other.partition:
            descriptions = " and ".join(f"{shard.partition} of a {shard.spec.kind} matrix" for shard in (first, other))
            raise NotColocatedError(f"one operation on {descriptions}: expected dense matrices with equal partitions")


def with_shards(shards: Sequence[Shard], row_ids: Sequence[int]) -> Iterator[tuple[Shard, int]]:
    """Yield each row id with its shard; ``shards`` has one shard for all rows, or one shard for each row."""
    return zip(repeat(shards[0]) if len(shards) == 1 else shards, row_ids, strict=len(shards) != 1)


def contiguous_rows(
    shards: Sequence[Shard], row_ids: Sequence[int], write_back: bool
) -> AbstractContextManager[list[Array]]:
    """Yield rows like ``Shard.contiguous_rows``; ``shards`` has one shard for all rows, or one shard for each row."""
    if len(shards) == 1:
        return shards[0].contiguous_rows(row_ids, write_back)
    return _contiguous_rows(shards, row_ids, write_back)


@contextmanager
def _contiguous_rows(shards: Sequence[Shard], row_ids: Sequence[int], write_back: bool) -> Iterator[list[Array]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(shard.contiguous_rows([row_id], write_back))[0]
            for shard, row_id in zip(shards, row_ids, strict=True)
        ]
