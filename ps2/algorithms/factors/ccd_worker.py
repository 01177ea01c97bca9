"""What a worker does in a training by coordinate descent.

An iteration is a clock. The worker solves the vectors of its users with the vectors of the items in their ratings, and
writes them. When all workers have done so, it solves the vectors of its items with those of the users in their ratings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.factors.ccd_descent import Answer, SideDescent, gram_of
from ps2.algorithms.factors.ccd_reading import WorkersRatings
from ps2.algorithms.factors.ccd_vectors import ITEMS, USERS, CcdVectors
from ps2.algorithms.factors.following import BYTES, HELD_LOSS, HELD_WEIGHT, LOSS, PENALTY, RATINGS, WEIGHT
from ps2.algorithms.factors.grid import Layout
from ps2.algorithms.factors.plan import LAST
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.client.matrix import DCVMatrix
from ps2.ops.kernels import Int64s


@dataclass(frozen=True, eq=False)
class CcdProgram:
    """What each worker runs; picklable.

    Attributes:
        layout: of users and items.
        mean: of the ratings; 0 without biases.
    """

    vectors: CcdVectors
    layout: Layout
    mean: float

    def __call__(self, worker: Any, ratings: WorkersRatings) -> None:
        """Take part in all iterations, each of which is a clock."""
        options, layout = self.vectors.sizes.options, self.layout
        users = SideDescent(options, ratings.of_users, self.mean, None, layout.groups)
        items = SideDescent(options, ratings.of_items, self.mean, ratings.held_out, layout.groups)
        places = np.arange(*layout.users_of(worker.rank)[[0, -1]]), np.arange(*layout.items_owned_by(worker.rank))
        mine, ready = CcdWorker(worker, self.vectors, places, (users, items)), None
        for clock in worker.clocks(FIRST_CLOCK + options.iterations):
            iteration = clock - FIRST_CLOCK
            if any(iteration >= message.get(LAST, iteration + 1) for message in worker.messages):
                # The run ends in this clock: the driver has decided so.
                continue
            # After a restart or a rollback, what this process holds is not what the servers hold.
            if ready != (worker.epoch, iteration):
                mine.load(iteration)
            worker.report(mine.iterate(iteration))
            ready = worker.epoch, iteration + 1


class CcdWorker:
    """A worker, the ratings of its users and of its items, and the vectors on the servers."""

    def __init__(
        self, worker: Any, vectors: CcdVectors, places: tuple[Int64s, Int64s], sides: tuple[SideDescent, SideDescent]
    ) -> None:
        """Args:
        places: of the worker's users and items.
        sides: its users and items.
        """
        self._worker, self._vectors = worker, vectors
        self._user_places, self._item_places = places
        self._users, self._items = sides

    def load(self, iteration: int) -> None:
        """Read the vectors with which an iteration begins."""
        vectors, at = self._vectors, iteration % 2
        self._users.own = vectors.users[at].pull(columns=self._user_places)
        self._items.own = vectors.items[at].pull(columns=self._item_places)

    def iterate(self, iteration: int) -> dict[str, float]:
        """Solve all coordinates once; return sums that tell how good the new vectors are."""
        vectors, rank = self._vectors, self._worker.rank
        before, after = iteration % 2, (iteration + 1) % 2
        users, items = self._users, self._items
        users.solve(self._asking(vectors.items[before]), vectors.gram(ITEMS + before))
        vectors.users[after].push(columns=self._user_places, values=users.own, wait=False)
        if vectors.grams is not None:
            vectors.add_gram(USERS, rank, gram_of(users.own))
        self._worker.barrier()
        of_users = vectors.gram(USERS)
        loss, held = items.solve(self._asking(vectors.users[after]), of_users)
        vectors.items[after].push(columns=self._item_places, values=items.own, wait=False)
        if vectors.grams is not None:
            vectors.add_gram(ITEMS + after, rank, mine := gram_of(items.own))
            # The x^2 of all cells of these items: the inner product of both sides' products.
            loss += float(np.sum(of_users * mine))
        return {
            LOSS: loss,
            WEIGHT: items.weight,
            HELD_LOSS: held,
            HELD_WEIGHT: items.held_weight,
            PENALTY: users.penalty() + items.penalty(),
            RATINGS: items.ratings,
            BYTES: users.bytes + items.bytes,
        }

    def _asking(self, matrix: DCVMatrix) -> Any:
        def ask(columns: Int64s) -> Answer:
            found: Answer = self._worker.prefetch(matrix, columns=columns, ahead=0)
            return found

        return ask
