"""Compile the kernels of factorizations before their first use (``python -m ps2.algorithms.factors.warm``)."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.factors.ccd_descent import RatingRows, SideDescent, SideRatings, gram_matrix
from ps2.algorithms.factors.ccd_kernels import BLOCK
from ps2.algorithms.factors.grid import Layout, build_grid
from ps2.algorithms.factors.model import MatrixFactors
from ps2.algorithms.factors.plan import FactorizationPlan
from ps2.algorithms.factors.rows import SgdPlan
from ps2.algorithms.factors.settings import FactorizationSettings
from ps2.algorithms.factors.sgd import BlockDescent
from ps2.algorithms.factors.sgd_kernels import draw_rows, squared_errors
from ps2.algorithms.training.table import deal_by_cost
from ps2.array_types import Float32s, Int64s
from ps2.run.rotation import RotationSchedule


def warm() -> None:
    """Call the kernels on one rating, with the array types of drivers, workers and servers."""
    deal_by_cost(np.ones(1, np.int64), 1)
    _compile_sgd()
    _compile_ccd()
    factors = MatrixFactors([0], [0], [[1.0]], [[1.0]])
    factors.recommend(0)
    factors.predict([0], [0])


def _compile_ccd() -> None:
    indices = np.zeros(1, np.int32)
    for implicit in (False, True):
        settings = FactorizationSettings(rank=1, solver="ccd", implicitPrefs=implicit, biases=not implicit)
        plan = FactorizationPlan(settings=settings)
        ratings = SideRatings.from_rows(RatingRows(indices, indices, np.ones(1, np.float32)), 1, plan)
        side = SideDescent(plan, ratings, held_out=ratings)
        side.solve(_ZeroVectors, gram_matrix(np.zeros((1, BLOCK), np.float32)) if implicit else np.zeros((0, 0)))


class _ZeroVectors:
    """A request for vectors (``ccd_descent.Request``) that is answered at once."""

    def __init__(self, columns: Int64s) -> None:
        self._count = len(columns)

    def result(self) -> Float32s:
        return np.zeros((self._count, BLOCK + 1), np.float32)


def _compile_sgd() -> None:
    plan = SgdPlan(settings=FactorizationSettings(rank=1), scale=1.0)
    rows = np.empty((1, plan.width), np.float32)
    draw_rows(np.zeros(1, np.int64), np.uint64(0), 1, 0.0, 1.0, rows)
    layout = Layout(RotationSchedule(1, 1, 1), 1, np.array([0, 1]), np.array([0, 1]))
    index, value = np.zeros(1, np.int32), np.ones(1, np.float32)
    grid = build_grid(layout, (0, 1), (index, index, value, value))
    descent = BlockDescent(grid, plan, 0, rows.copy())
    descent.train_stratum(0, descent.strata(0)[0], 1, rows, None)
    squared_errors(index, index, value, value, rows, rows, 1, False)


if __name__ == "__main__":
    warm()
