"""Model averaging without servers, in plain PySpark: the driver averages ("MLlib+MA" in "MLlib*", Zhang et al.)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.ml_data import PARTITIONS, Array, generated_rows
from ps2.algorithms.linear.local_sgd import LocalSteps, local_sgd
from ps2.algorithms.linear.losses.choice import loss_of
from ps2.algorithms.linear.problem import Problem
from ps2.data.rows import LocalRows, number_columns

# Rows of the partitions that a Python worker of Spark has had: pickling them anew would be most of an iteration.
_ROWS: dict[tuple[int, int, int], LocalRows] = {}


def average_centrally(
    spark: Any, problem: Problem, rows: int, rate: float, iterations: int
) -> tuple[Sequence[float], Array]:
    """Average in the driver: the model is broadcast, and comes back whole from each task.

    Args:
        rows: of the generated data.
        rate: step size.

    Returns:
        Seconds of each iteration, and the model.
    """
    parts = spark.sparkContext.parallelize(range(PARTITIONS), PARTITIONS)
    w, seconds = np.zeros(problem.dim), []
    for iteration in range(iterations):
        began_s = time.monotonic()
        sent = spark.sparkContext.broadcast(w)
        step = _Pass(problem, rows // PARTITIONS, rate, iteration, sent)
        w = parts.map(step).treeReduce(add) / PARTITIONS
        sent.unpersist()
        seconds.append(time.monotonic() - began_s)
    return seconds, w


@dataclass(frozen=True, eq=False)
class _Pass:
    """What a task does: a local pass from the broadcast model; the model that comes of it, whole."""

    problem: Problem
    rows: int
    rate: float
    iteration: int
    model: Any

    def __call__(self, number: int) -> Array:
        rows = self._rows_of(number)
        w = self.model.value
        order = np.random.default_rng([number, self.iteration]).permutation(len(rows))
        steps = LocalSteps(1, self.rate, self.problem.l2, self.iteration * len(rows))
        found = local_sgd(loss_of(self.problem), rows, w[rows.keys], np.zeros(1), order, steps)
        whole = found.unused(w)
        whole[rows.keys] = found.w
        return whole

    def _rows_of(self, number: int) -> LocalRows:
        key = (number, self.rows, self.problem.dim)
        if key not in _ROWS:
            columns, values, y = generated_rows(*key[1:], number)
            keys, places = number_columns(columns.reshape(-1))
            indptr = np.arange(0, columns.size + 1, columns.shape[1])
            x = sp.csr_array((values.reshape(-1), places, indptr), shape=(len(y), len(keys)))
            _ROWS[key] = LocalRows(keys, x, y)
        return _ROWS[key]
