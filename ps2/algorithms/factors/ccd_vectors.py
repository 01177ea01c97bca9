"""The vectors of a training by coordinate descent on the servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ps2.algorithms.factors.ccd_descent import padded
from ps2.algorithms.factors.ccd_kernels import Float32s
from ps2.algorithms.factors.ops import BLOCK, SUMS
from ps2.algorithms.factors.options import FactorOptions
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.errors import LimitError
from ps2.ops.kernels import Float64s, Int64s

# Floats of users' vectors that travel at a time.
MOST_FLOATS = 1 << 24
# Steps are float32 numbers in the matrix of sums: they count up to this and begin again.
STEPS = 1 << 23


@dataclass(frozen=True)
class CcdSizes:
    """What decides about sizes on the servers.

    Attributes:
        users, items: how many there are.
    """

    options: FactorOptions
    users: int
    items: int
    workers: int

    @property
    def ranks(self) -> int:
        """Coordinates of a vector: whole blocks, and then the bias, if there are biases."""
        return padded(self.options.rank) + self.options.biases


@dataclass(frozen=True, eq=False)
class CcdVectors:
    """Vectors and matrices; picklable.

    An iteration reads the vectors as they were before it, and writes them to another place. So a worker that is started
    again in the middle of an iteration computes what its first attempt has computed.

    Attributes:
        items: float32: an item is a column, and the rows are the coordinates, twice.
        sums: float32: by item, the sums of each worker in two steps, the ridge, and the last step.
        products: float64: of each worker in two steps, the products of its users' coordinates of a block's ranks with
            those of every rank; None: explicit feedback needs none.
        users: float32, twice: a user is a column with its vector.
    """

    sizes: CcdSizes
    items: DCVMatrix
    sums: DCVMatrix
    products: DCVMatrix | None
    users: tuple[DCVMatrix, DCVMatrix]

    @staticmethod
    def make(sizes: CcdSizes, names: CheckpointNames) -> CcdVectors:
        """Make them, or find those of an earlier driver.

        Raises:
            LimitError: they do not fit.
        """
        twice, ranks = 2 * sizes.workers, sizes.ranks
        with _explaining(sizes):
            items = names.give(lambda name: DCV.dense(sizes.items, 2 * ranks, name=name))
            sums = names.give(lambda name: DCV.dense(sizes.items, SUMS * twice + 2, name=name))
            users = [
                names.give(lambda name: DCV.dense(sizes.users, ranks, layout="column", name=name)) for _ in range(2)
            ]
        products = None
        if sizes.options.implicit:
            products = names.give(lambda name: DCV.dense(ranks, BLOCK * twice, "float64", name=name)).matrix()
        return CcdVectors(sizes, items.matrix(), sums.matrix(), products, (users[0].matrix(), users[1].matrix()))

    @property
    def ridge(self) -> int:
        """The row of ``sums`` with each item's ridge."""
        return 2 * SUMS * self.sizes.workers

    @property
    def done(self) -> int:
        """The row of ``sums`` with the last step."""
        return self.ridge + 1

    def place(self, step: int, rank: int = 0) -> int:
        """Return where a worker's sums of a step are: in SUMS rows of ``sums``, and BLOCK rows of ``products``, from
        this number times SUMS, or times BLOCK, on."""
        return step % 2 * self.sizes.workers + rank

    def begin(self, iteration: int) -> int:
        """Return the row of ``items`` from which on the vectors lie when an iteration begins."""
        return iteration % 2 * self.sizes.ranks

    def write(self, users: Float32s, items: Float32s, ridge: Float64s) -> None:
        """Write the vectors with which the first iteration begins, and each item's ridge.

        Args:
            users, items: shape (users, ranks) and (items, ranks).
        """
        self.sums.push([self.ridge], ridge.astype(np.float32)[None])
        self.items.push(range(self.sizes.ranks), np.ascontiguousarray(items.T))
        for some in self._runs():
            self.users[0].push(columns=some, values=users[some])

    def read(self, iteration: int) -> tuple[Float32s, Float32s]:
        """Return the vectors with which an iteration begins: shape (users, ranks) and (items, ranks)."""
        begin, place = self.begin(iteration), self.users[iteration % 2]
        items = self.items.pull(range(begin, begin + self.sizes.ranks))
        users = np.empty((self.sizes.users, self.sizes.ranks), np.float32)
        for some in self._runs():
            users[some] = place.pull(columns=some)
        return users, np.ascontiguousarray(items.T)

    def free(self) -> None:
        """Free them."""
        for matrix in (self.items, self.sums, self.products, *self.users):
            if matrix is not None:
                matrix.free()

    def _runs(self) -> Iterator[Int64s]:
        """Yield the numbers of all users, as many at a time as may travel together."""
        length = max(1, MOST_FLOATS // self.sizes.ranks)
        for begin in range(0, self.sizes.users, length):
            yield np.arange(begin, min(begin + length, self.sizes.users))


@contextmanager
def _explaining(sizes: CcdSizes) -> Iterator[None]:
    """Turn LimitError into one that says what does not fit."""
    try:
        yield
    except LimitError as error:
        size = 4 * (2 * sizes.ranks * (sizes.users + sizes.items) + (2 * SUMS * sizes.workers + 2) * sizes.items)
        raise LimitError(
            f"vectors of {sizes.users:,} users and {sizes.items:,} items of rank {sizes.options.rank:,}, twice, and "
            f"the sums of {sizes.workers} workers take {size:,} bytes, and they do not fit the servers: {error}; start "
            "more servers, or with a larger memory limit"
        ) from error
