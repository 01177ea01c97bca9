"""Cut points of float64 features, by sums on servers that several workers add to."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.trees.driver_messages import AddCells
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.worker import CutPointWork
from ps2.data.rows import LocalRows
from tests.in_process import training_context

ROWS, BINS = 600, 40


@pytest.fixture(scope="module", params=[1, 3], autouse=True)
def ps(request):
    with training_context(request.param) as ps:
        yield ps


def features():
    """Columns of few and of many values; of these some lie close together."""
    rng = np.random.default_rng(0)
    steps = rng.permutation(ROWS)
    return np.column_stack(
        [
            steps % 2 + 20240115.0,
            (steps % 7) * 0.1,
            steps % 30 + 2.0**40 + 0.25,
            1.7e12 + steps / 1024,
            np.where(steps < 300, 0.0, rng.normal(size=ROWS)),
            np.where(steps == 0, -1e300, 1.0 + steps * 2.0**-52),
            np.exp(rng.normal(size=ROWS)),
            np.full(ROWS, 0.1),
        ]
    )


def cut(x, workers, weights=None, sparse=False, goes_back_at=None):
    problem = TreeProblem(Objective("logistic"), x.shape[1], (0.0,))
    sums = Quantiles.make(problem, BINS, None if weights is None else float(weights.mean()))
    workers_rows = []
    for mine in np.array_split(np.arange(len(x)), workers):
        held = sp.csr_array(x[mine]) if sparse else full(x[mine])
        of_rows = None if weights is None else weights[mine]
        workers_rows.append(LocalRows(np.arange(x.shape[1]), held, np.zeros(len(mine)), of_rows))
    works = [CutPointWork(sums, rows) for rows in workers_rows]
    for task in sums.find_cut_points(lambda question: question()):
        if task == goes_back_at:
            do_as_servers_go_back(sums, works, task)
            works = [CutPointWork(sums, rows) for rows in workers_rows]
        for work in works:
            work(task)
    bins = sums.cut()
    sums.free()
    return bins


def full(x):
    columns = np.tile(np.arange(x.shape[1]), len(x))
    return sp.csr_array((x.reshape(-1), columns, np.arange(len(x) + 1) * x.shape[1]), shape=x.shape)


def cuts_of(bins, feature):
    return bins.cuts[bins.cut_offsets[feature] : bins.cut_offsets[feature + 1]]


def test_cuts_when_values_are_few_then_each_two_are_parted():
    x = features()
    bins = cut(x, 2)
    for feature in (0, 1, 2, 7):
        values = np.unique(x[:, feature])
        cuts = cuts_of(bins, feature)
        assert len(cuts) == len(values) - 1
        assert ((values[:-1] <= cuts) & (cuts < values[1:])).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_cuts_when_values_are_many_then_bins_hold_about_as_much(weighted):
    x = features()
    weights = np.random.default_rng(1).integers(1, 4, ROWS) / 2 if weighted else None
    bins = cut(x, 2, weights)
    for feature in (3, 4, 5, 6):
        held = np.sort(np.bincount(np.searchsorted(cuts_of(bins, feature), x[:, feature])))
        assert len(held) >= 0.8 * BINS
        assert held[-2] <= 2 * ROWS / BINS


@pytest.mark.parametrize(("sparse", "weighted"), [(False, True), (True, False)])
def test_cuts_when_rows_lie_otherwise_then_are_the_same(weighted, sparse):
    x, order = features(), np.random.default_rng(2).permutation(ROWS)
    if sparse:
        x[:, 1:7][np.random.default_rng(3).random((ROWS, 6)) < 0.9] = 0
        x[:, [0, 7]] = 0
    weights = np.random.default_rng(1).random(ROWS) if weighted else None
    one = cut(x, 1, weights, sparse)
    three = cut(x[order], 3, None if weights is None else weights[order], sparse)
    np.testing.assert_array_equal(one.cuts, three.cuts)
    np.testing.assert_array_equal(one.cut_offsets, three.cut_offsets)
    if sparse:
        dense = cut(x, 2, weights)
        np.testing.assert_array_equal(one.cuts, dense.cuts)


def do_as_servers_go_back(sums, works, task):
    """Do a task while the sums of earlier turns are gone; then the servers are as they were before it."""
    earlier = [turn.pull() for turn in sums.cell_weights[: task.turn]]
    for turn in sums.cell_weights:
        turn.zero()
    for work in works:
        work(task)
    sums.cell_weights[task.turn].zero()
    for turn, (keys, weights) in zip(sums.cell_weights, earlier, strict=False):
        turn.push(weights, keys)


def test_cuts_when_fleet_rolls_back_then_workers_begin_again():
    x = features()
    np.testing.assert_array_equal(cut(x, 2, goes_back_at=AddCells(2)).cuts, cut(x, 2).cuts)
