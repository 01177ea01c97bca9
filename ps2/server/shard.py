"""A partition's arrays on one server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import repeat

import numpy as np

from ps2.errors import LimitError, NotColocatedError, NotFoundError, OutOfRangeError, UsageError
from ps2.matrix.partition import Int64Array, MatrixSpec, Partition
from ps2.ops.keyindex import KeyIndex
from ps2.ops.table import Array
from ps2.server.applied import AppliedIds
from ps2.server.lock import ShardLock
from ps2.server.memory import MemoryAccount
from ps2.server.reply_cache import CachedReply
from ps2.server.touchedrows import TouchedRows

# Columns that a sparse shard starts with.
MIN_CAPACITY = 64


class Shard:
    """Rows of one partition: ``array`` has shape (rows, width), each row one DCV's columns.

    It is C-contiguous in layout "row", and Fortran-contiguous in layout "column", where ``blocks`` is the other way to
    see it: shape (width, rows), C-contiguous.

    A sparse shard has one key index for all rows, so the rows stay co-located slot by slot; its array has room for
    more slots than are live. ``lock`` guards everything here: rows, key index, touched columns and applied ids.

    Attributes:
        filling: another server is sending what belongs here, or a copy has yet to be sent; until then it is of no use.
        session: names that sending: route version and number of the newest that has begun.
        arriving: what has come of its ids, as JSON in pieces.
        restored: answers that came with it from a checkpoint, until it is in its place.
        sealed: of a copy that was sent on: it takes nothing at this route version or an older one.
        rows_changed: the last change of which rows are in use: route version and number of the coordinator's call.
        layout: generation counter; it grows whenever rows are elsewhere, or others are in use, and what ``fast_path``
            knows of them holds as long as it is the same.
    """

    def __init__(self, spec: MatrixSpec, partition: Partition, memory: MemoryAccount, copy: bool = False) -> None:
        """Allocate the rows as zeros; raises LimitError before anything is taken.

        Args:
            copy: of a shard that another server holds; only that server may change it.
        """
        self.spec = spec
        self.partition = partition
        self.copy = copy
        self.filling = copy
        self.session = (-1, -1)
        self.arriving: list[Array] = []
        self.sealed = -1
        self.rows_changed = (-1, 0)
        self.lock = ShardLock()
        self.layout = np.array([0])
        self.applied = AppliedIds()
        self.restored: list[CachedReply] = []
        self.index = KeyIndex() if spec.kind == "sparse" else None
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
            raise UsageError("a matrix with layout 'row' has no blocks: make it with layout='column', or name rows")
        return self.array.T[: self.live]

    @property
    def nbytes(self) -> int:
        return self._counted + self.touched.nbytes

    @property
    def unused(self) -> frozenset[int]:
        """Rows that are out of use."""
        return frozenset(self._unused)

    def row(self, number: int) -> Array:
        """Return a writable view of the live columns of one row; in layout "column" they lie apart."""
        self.check_row(number)
        return self.array[number, : self.live]

    @contextmanager
    def lined_up(self, numbers: Iterable[int], written: bool) -> Iterator[list[Array]]:
        """Yield rows as kernels take them: C-contiguous. In layout "column" they are copies, which count as memory.

        Args:
            written: what is done to copies is done to the rows, unless it fails.
        """
        rows = [self.row(number) for number in numbers]
        if self.spec.layout == "row":
            yield rows
            return
        size = sum(row.nbytes for row in rows)
        self._memory.borrow(size, "rows of a matrix with layout 'column'")
        try:
            copies = [row.copy() for row in rows]
            yield copies
            for row, copy in zip(rows if written else (), copies, strict=False):
                row[:] = copy
        finally:
            self._memory.give_back(size)

    def uses(self, number: int) -> bool:
        """Tell whether a row is in use."""
        return not self._freed and number not in self._unused and 0 <= number < self.rows

    def check_row(self, number: int) -> None:
        """Raise unless a row is in use; of many, ``check_rows`` is quicker."""
        if not self.uses(number):
            self.check_rows(np.array([number]))

    def check_rows(self, numbers: Int64Array) -> None:
        """Raise unless every row is in use."""
        if self._freed:
            raise NotFoundError("the matrix was freed")
        if self._unused and (gone := self._unused.intersection(numbers.tolist())):
            raise NotFoundError(f"row {min(gone)} was freed")
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.rows):
            raise OutOfRangeError(f"a row of {numbers.min()}..{numbers.max()} is outside [0, {self.rows})")

    def slots(self, columns: Int64Array, create: bool) -> Int64Array:
        """Return the local column of each global column, or the slot of each key (-1 if absent).

        Args:
            columns: int64, any order, duplicates allowed.
            create: add absent keys to a sparse shard; raises LimitError if they do not fit.
        """
        if self.index is None:
            local = columns - self.partition.begin
            if local.size and (local.min() < 0 or local.max() >= self.partition.width):
                raise OutOfRangeError(
                    f"a column of {columns.min()}..{columns.max()} is outside this partition, "
                    f"[{self.partition.begin}, {self.partition.end})"
                )
            return local
        slots = self.index.lookup(columns)
        if not create or not len(absent := columns[slots < 0]):
            return slots
        if columns.size and (columns.min() < 0 or int(columns.max()) >= self.spec.dim):
            raise OutOfRangeError(f"a key of {columns.min()}..{columns.max()} is outside [0, {self.spec.dim})")
        self._make_room(self.index.missing(absent))
        before = self.index.cells
        slots = self.index.insert(columns)
        self.layout += self.index.cells is not before
        return slots

    def clear_free(self, numbers: Sequence[Int64Array]) -> None:
        """Make the columns that no key has 0 in some rows: an operation on whole rows leaves NaN of 0 * infinity.

        Args:
            numbers: of the rows that the operation names; empty: it names none, and works on all.
        """
        if self.live < self.array.shape[1]:
            rows = np.unique(np.concatenate(numbers)) if numbers else slice(None)
            self.array[rows, self.live :] = 0

    def grow_rows(self, rows: int) -> None:
        """Add rows of zeros until there are ``rows``."""
        self.check_rows(np.empty(0, np.int64))
        if rows > self.rows and self.spec.layout == "column":
            raise UsageError(f"a matrix with layout 'column' keeps its {self.rows} rows, got a call for {rows}")
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
        # All of them: a row that was retired while this server could not be reached is still in use here.
        self._unused.difference_update(numbers)
        self.layout += 1
        self.check_rows(np.array(numbers, dtype=np.int64))
        self.array[numbers] = 0

    def reset(self, rows: int) -> None:
        """Begin anew, with so many rows of zeros and without keys and ids; raises LimitError if they do not fit."""
        self.check_rows(np.empty(0, np.int64))
        self.layout += 1
        self.touched.forget_all()
        self.applied.end_all()
        self._unused.clear()
        columns = int(self.array.shape[1])
        if self.index is not None:
            self.index, columns = KeyIndex(), MIN_CAPACITY
        # Freed first, so that there is never memory taken for both.
        self.array = self._zeros(0, columns)
        self.touched.resize(columns)
        with self._counting(self._bytes(rows, columns), f"{rows} rows of {columns:,} columns"):
            self.array = self._zeros(rows, columns)

    def free(self) -> None:
        """Give the memory back."""
        self._freed = True
        self.layout += 1
        self.touched.drop_all()
        self.array = self._zeros(0, 0)
        self._memory.give(self._counted)
        self._counted = 0

    def _make_room(self, added: int) -> None:
        """Make place for ``added`` more keys, doubling what is there."""
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

    def _zeros(self, rows: int, columns: int) -> Array:
        # The system hands out zero pages only when they are touched: reserved rows cost nothing until then.
        return np.zeros((rows, columns), self.spec.np_dtype, order="C" if self.spec.layout == "row" else "F")

    def _bytes(self, rows: int, columns: int, index_bytes: int | None = None) -> int:
        index = 0 if self.index is None else (self.index.nbytes if index_bytes is None else index_bytes)
        return rows * columns * self.spec.np_dtype.itemsize + index

    @contextmanager
    def _counting(self, total: int, purpose: str) -> Iterator[None]:
        """Count ``total`` bytes as this shard's, unless taking them fails."""
        added = total - self._counted
        self._memory.take(added, purpose)
        try:
            yield
        except MemoryError as error:
            self._memory.give(added)
            raise LimitError(f"{purpose} takes {added:,} bytes more, and the system has not got them") from error
        self._counted = total


