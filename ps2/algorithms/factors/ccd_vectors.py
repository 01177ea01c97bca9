"""The vectors of a training by coordinate descent on the servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ps2.algorithms.factors.ccd_descent import gram_of, num_coordinates
from ps2.algorithms.factors.plan import FactorizationPlan
from ps2.algorithms.frame.memory import fitting_servers
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.array_types import Float32s, Float64s, Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix

# Floats of vectors that travel at a time.
MAX_FLOATS = 1 << 24
# Sums of products that there are: of the users, and of the items before and after an iteration.
USERS, ITEMS, KINDS = 0, 1, 3


@dataclass(frozen=True)
class CcdSizes:
    """The sizes of a training by coordinate descent.

    Attributes:
        users, items: the numbers of users and of items.
        keeps_best: whether the vectors of the best iteration are kept.
    """

    plan: FactorizationPlan
    users: int
    items: int
    workers: int
    keeps_best: bool = False

    @property
    def ranks(self) -> int:
        """The number of coordinates of a vector: whole blocks, and then the bias, if there are biases."""
        return num_coordinates(self.plan)

    @property
    def copies(self) -> int:
        """The number of copies of all vectors."""
        return 2 + self.keeps_best

    @property
    def bytes(self) -> int:
        """The bytes of vectors and of sums of products."""
        products = 8 * KINDS * (self.workers + 1) * self.ranks**2 if self.plan.settings.implicitPrefs else 0
        return 4 * self.copies * self.ranks * (self.users + self.items) + products


@dataclass(frozen=True, eq=False)
class CcdVectors:
    """Vectors and sums; picklable. A user, or an item, is a column with its vector.

    An iteration reads the vectors as they were before it, and writes them to another copy. So a worker that is started
    again in the middle of an iteration computes what its first attempt has computed.

    Attributes:
        users, items: float32: copies of the vectors: those before and after an iteration, and those of the best
            iteration if they are kept.
        grams: float64: a row holds products of vectors. For each kind, one of each worker's vectors, and one of all;
            None: explicit feedback needs none.
    """

    sizes: CcdSizes
    users: tuple[DCVMatrix, ...]
    items: tuple[DCVMatrix, ...]
    grams: DCVMatrix | None

    @staticmethod
    def make(sizes: CcdSizes, names: CheckpointNames) -> CcdVectors:
        """Make them, or find those of an earlier driver.

        Raises:
            LimitError: they do not fit.
        """
        what = (
            f"vectors of {sizes.users:,} users and {sizes.items:,} items of rank {sizes.plan.settings.rank:,}, in "
            f"{sizes.copies} copies, take {sizes.bytes:,} bytes with what {sizes.workers} workers add, and they"
        )
        matrices: list[DCVMatrix] = []

        def add(dim: int, rows: int, dtype: str, layout: Literal["row", "column"]) -> None:
            vectors = names.give(lambda name: DCV.dense(dim, rows, dtype, layout=layout, name=name))
            matrices.append(vectors.matrix())

        with fitting_servers(what, matrices):
            for count in [sizes.users] * sizes.copies + [sizes.items] * sizes.copies:
                add(count, sizes.ranks, "float32", "column")
            if sizes.plan.settings.implicitPrefs:
                add(sizes.ranks**2, KINDS * (sizes.workers + 1), "float64", "row")
        users, items = matrices[: sizes.copies], matrices[sizes.copies : 2 * sizes.copies]
        rest = matrices[2 * sizes.copies :]
        return CcdVectors(sizes, tuple(users), tuple(items), rest[0] if rest else None)

    def write(self, users: Float32s, items: Float32s) -> None:
        """Write the vectors with which the first iteration begins.

        Args:
            users, items: shape (users, ranks) and (items, ranks).
        """
        for matrix, vectors in ((self.users[0], users), (self.items[0], items)):
            for some in self._runs(len(vectors)):
                matrix.push(columns=some, values=vectors[some], wait=False)
        if self.grams is not None:
            self.add_gram(ITEMS, 0, gram_of(items))
        self.users[0].flush()

    def read(self, iteration: int) -> tuple[Float32s, Float32s]:
        """Return the vectors with which an iteration begins: shape (users, ranks) and (items, ranks)."""
        return self._read(iteration % 2)

    def read_best(self) -> tuple[Float32s, Float32s]:
        """Return the vectors that were kept."""
        return self._read(2)

    def keep(self, iteration: int) -> None:
        """Keep the vectors with which an iteration begins as the best ones; no value travels."""
        for matrices, count in ((self.users, self.sizes.users), (self.items, self.sizes.items)):
            matrices[2].apply("factors.copy_blocks", source=matrices[iteration % 2], begin=0, end=count)

    def add_gram(self, kind: int, rank: int, gram: Float64s) -> None:
        """Write the products of a worker's vectors.

        Args:
            kind: ``USERS``, or ``ITEMS`` plus the number of an iteration modulo 2.
            gram: see ``gram_of``.
        """
        assert self.grams is not None
        self.grams.push([self._row(kind) + rank], gram.reshape(1, -1), wait=False)

    def gram(self, kind: int) -> Float64s:
        """Return the products of all workers' vectors, added in the order of the workers; empty for explicit
        feedback."""
        ranks, row, workers = self.sizes.ranks, self._row(kind), self.sizes.workers
        if self.grams is None:
            return np.zeros((0, 0))
        with batch():
            self.grams.apply("factors.add_rows", first=row, count=workers, into=row + workers)
            answer = self.grams.pull([row + workers])
        products: Float64s = answer.result()
        return products.reshape(ranks, ranks)

    def free(self) -> None:
        """Free them."""
        for matrix in (*self.users, *self.items, *([self.grams] if self.grams is not None else [])):
            matrix.free()

    def _row(self, kind: int) -> int:
        return kind * (self.sizes.workers + 1)

    def _read(self, copy: int) -> tuple[Float32s, Float32s]:
        sides = []
        for matrix, count in ((self.users[copy], self.sizes.users), (self.items[copy], self.sizes.items)):
            vectors = np.empty((count, self.sizes.ranks), np.float32)
            for some in self._runs(count):
                vectors[some] = matrix.pull(columns=some)
            sides.append(vectors)
        return sides[0], sides[1]

    def _runs(self, count: int) -> Iterator[Int64s]:
        """Yield numbers, as many at a time as may travel together."""
        length = max(1, MAX_FLOATS // self.sizes.ranks)
        for begin in range(0, count, length):
            yield np.arange(begin, min(begin + length, count))
