"""The vectors of users and items on the servers, in several copies. A matrix has a column for each user or item."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.factors.ccd_descent import gram_matrix, num_coordinates
from ps2.algorithms.factors.plan import FactorizationPlan
from ps2.algorithms.frame.memory import fitting_servers
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.array_types import Float32s, Float64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix

# The bytes of vectors that the driver pushes or pulls at a time.
SLICE_BYTES = 64 << 20
# The kinds of Gram matrices: of the users' vectors (USERS), of the items' vectors before even iterations (ITEMS), and
# of the items' vectors before odd iterations (ITEMS + 1). KINDS is the number of kinds.
USERS, ITEMS, KINDS = 0, 1, 3
# The index of the copy with the best vectors of "ccd".
BEST = 2


def push_vectors(matrix: DCVMatrix, positions: Any, make_vectors: Callable[[slice], Float32s]) -> None:
    """Push vectors to the columns ``positions``; ``make_vectors`` returns the vectors of a slice of them."""
    for slice_ in _slices(matrix, len(positions)):
        matrix.push(columns=positions[slice_].astype(np.int64), values=make_vectors(slice_), wait=False)
    matrix.flush()


def pull_vectors(matrix: DCVMatrix, positions: Any) -> Float32s:
    """Pull the columns ``positions``; the result has shape (positions, rows of the matrix)."""
    vectors = np.empty((len(positions), matrix.rows), np.float32)
    for slice_ in _slices(matrix, len(positions)):
        vectors[slice_] = matrix.pull(columns=positions[slice_].astype(np.int64))
    return vectors


def copy_vectors(source: DCVMatrix, target: DCVMatrix, begin: int, end: int) -> None:
    """Copy the columns in [begin, end) within the servers."""
    target.apply("factors.copy_blocks", source=source, begin=begin, end=end)


def _slices(matrix: DCVMatrix, count: int) -> Iterator[slice]:
    length = max(1, SLICE_BYTES // (4 * matrix.rows))
    for begin in range(0, count, length):
        yield slice(begin, min(begin + length, count))


def _allocate(column_counts: list[int], width: int, subject: str, names: CheckpointNames) -> list[DCVMatrix]:
    """Allocate a float32 matrix of ``width`` rows for each number of columns, or find that of an earlier driver.

    Raise LimitError, whose message begins with ``subject``, if the matrices do not fit into the servers' memory.
    """
    matrices: list[DCVMatrix] = []

    def allocate(count: int) -> DCVMatrix:
        return names.vector(lambda name: DCV.dense(count, width, "float32", layout="column", name=name)).matrix()

    with fitting_servers(subject, matrices):
        for count in column_counts:
            matrices.append(allocate(count))
    return matrices


@dataclass(frozen=True, eq=False)
class SharedFactors:
    """The vectors of a training by "sgd"; picklable. The users' vectors in training are in the workers."""

    items: DCVMatrix
    saved_users: tuple[DCVMatrix, ...]
    saved_items: tuple[DCVMatrix, ...]

    @staticmethod
    def make(users: int, items: int, width: int, copies: int, names: CheckpointNames) -> SharedFactors:
        """Allocate the vectors, or find those of an earlier driver; raise LimitError if they do not fit into memory."""
        num_bytes = 4 * width * (items + copies * (users + items))
        subject = (
            f"vectors of {users:,} users and {items:,} items, {width} float32s each, take {num_bytes:,} bytes with "
            "their saved copies, and they"
        )
        matrices = _allocate([items, *([users, items] * copies)], width, subject, names)
        return SharedFactors(matrices[0], tuple(matrices[1::2]), tuple(matrices[2::2]))

    def free(self) -> None:
        for matrix in (self.items, *self.saved_users, *self.saved_items):
            matrix.free()


@dataclass(frozen=True)
class CcdSizes:
    """The sizes of the matrices of a training by "ccd"."""

    plan: FactorizationPlan
    users: int
    items: int
    workers: int
    keeps_best: bool = False

    @property
    def ranks(self) -> int:
        """The number of coordinates of a vector."""
        return num_coordinates(self.plan)

    @property
    def copies(self) -> int:
        return 2 + self.keeps_best


