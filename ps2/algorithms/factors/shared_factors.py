"""The vectors of users and items on the servers, in several copies. A matrix has a column for each position."""

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
# The kinds of Gram matrices, and their number: of the users' vectors; of the items' vectors before even iterations
# (ITEMS), and before odd iterations (ITEMS + 1).
USERS, ITEMS, KINDS = 0, 1, 3
# The number of the copy with the best vectors of "ccd".
BEST = 2


def push_vectors(matrix: DCVMatrix, positions: Any, make_vectors: Callable[[slice], Float32s]) -> None:
    """Push vectors to these columns; ``make_vectors`` returns those of a slice of the positions."""
    for part in _slices(matrix, len(positions)):
        matrix.push(columns=positions[part].astype(np.int64), values=make_vectors(part), wait=False)
    matrix.flush()


def pull_vectors(matrix: DCVMatrix, positions: Any) -> Float32s:
    """Pull the vectors of these columns, shape (positions, rows)."""
    vectors = np.empty((len(positions), matrix.rows), np.float32)
    for part in _slices(matrix, len(positions)):
        vectors[part] = matrix.pull(columns=positions[part].astype(np.int64))
    return vectors


def copy_vectors(source: DCVMatrix, to: DCVMatrix, begin: int, end: int) -> None:
    """Copy the vectors of some positions within the servers."""
    to.apply("factors.copy_blocks", source=source, begin=begin, end=end)


def _slices(matrix: DCVMatrix, count: int) -> Iterator[slice]:
    length = max(1, SLICE_BYTES // (4 * matrix.rows))
    for begin in range(0, count, length):
        yield slice(begin, min(begin + length, count))


def _allocate(counts: list[int], width: int, what: str, names: CheckpointNames) -> list[DCVMatrix]:
    """Allocate a matrix of ``width`` float32 rows for each count of columns, or find an earlier driver's.

    Raise LimitError, which begins with ``what``, if they do not fit.
    """
    matrices: list[DCVMatrix] = []

    def allocate(count: int) -> DCVMatrix:
        return names.vector(lambda name: DCV.dense(count, width, "float32", layout="column", name=name)).matrix()

    with fitting_servers(what, matrices):
        for count in counts:
            matrices.append(allocate(count))
    return matrices


@dataclass(frozen=True, eq=False)
class SharedFactors:
    """The vectors of a training by "sgd"; picklable.

    Attributes:
        items: the current vectors of items.
        saved_users, saved_items: the copies of saved vectors.
    """

    items: DCVMatrix
    saved_users: tuple[DCVMatrix, ...]
    saved_items: tuple[DCVMatrix, ...]

    @staticmethod
    def make(users: int, items: int, width: int, copies: int, names: CheckpointNames) -> SharedFactors:
        """Allocate them, or find those of an earlier driver; raise LimitError if they do not fit."""
        num_bytes = 4 * width * (items + copies * (users + items))
        what = (
            f"vectors of {users:,} users and {items:,} items, {width} numbers each, take {num_bytes:,} bytes with "
            "their saved copies, and they"
        )
        matrices = _allocate([items, *([users, items] * copies)], width, what, names)
        return SharedFactors(matrices[0], tuple(matrices[1::2]), tuple(matrices[2::2]))

    def free(self) -> None:
        for matrix in (self.items, *self.saved_users, *self.saved_items):
            matrix.free()


@dataclass(frozen=True)
class CcdSizes:
    """The sizes of a training by "ccd"."""

    plan: FactorizationPlan
    users: int
    items: int
    workers: int
    keeps_best: bool = False

    @property
    def ranks(self) -> int:
        return num_coordinates(self.plan)

    @property
    def copies(self) -> int:
        return 2 + self.keeps_best


@dataclass(frozen=True, eq=False)
class CcdVectors:
    """The vectors and Gram matrices of a training by "ccd"; picklable.

    Iteration i reads copy ``i % 2`` and writes the other copy. So a worker that restarts within an iteration computes
    the same vectors again.

    Attributes:
        users, items: the two copies, and the copy ``BEST`` if held-out rows choose the result.
        grams: for each kind, a float64 row with the Gram matrix of each worker's vectors, and a row with their sum;
            None for explicit feedback, which needs no Gram matrices.
    """

    sizes: CcdSizes
    users: tuple[DCVMatrix, ...]
    items: tuple[DCVMatrix, ...]
    grams: DCVMatrix | None

    @staticmethod
    def make(sizes: CcdSizes, names: CheckpointNames) -> CcdVectors:
        """Allocate them, or find those of an earlier driver; raise LimitError if they do not fit."""
        num_bytes = 4 * sizes.copies * sizes.ranks * (sizes.users + sizes.items)
        if sizes.plan.settings.implicitPrefs:
            num_bytes += 8 * KINDS * (sizes.workers + 1) * sizes.ranks**2
        what = (
            f"vectors of {sizes.users:,} users and {sizes.items:,} items of rank {sizes.plan.settings.rank:,}, in "
            f"{sizes.copies} copies, take {num_bytes:,} bytes with what {sizes.workers} workers add, and they"
        )
        counts = [sizes.users] * sizes.copies + [sizes.items] * sizes.copies
        matrices, grams = _allocate(counts, sizes.ranks, what, names), None
        if sizes.plan.settings.implicitPrefs:
            rows = KINDS * (sizes.workers + 1)
            with fitting_servers(what, matrices):
                grams = names.vector(lambda name: DCV.dense(sizes.ranks**2, rows, "float64", name=name)).matrix()
        return CcdVectors(sizes, tuple(matrices[: sizes.copies]), tuple(matrices[sizes.copies :]), grams)

    def write(self, users: Float32s, items: Float32s) -> None:
        """Write the initial vectors, by position."""
        for matrix, vectors in ((self.users[0], users), (self.items[0], items)):
            push_vectors(matrix, np.arange(len(vectors)), vectors.__getitem__)
        if self.grams is not None:
            self.add_gram(ITEMS, 0, gram_matrix(items))
            self.grams.flush()

    def keep_best(self, iteration: int) -> None:
        """Copy the vectors with which an iteration starts to ``BEST``."""
        copy_vectors(self.users[iteration % 2], self.users[BEST], 0, self.sizes.users)
        copy_vectors(self.items[iteration % 2], self.items[BEST], 0, self.sizes.items)

    def add_gram(self, kind: int, rank: int, gram: Float64s) -> None:
        """Write the ``gram_matrix`` of a worker's vectors."""
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