def check_meet(shards: Sequence[Shard]) -> None:
    """Raise unless an operation can be on all of these shards at once, whose locks are held."""
    first = shards[0]
    for other in shards[1:]:
        other.check_rows(np.empty(0, np.int64))
        if other is first:
            continue
        # Equal keys are at different slots of two sparse shards.
        if "sparse" in (first.spec.kind, other.spec.kind) or first.partition != other.partition:
            cuts = " and ".join(f"{shard.partition} of a {shard.spec.kind} matrix" for shard in (first, other))
            raise NotColocatedError(f"one operation on {cuts}: expected dense ones that are cut alike")


def with_shards(shards: Sequence[Shard], numbers: Sequence[int]) -> Iterator[tuple[Shard, int]]:
    """Return rows beside their shards: all of one, or each of its own."""
    return zip(repeat(shards[0]) if len(shards) == 1 else shards, numbers, strict=len(shards) != 1)


def lined_up(shards: Sequence[Shard], numbers: Sequence[int], written: bool) -> AbstractContextManager[list[Array]]:
    """Yield rows as ``Shard.lined_up`` does: all of one shard, or each of its own."""
    return shards[0].lined_up(numbers, written) if len(shards) == 1 else _lined_up(shards, numbers, written)


@contextmanager
def _lined_up(shards: Sequence[Shard], numbers: Sequence[int], written: bool) -> Iterator[list[Array]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(shard.lined_up([number], written))[0]
            for shard, number in zip(shards, numbers, strict=True)
        ]
