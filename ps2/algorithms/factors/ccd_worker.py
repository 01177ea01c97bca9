"""What a worker does in a training by coordinate descent.

An iteration is a clock, and solves one coordinate after the other. The worker solves its users' coordinates, and
writes the sums that the items' coordinates need to rows of its own. When all workers have done so, the servers solve
the items' coordinates, and the workers read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.factors.ccd_descent import Descent, Pass, passes
from ps2.algorithms.factors.ccd_kernels import Float32s
from ps2.algorithms.factors.ccd_reading import WorkersRatings
from ps2.algorithms.factors.ccd_vectors import STEPS, CcdVectors
from ps2.algorithms.factors.grid import Layout
from ps2.algorithms.factors.ops import BLOCK, SUMS
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.client.batch import batch
from ps2.ops.kernels import Float64s, Int64s


@dataclass(frozen=True, eq=False)
class CcdProgram:
    """What each worker runs; picklable.

    Attributes:
        layout: of users.
        mean: of the ratings; 0 without biases.
    """

    vectors: CcdVectors
    layout: Layout
    mean: float

    def __call__(self, worker: Any, ratings: WorkersRatings) -> None:
        """Take part in all iterations, each of which is a clock."""
        sizes = self.vectors.sizes
        for _ in worker.clocks(FIRST_CLOCK):
            worker.report(ratings.strange)
        users = np.arange(*self.layout.users_of(worker.rank)[[0, -1]])
        descent = Descent(sizes.options, sizes.items, ratings.training, ratings.held_out, self.mean)
        mine, ready = CcdWorker(worker, self.vectors, users, descent), None
        for clock in worker.clocks(FIRST_CLOCK + sizes.options.iterations):
            iteration = clock - FIRST_CLOCK
            # After a restart or a rollback, what this process holds is not what the servers hold.
            if ready != (worker.epoch, iteration):
                mine.load(iteration)
            worker.report(mine.iterate(iteration))
            ready = worker.epoch, iteration + 1


class CcdWorker:
    """A worker, its users' ratings, and the vectors on the servers."""

    def __init__(self, worker: Any, vectors: CcdVectors, users: Int64s, descent: Descent) -> None:
        """Args:
        users: places of the worker's users.
        """
        self._worker, self._vectors, self._users, self._descent = worker, vectors, users, descent
        self._passes = len(passes(vectors.sizes.options))

    def load(self, iteration: int) -> dict[str, float]:
        """Read the vectors with which an iteration begins; return what ``Descent.evaluate`` tells of them."""
        vectors, begin = self._vectors, self._vectors.begin(iteration)
        self._descent.q = vectors.items.pull(range(begin, begin + vectors.sizes.ranks))
        users = vectors.users[iteration % 2].pull(columns=self._users)
        self._descent.p = np.ascontiguousarray(users.T)
        return self._descent.evaluate()

    def iterate(self, iteration: int) -> dict[str, float]:
        """Solve all coordinates once; return what ``Descent.evaluate`` tells of the new vectors."""

        def solve_items(one: Pass, sums: Float64s, gram: Float64s) -> Float32s:
            return self._solve_items(iteration, one, sums, gram)

        self._descent.iterate(solve_items)
        place = self._vectors.users[(iteration + 1) % 2]
        place.push(columns=self._users, values=np.ascontiguousarray(self._descent.p.T), wait=False)
        return self._descent.evaluate()

    def _solve_items(self, iteration: int, one: Pass, sums: Float64s, products: Float64s) -> Float32s:
        vectors, worker, ranks = self._vectors, self._worker, self._vectors.sizes.ranks
        step = (iteration * self._passes + one.number) % STEPS + 1
        # Workers that are still in the last step read other rows.
        first, mine = vectors.place(step), vectors.place(step, worker.rank)
        rows = range(SUMS * mine, SUMS * mine + one.sums)
        vectors.sums.push(rows, np.ascontiguousarray(sums.T, np.float32), wait=False)
        if vectors.products is not None:
            vectors.products.push(range(BLOCK * mine, BLOCK * mine + one.width), products, wait=False)
        worker.barrier()
        if vectors.products is not None:
            all_products = vectors.products.pull(range(BLOCK * first, BLOCK * (first + worker.workers)))
            # NumPy adds along the first axis one after the other: in the order of the workers.
            products = all_products.reshape(worker.workers, BLOCK, ranks).sum(axis=0)[: one.width]
        begin = vectors.begin(iteration + 1)
        with batch():
            vectors.items.apply(
                "factors.solve",
                sums=vectors.sums,
                gram=products.reshape(-1),
                rank=one.first,
                width=one.width,
                ranks=ranks,
                old=vectors.begin(iteration),
                new=begin,
                first=SUMS * first,
                workers=worker.workers,
                ridge=vectors.ridge,
                done=vectors.done,
                step=step,
                nonnegative=one.nonnegative,
            )
            solved = vectors.items.pull(range(begin + one.first, begin + one.end))
        values: Float32s = solved.result()
        return values
