"""Coordinate descent with vectors and sums on real servers is that of one process."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from descents import ITEMS, USERS, begun, ccd_plan

from ps2.algorithms.factors.ccd_descent import RatingRows, SideDescent, SideRatings
from ps2.algorithms.factors.ccd_program import CcdWorker, SolveAll
from ps2.algorithms.factors.shared_factors import CcdSizes, CcdVectors, pull_vectors
from ps2.algorithms.training.checkpoint_names import UNNAMED
from ps2.errors import LimitError

ITERATIONS = 3


class ThreadWorker:
    """A worker of a run, as far as coordinate descent asks one: a thread of this process."""

    def __init__(self, rank, barrier):
        self.rank, self.workers, self._barrier = rank, barrier.parties, barrier

    def barrier(self):
        self._barrier.wait(20)

    def prefetch(self, matrix, columns, ahead):
        return Pulled(matrix.pull(columns=columns))

    def report(self, sums):
        pass


class Pulled:
    def __init__(self, rows):
        self.rows = rows

    def result(self):
        return self.rows


def iterate(rank, barrier, vectors, plan, raw, mean):
    """Do the iterations of one worker, which has every third user and item or so."""
    users, items, r, w = raw
    positions, sides = [], []
    for own, others, count in ((users, items, USERS), (items, users, ITEMS)):
        begin, end = (count * at // barrier.parties for at in (rank, rank + 1))
        mine = (own >= begin) & (own < end)
        rows = RatingRows(own[mine] - begin, others[mine], r[mine], None if w is None else w[mine])
        sides.append(SideDescent(plan, SideRatings.from_rows(rows, end - begin, plan), mean))
        positions.append(np.arange(begin, end))
    solver, worker = CcdWorker(vectors, tuple(positions), tuple(sides)), ThreadWorker(rank, barrier)
    for iteration in range(ITERATIONS):
        solver(worker, SolveAll(iteration))
        vectors.users[0].flush()
        barrier.wait(20)


@pytest.mark.parametrize(
    ("kind", "workers", "weighted"),
    [
        ({kind: True}, workers, (i + workers) % 2 == 0)
        for i, kind in enumerate(("biases", "implicitPrefs", "nonnegative"))
        for workers in (1, 2, 3)
    ],
    ids=str,
)
def test_vectors_when_on_servers_then_as_in_a_process(ps, kind, workers, weighted):
    plan, mean = ccd_plan(**kind), 3.0 if "biases" in kind else 0.0
    raw, descent = begun(plan, weighted, mean)
    vectors = CcdVectors.make(CcdSizes(plan, USERS, ITEMS, workers), UNNAMED)
    vectors.write(descent.users.vectors, descent.items.vectors)
    barrier = threading.Barrier(workers)
    with ThreadPoolExecutor(workers) as pool:
        for finished in [pool.submit(iterate, rank, barrier, vectors, plan, raw, mean) for rank in range(workers)]:
            finished.result()
    for _ in range(ITERATIONS):
        descent.iterate()
    copy = ITERATIONS % 2
    users = pull_vectors(vectors.users[copy], np.arange(USERS))
    items = pull_vectors(vectors.items[copy], np.arange(ITEMS))
    if workers == 1:
        assert (users.tobytes(), items.tobytes()) == (descent.users.vectors.tobytes(), descent.items.vectors.tobytes())
    np.testing.assert_allclose(users, descent.users.vectors, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(items, descent.items.vectors, rtol=1e-4, atol=1e-5)


def test_vectors_when_too_large_then_error_names_sizes(ps):
    with pytest.raises(LimitError, match=r"vectors of 2,000,000,000 users and 10 items of rank 5, in 2 copies"):
        CcdVectors.make(CcdSizes(ccd_plan(), 2_000_000_000, 10, 2), UNNAMED)
