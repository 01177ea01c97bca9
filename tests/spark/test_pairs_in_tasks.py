"""``pairUpdate`` in tasks: as in the driver; no change of another task is lost; a retried task counts once."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV

pytestmark = [pytest.mark.usefixtures("by_value"), pytest.mark.parametrize("via", ["servers", "rows", "auto"])]

DIM, TASKS, STEPS = 12, 4, 5
ROWS = 1 + TASKS * STEPS
A, B = [0, 1, 0, 3], [1, 2, 2, 3]
START = np.random.default_rng(0).normal(size=(ROWS, DIM))


def a_matrix():
    return DCV.dense(DIM, ROWS, "float64").matrix().push(range(ROWS), START)


def test_pair_update_when_in_a_task_then_as_in_the_driver(ps, sc, via):
    here, there = a_matrix(), a_matrix()
    expected = here.pairUpdate(A, B, np.tanh, via)
    (result,) = sc.parallelize([0], 1).mapPartitions(lambda _: [there.pairUpdate(A, B, np.tanh, via)]).collect()
    np.testing.assert_allclose(result, expected)
    np.testing.assert_allclose(there.pull(range(ROWS)), here.pull(range(ROWS)))


def test_pair_update_when_tasks_share_row_then_no_change_is_lost(ps, sc, via):
    m = a_matrix()

    def work(numbers):
        # Row 0 is in every pair and every other row in one, so what row 0 gets does not depend on the order.
        for task in numbers:
            for row in range(1 + task * STEPS, 1 + (task + 1) * STEPS):
                m.pairUpdate([0], [row], lambda dots: np.ones(1), via)

    sc.parallelize(range(TASKS), TASKS).foreachPartition(work)
    np.testing.assert_allclose(m.pull([0])[0], START.sum(axis=0))


def test_pair_update_when_its_task_is_retried_then_counts_once(ps, sc, via):
    from pyspark import TaskContext

    m = a_matrix()

    def work(_):
        m.pairUpdate([0], [1], lambda dots: np.ones(1), via)
        m.add([0], np.ones((1, DIM)))
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("this attempt dies")

    sc.parallelize([0], 1).foreachPartition(work)
    np.testing.assert_allclose(m.pull([0])[0], START[0] + START[1] + 1)
