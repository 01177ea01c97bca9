"""The worker of a training by coordinate descent.

An iteration is a clock. The worker solves the vectors of its users with the vectors of the items in their ratings, and
writes them. When all workers have done so, it solves the vectors of its items with those of the users in their ratings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.factors.ccd_descent import Answer, SideDescent, gram_of
from ps2.algorithms.factors.ccd_reading import WorkersRatings
from ps2.algorithms.factors.ccd_vectors import ITEMS, USERS, CcdVectors
from ps2.algorithms.factors.following import BYTES, HELD_LOSS, HELD_WEIGHT, LOSS, PENALTY, RATINGS, WEIGHT
from ps2.algorithms.factors.grid import Layout
from ps2.algorithms.frame.program import DoTask, Task
from ps2.client.matrix import DCVMatrix
from ps2.ops.kernels import Int64s


@dataclass(frozen=True)
class SolveAll(Task):
    """Solve all coordinates once.

    Attributes:
        iteration: the number of the iteration, from 0.
    """

    iteration: int


@dataclass(frozen=True, eq=False)
class CcdWork:
    """Makes a worker of its ratings; picklable.

    Attributes:
        layout: the users and items of each worker.
        mean: the mean rating; 0 without biases.
    """

    vectors: CcdVectors
    layout: Layout
    mean: float

    def __call__(self, ratings: WorkersRatings) -> DoTask:
        plan, groups = self.vectors.sizes.plan, self.layout.groups
        users = SideDescent(plan, ratings.users, self.mean, None, groups)
        items = SideDescent(plan, ratings.items, self.mean, ratings.held_out, groups)
        solver = CcdWorker(
            self.vectors, (np.arange(*ratings.user_bounds), np.arange(*ratings.item_bounds)), (users, items)
        )

        def do(worker: Any, task: Any) -> None:
            worker.report(solver.iterate(worker, task.iteration))

        return do


class CcdWorker:
    """A worker's ratings of its users and of its items, and the vectors on the servers."""

    def __init__(
        self, vectors: CcdVectors, positions: tuple[Int64s, Int64s], sides: tuple[SideDescent, SideDescent]
    ) -> None:
        """Args:
        positions: the positions of the worker's users and items.
        sides: the solvers of its users and items.
        """
        self._vectors = vectors
        self._user_positions, self._item_positions = positions
        self._users, self._items = sides
        self._loaded: int | None = None  # the iteration that begins with the vectors in this process

    def iterate(self, worker: Any, iteration: int) -> dict[str, float]:
        """Solve all coordinates once; return sums that tell how good the new vectors are.

        Args:
            worker: the ``ps2.Worker``.
            iteration: the number of the iteration, from 0.
        """

        def read(matrix: DCVMatrix) -> Callable[[Int64s], Answer]:
            return lambda columns: worker.prefetch(matrix, columns=columns, ahead=0)

        vectors, rank = self._vectors, worker.rank
        before, after = iteration % 2, (iteration + 1) % 2
        users, items = self._users, self._items
        if self._loaded != iteration:  # the process is new, or goes back
            users.own = vectors.users[before].pull(columns=self._user_positions)
            items.own = vectors.items[before].pull(columns=self._item_positions)
        users.solve(read(vectors.items[before]), vectors.gram(ITEMS + before))
        vectors.users[after].push(columns=self._user_positions, values=users.own, wait=False)
        if vectors.grams is not None:
            vectors.add_gram(USERS, rank, gram_of(users.own))
        worker.barrier()
        users_gram = vectors.gram(USERS)
        loss, held = items.solve(read(vectors.users[after]), users_gram)
        vectors.items[after].push(columns=self._item_positions, values=items.own, wait=False)
        if vectors.grams is not None:
            vectors.add_gram(ITEMS + after, rank, mine := gram_of(items.own))
            # The x^2 of all cells of these items: the inner product of both sides' products.
            loss += float(np.sum(users_gram * mine))
        self._loaded = iteration + 1
        return {
            LOSS: loss,
            WEIGHT: items.weight,
            HELD_LOSS: held,
            HELD_WEIGHT: items.held_weight,
            PENALTY: users.penalty() + items.penalty(),
            RATINGS: items.ratings,
            BYTES: users.bytes + items.bytes,
        }
