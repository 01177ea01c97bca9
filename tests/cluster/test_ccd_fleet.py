"""Coordinate descent with vectors and sums on real servers is that of one process."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from descents import ITEMS, USERS, begun, cells_of, options_of

from ps2.algorithms.factors.ccd_descent import Descent
from ps2.algorithms.factors.ccd_ratings import RatingRows, UserRatings
from ps2.algorithms.factors.ccd_vectors import CcdSizes, CcdVectors
from ps2.algorithms.factors.ccd_worker import CcdWorker
from ps2.algorithms.training.checkpoint_names import UNNAMED
from ps2.errors import LimitError

ITERATIONS = 3


class ThreadWorker:
    """A worker of a run, as far as coordinate descent asks one: a thread of this process."""

    def __init__(self, rank, barrier):
        self.rank, self.workers, self._barrier = rank, barrier.parties, barrier

    def barrier(self):
        self._barrier.wait(20)


def iterate(rank, barrier, vectors, options, raw, mean):
    """Do the iterations of one worker, which has every third user or so."""
    users, items, r, w = raw
    begin, end = (USERS * at // barrier.parties for at in (rank, rank + 1))
    mine = (users >= begin) & (users < end)
    rows = RatingRows(users[mine] - begin, items[mine], r[mine], None if w is None else w[mine])
    descent = Descent(options, ITEMS, UserRatings.of(rows, end - begin, options), mean=mean)
    worker = CcdWorker(ThreadWorker(rank, barrier), vectors, np.arange(begin, end), descent)
    worker.load(0)
    for iteration in range(ITERATIONS):
        worker.iterate(iteration)
    vectors.items.flush()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", [{"biases": True}, {"implicit": True}, {"nonnegative": True}], ids=str)
def test_vectors_when_on_servers_then_as_in_a_process(ps, kind, workers, weighted):
    options, mean = options_of(**kind), 3.0 if "biases" in kind else 0.0
    raw, descent, local = begun(options, weighted, mean)
    vectors = CcdVectors.make(CcdSizes(options, USERS, ITEMS, workers), UNNAMED)
    vectors.write(np.ascontiguousarray(descent.p.T), np.ascontiguousarray(descent.q.T), cells_of(options, raw)[3])
    barrier = threading.Barrier(workers)
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(iterate, rank, barrier, vectors, options, raw, mean) for rank in range(workers)]:
            done.result()
    for _ in range(ITERATIONS):
        local.iterate()
    users, items = vectors.read(ITERATIONS)
    np.testing.assert_allclose(users, descent.p.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(items, descent.q.T, rtol=1e-4, atol=1e-5)


def test_vectors_when_too_large_then_error_names_sizes(ps):
    with pytest.raises(LimitError, match=r"vectors of 2,000,000,000 users and 10 items of rank 5, twice"):
        CcdVectors.make(CcdSizes(options_of(), 2_000_000_000, 10, 2), UNNAMED)
