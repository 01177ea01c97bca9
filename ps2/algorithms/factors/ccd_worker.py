"""What a worker does in a training by coordinate descent.

An iteration is a clock, and solves one coordinate after the other. The worker solves its users' coordinates, and
writes the sums that the items' coordinates need to rows of its own. When all workers have done so, the servers solve
the items' coordinates, and the workers read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.factors.ccd_descent import Descent, Pass
from ps2.algorithms.factors.ccd_kernels import Float32s
from ps2.algorithms.factors.ccd_ratings import UserRatings
from ps2.algorithms.factors.ccd_vectors import STEPS, CcdVectors
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.client.batch import batch
from ps2.ops.kernels import Float64s, Int64s


@dataclass(frozen=True, eq=False)
class CcdProgram:
    """What each worker runs; picklable.

    Attributes:
        user_begins: int64, shape (workers + 1,): the place of each worker's first user, and the end.
        mean: of the ratings; 0 without biases.
    """

    vectors: CcdVectors
    user_begins: Int64s
    mean: float

    def __call__(self, worker: Any, reading: Any) -> None:
        """Take part in all iterations, each of which is a clock."""
        sizes = self.vectors.sizes
        users = np.arange(self.user_begins[worker.rank], self.user_begins[worker.rank + 1])
        ratings = UserRatings.of(reading.training, len(users), sizes.options)
        held_out = reading.held_out
        held_out = None if held_out is None else UserRatings.of(held_out, len(users), sizes.options)
        descent = Descent(sizes.options, sizes.items, ratings, held_out, self.mean)
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

    def _solve_items(self, iteration: int, one: Pass, sums: Float64s, gram: Float64s) -> Float32s:
        vectors, worker, ranks = self._vectors, self._worker, self._vectors.sizes.ranks
        assert one.item is not None
        step = (iteration * ranks + one.number) % STEPS + 1
        # Workers that are still in the last step read the other rows.
        first, new = vectors.pair(step), vectors.begin(iteration + 1)
        mine = vectors.pair(step, worker.rank)
        vectors.sums.push([mine, mine + 1], np.ascontiguousarray(sums.T, np.float32), wait=False)
        if vectors.products is not None:
            vectors.products.push([mine // 2], gram[None], wait=False)
        worker.barrier()
        if vectors.products is not None:
            # NumPy adds rows one after the other: in the order of the workers.
            gram = vectors.products.pull(range(first // 2, first // 2 + worker.workers)).sum(axis=0)
        with batch():
            vectors.items.apply(
                "factors.solve",
                sums=vectors.sums,
                gram=gram,
                rank=one.item,
                ranks=ranks,
                old=vectors.begin(iteration),
                new=new,
                first=first,
                workers=worker.workers,
                ridge=vectors.ridge,
                done=vectors.done,
                step=step,
                nonnegative=one.nonnegative,
            )
            solved = vectors.items.pull([new + one.item])
        values: Float32s = solved.result()[0]
        return values
