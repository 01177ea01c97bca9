"""Losses, gradients and scales of rows in a file are those of rows in memory, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from training import plan_of

from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.scaling import column_sums, scaled, shrink_factors, squared_distances
from ps2.algorithms.linear.solvers.least_squares import products, residual_products
from ps2.algorithms.linear.solvers.solver import Data
from ps2.algorithms.training.table import Facts
from ps2.data.row_spill import RowSpill
from ps2.data.rows import Rows
from ps2.data.spilling import Spill
from ps2.errors import ConfigError

ROWS, DIM = 1500, 12
PROBLEMS = [
    Problem("logistic", DIM),
    Problem("squared", DIM),
    Problem("huber", DIM),
    Problem("softmax", DIM, width=2),
    Problem("fmLogistic", DIM, width=3),
]


@pytest.fixture(scope="module", params=["sparse", "dense"])
def both(request):
    """The same rows in memory, and in a file of many blocks."""
    rng = np.random.default_rng(7)
    dense = rng.normal(size=(ROWS, DIM)) + 3.0
    if request.param == "sparse":
        dense *= rng.random((ROWS, DIM)) < 0.2
    x = sp.csr_array(dense)
    x = sp.csr_array((x.data, x.indices.astype(np.int32), x.indptr.astype(np.int32)), shape=x.shape)
    rows = Rows(x, rng.integers(0, 2, ROWS).astype(float), rng.random(ROWS))
    spill = RowSpill(Spill("always", 1 << 30, 4096), 0, 1)
    spill.append(rows)
    result, _ = spill.finish()
    assert len(result.stored.blocks) > 10
    return rows.localize(), result


@pytest.mark.parametrize("problem", PROBLEMS, ids=[problem.loss for problem in PROBLEMS])
def test_gradient_when_rows_are_in_a_file_then_equal_to_the_bit(both, problem):
    loss, rng = loss_of(problem), np.random.default_rng(1)
    w, b = rng.normal(size=problem.size), rng.normal(size=problem.biases)
    local, result = (loss.gradient(rows, w, b) for rows in both)
    assert (result.loss, result.weight) == (local.loss, local.weight)
    assert np.array_equal(result.dw, local.dw)
    assert np.array_equal(result.db, local.db)
    assert loss.loss(both[1], w, b) == loss.loss(both[0], w, b)


def test_scales_when_rows_are_in_a_file_then_equal_to_the_bit(both):
    facts = Facts(ROWS, 750.0, 400.0, (), 0.0, 0.0)
    local, result = (column_sums(rows, facts) for rows in both)
    assert np.array_equal([result.means, result.weights, result.sizes], [local.means, local.weights, local.sizes])
    h = shrink_factors(local.sizes)
    assert np.array_equal(*(squared_distances(rows, local.means, h) for rows in both))
    factors = np.random.default_rng(2).random(DIM)
    blocks = [scaled(block, factors).x.data for block in both[1].blocks()]
    assert np.array_equal(np.concatenate(blocks), scaled(both[0], factors).x.data)


def test_products_when_rows_are_in_a_file_then_close(both):
    mean, w = np.full(DIM, 2.0), np.random.default_rng(3).normal(size=DIM)
    local, result = (products(rows, mean, 0.5).packed() for rows in both)
    np.testing.assert_allclose(result, local, rtol=1e-12)
    local, result = (residual_products(rows, mean, 0.5, w) for rows in both)
    np.testing.assert_allclose(result, local, rtol=1e-11)


def test_minibatch_when_rows_are_in_a_file_then_same_rows(both):
    local, result = (Data(rows).sample(0.3, np.random.default_rng(4)) for rows in both)
    assert np.array_equal(result.x.data, local.x.data)
    assert np.array_equal(result.y, local.y)


@pytest.mark.parametrize("solver", ["ma-sgd", "sap"])
def test_spill_when_solver_keeps_rows_then_config_error(solver):
    with pytest.raises(ConfigError, match=f"spill: solver '{solver}' keeps its rows in memory"):
        plan_of(solver, spill="always")
    assert plan_of(solver).spilling is None
