"""Compile all losses' kernels (``python -m ps2.algorithms.linear.losses.warm``); else workers do at first use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.linear.local_sgd import LocalSteps, local_sgd
from ps2.algorithms.linear.losses.choice import loss_of
from ps2.algorithms.linear.losses.softmax import SoftmaxLoss
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.linear.scaling import column_sums, scaled, shrinking, squared_distances
from ps2.algorithms.training.table import Facts
from ps2.data.row_spill import RowSpill
from ps2.data.rows import Float, LocalRows, Rows
from ps2.data.spilling import Spill

DTYPES: tuple[Float, ...] = ("float64", "float32")


def warm() -> None:
    """Call every loss on two rows, in the forms in which workers hold them."""
    for dtype in DTYPES:
        rows = _rows(dtype)
        for problem in _problems():
            loss = loss_of(problem)
            w = np.zeros(len(rows.keys) * problem.width, dtype)
            b = np.zeros(problem.biases)
            loss.gradient(rows, w, b)
            loss.loss(rows, w, b)
            loss.margins(rows.x, w, b)
            loss.beginning(rows.keys, 0)
            if isinstance(loss, SoftmaxLoss):
                loss.factors(rows, w, b)
            if problem.loss == "logistic":
                local_sgd(loss, rows, w, b, np.arange(2), LocalSteps(1, 0.1))
        sums = column_sums(rows, Facts(2, 2.0, 2.0, (), 0.0, 0.0))
        scaled(rows, squared_distances(rows, sums.means, shrinking(sums.sizes)))
        rows.take([0])
        _read_from_file(dtype)
    for problem in _problems():
        _predict(problem)


def _problems() -> Iterator[Problem]:
    yield Problem("logistic", 2)  # the kernels of all losses of margins
    yield Problem("softmax", 2, width=2)
    yield Problem("fmSquared", 2, width=2)


def _read_from_file(dtype: Float) -> None:
    spill = RowSpill(Spill("always", 1), 0, 1)
    for columns in ([0, 2], [0, 0]):
        x = sp.csr_array((np.ones(2, dtype), np.array(columns, np.int32), np.array([0, 1, 2], np.int32)), shape=(2, 4))
        spill.append(Rows(x, np.ones(2)))
    rows, _ = spill.finished()
    rows.take([0, 2, 3])


def _predict(problem: Problem) -> None:
    """Call a loss's margins on rows as ``transform`` has them: 64-bit columns, and values that Arrow may own."""
    w, b = np.zeros(2 * problem.width), np.zeros(problem.biases)
    for writeable in (True, False):
        values = np.ones(2)
        values.flags.writeable = writeable
        x = sp.csr_array((values, np.arange(2), np.array([0, 1, 2])), shape=(2, 2))
        loss_of(problem).margins(x, w, b)


def _rows(dtype: Float) -> LocalRows:
    x = sp.csr_array((np.ones(2, dtype), np.array([0, 1], np.int32), np.array([0, 1, 2])), shape=(2, 2))
    return Rows(x, np.array([0.0, 1.0])).localize()


if __name__ == "__main__":
    warm()