@dataclass(frozen=True, eq=False)
class CcdVectors:
    """The vectors and Gram matrices of a training by "ccd"; picklable.

    Iteration i reads copy ``i % 2`` of the vectors and writes the other copy. So a worker that restarts within an
    iteration can compute the same vectors again.

    Attributes:
        users, items: the two copies and, if held-out rows choose the result, the copy ``BEST``.
        grams: for each kind of Gram matrix, a float64 row for that of each worker's vectors, and a row for their sum.
            None for explicit feedback, which needs no Gram matrices.
    """

    sizes: CcdSizes
    users: tuple[DCVMatrix, ...]
    items: tuple[DCVMatrix, ...]
    grams: DCVMatrix | None

    @staticmethod
    def make(sizes: CcdSizes, names: CheckpointNames) -> CcdVectors:
        """Allocate the vectors, or find those of an earlier driver; raise LimitError if they do not fit into memory."""
        num_bytes, grams_text = 4 * sizes.copies * sizes.ranks * (sizes.users + sizes.items), ""
        if sizes.plan.settings.implicitPrefs:
            num_bytes += 8 * KINDS * (sizes.workers + 1) * sizes.ranks**2
            grams_text = f" with the Gram matrices of {sizes.workers} workers"
        subject = (
            f"vectors of {sizes.users:,} users and {sizes.items:,} items of rank {sizes.plan.settings.rank:,}, in "
            f"{sizes.copies} copies, take {num_bytes:,} bytes{grams_text}, and they"
        )
        column_counts = [sizes.users] * sizes.copies + [sizes.items] * sizes.copies
        matrices, grams = _allocate(column_counts, sizes.ranks, subject, names), None
        if sizes.plan.settings.implicitPrefs:
            rows = KINDS * (sizes.workers + 1)
            with fitting_servers(subject, matrices):
                grams = names.vector(lambda name: DCV.dense(sizes.ranks**2, rows, "float64", name=name)).matrix()
        return CcdVectors(sizes, tuple(matrices[: sizes.copies]), tuple(matrices[sizes.copies :]), grams)

    def write(self, users: Float32s, items: Float32s) -> None:
        """Write the initial vectors, in the order of positions."""
        for matrix, vectors in ((self.users[0], users), (self.items[0], items)):
            push_vectors(matrix, np.arange(len(vectors)), vectors.__getitem__)
        if self.grams is not None:
            self.add_gram(ITEMS, 0, gram_matrix(items))
            self.grams.flush()

    def keep_best(self, iteration: int) -> None:
        """Copy the vectors that ``iteration`` reads, counted from 0, to ``BEST``."""
        copy_vectors(self.users[iteration % 2], self.users[BEST], 0, self.sizes.users)
        copy_vectors(self.items[iteration % 2], self.items[BEST], 0, self.sizes.items)

    def add_gram(self, kind: int, rank: int, gram: Float64s) -> None:
        """Push the ``gram_matrix`` of the vectors of worker ``rank``."""
        assert self.grams is not None
        self.grams.push([self._row(kind) + rank], gram.reshape(1, -1), wait=False)

    def gram(self, kind: int) -> Float64s:
        """Return the sum of all workers' Gram matrices, added in the order of ranks; empty for explicit feedback."""
        ranks, row, workers = self.sizes.ranks, self._row(kind), self.sizes.workers
        if self.grams is None:
            return np.zeros((0, 0))
        with batch():
            self.grams.apply("factors.add_rows", first=row, count=workers, into=row + workers)
            reply = self.grams.pull([row + workers])
        gram: Float64s = reply.result()
        return gram.reshape(ranks, ranks)

    def free(self) -> None:
        for matrix in (*self.users, *self.items, *([self.grams] if self.grams is not None else [])):
            matrix.free()

    def _row(self, kind: int) -> int:
        return kind * (self.sizes.workers + 1)
