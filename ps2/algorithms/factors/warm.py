"""Compile kernels of factorizations (``python -m ps2.algorithms.factors.warm``); else they are at first use."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.factors import ops
from ps2.algorithms.factors.ccd_descent import Descent, Pass
from ps2.algorithms.factors.ccd_ratings import RatingRows, UserRatings
from ps2.algorithms.factors.model import MatrixFactors
from ps2.algorithms.factors.options import FactorOptions


def warm() -> None:
    """Call the kernels on one rating, in the forms in which workers and servers hold them."""
    one, rating = np.zeros(1, np.int64), np.ones(1, np.float32)
    for implicit in (False, True):
        options = FactorOptions(rank=1, solver="ccd", implicit=implicit)
        descent = Descent(options, 1, UserRatings.of(RatingRows(one, one, rating), 1, options))
        descent.evaluate()
        descent.iterate(_solve_items)
    factors = MatrixFactors([0], [0], [[1.0]], [[1.0]])
    factors.recommend(0)
    factors.predict([0], [0])


def _solve_items(one: Pass, sums: np.ndarray, gram: np.ndarray) -> np.ndarray:
    m, kept = np.zeros((2, 1), np.float32), np.ones((4, 1), np.float32)
    places = {"rank": 0, "ranks": 1, "old": 0, "new": 1, "first": 0, "workers": 1, "ridge": 2, "done": 3}
    ops.solve(m, kept, gram, **places, step=2, nonnegative=False)
    return m[1]


if __name__ == "__main__":
    warm()
