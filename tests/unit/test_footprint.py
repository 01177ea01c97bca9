"""What a training takes is told before it begins, never more than it does take, and what is too much names why."""

from __future__ import annotations

import pytest
from training import change_plan, plan_of

from ps2.algorithms.linear.footprint import ROWS, check_features, check_fleet, fleet_bytes, rows_of, worker_bytes
from ps2.algorithms.linear.parameters import SPARSE_FROM
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.trainer import SOLVERS
from ps2.errors import LimitError

GIB = 1 << 30
MACHINE = Problem("fmLogistic", dim=2, width=1 + 10**9, standardize=False)
ADAM = plan_of("minibatch")


def test_solvers_when_listed_then_each_has_a_footprint():
    assert set(ROWS) == set(SOLVERS)
    assert all(worker_bytes(Problem("logistic", 1), plan_of(solver), 1) > 0 for solver in SOLVERS)


@pytest.mark.parametrize("solver", sorted(set(SOLVERS) - {"normal"}))
def test_fleet_bytes_when_dense_then_all_rows_and_sums_count(solver):
    rows = rows_of(plan_of(solver))
    assert fleet_bytes(Problem("logistic", 1000), plan_of(solver)) == 8 * 1000 * (rows + 4)
    sums = 4 if solver == "l-bfgs" else 0
    assert fleet_bytes(Problem("softmax", 1000, 5, standardize=False), plan_of(solver)) == 8 * 1000 * (5 * rows + sums)


def test_fleet_bytes_when_solver_is_normal_then_products_count():
    of_products = 1000 * 1001 // 2 + 1001
    assert fleet_bytes(Problem("squared", 1000), plan_of("normal")) == 8 * (1000 * (ROWS["normal"] + 4) + of_products)


def test_fleet_bytes_when_vectors_are_long_then_one_counts():
    wide = Problem("softmax", SPARSE_FROM, 5, standardize=False)
    assert fleet_bytes(wide, ADAM) == 5 * (4 * rows_of(ADAM) + 8)


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("gd", 0), ("adagrad", 1), ("adam", 2), ("adamW", 2)])
def test_rows_when_an_optimizer_keeps_state_then_count_it(optimizer, states):
    assert rows_of(change_plan(ADAM, optimizer=optimizer)) == ROWS["minibatch"] + states


def test_fleet_when_factors_do_not_fit_then_error_names_sizes():
    message = (
        r"^factorSize=1,000,000,000 and 2 features make 2,000,000,002 weights: solver 'minibatch' keeps up to 7 "
        r"vectors of them, at least 36,000,000,036 bytes, and 15,032,385,536 are left on the 2 servers, whose limits "
        r"are 17,179,869,184 together"
    )
    with pytest.raises(LimitError, match=message):
        check_fleet(MACHINE, ADAM, [(8 * GIB, GIB), (8 * GIB, GIB)])


def test_worker_when_features_do_not_fit_then_error_names_sizes():
    message = (
        r"^5 classes and 10,000,000 features make 50,000,000 weights: the rows of one worker use 1,000,000 features"
    )
    with pytest.raises(LimitError, match=message + r".* at least 100,000,000 bytes, and 9,999 are left on its machine"):
        check_features(Problem("softmax", 10**7, 5), plan_of("minibatch"), 10**6, 9_999)


@pytest.mark.parametrize("solver", SOLVERS)
def test_checks_when_a_training_just_fits_then_none_fails(solver):
    problem, recipe = Problem("logistic", 1000), plan_of(solver)
    check_fleet(problem, recipe, [(fleet_bytes(problem, recipe) + 7, 7)])
    check_features(problem, recipe, 1000, worker_bytes(problem, recipe, 1000))
    with pytest.raises(LimitError, match=r"^1,000 features: "):
        check_fleet(problem, recipe, [(fleet_bytes(problem, recipe), 1)])
