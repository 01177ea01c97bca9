"""A training that ends worse than it began is warned of, or an error."""

from __future__ import annotations

import logging

import pytest
from training import plan_of

from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.solvers.monitors import ObjectiveMonitor
from ps2.algorithms.linear.solvers.solver import SolverContext
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import Record
from ps2.errors import DivergedError, InputError


def monitor(solver="ma-sgd", fraction=1.0):
    options = plan_of(solver, miniBatchFraction=fraction, stepSize=7.0)
    problem, record = Problem("logistic", 3), Record(lambda step: None)
    # It needs no vectors, and no rows but their sums.
    context = SolverContext(problem, options, None, loss_of(problem), None, None, record, 2, ColumnNames())
    return ObjectiveMonitor(context), record


def ended(objectives, **asked):
    created, record = monitor(**asked)
    for step, value in enumerate(objectives):
        record.add_objective(created.objective(step, 2.0 * value, 2.0, 0.0))
    created.check_end()


@pytest.mark.parametrize(
    ("solver", "fraction", "last", "is_said"),
    [
        ("ma-sgd", 1.0, 1.02, True),
        ("ma-sgd", 1.0, 1.005, False),
        ("ftsgd", 0.1, 1.02, True),
        ("minibatch", 1.0, 1.02, True),
        ("minibatch", 0.1, 1.9, False),
        ("minibatch", 0.1, 2.1, True),
    ],
)
def test_end_when_objective_has_grown_then_warns(solver, fraction, last, is_said, caplog):
    with caplog.at_level(logging.WARNING):
        ended([1.0, 0.8, last], solver=solver, fraction=fraction)
    assert ("the objective has grown from 1 to" in caplog.text) == is_said
    assert ("stepSize 7 is too large" in caplog.text) == is_said


def test_end_when_objective_is_a_thousand_fold_then_error():
    with pytest.raises(DivergedError, match="the objective has grown from 1 to 1001"):
        ended([1.0, 1001.0])


def test_note_when_objective_is_no_number_then_says_since_when():
    with pytest.raises(DivergedError, match="after step 1 the objective is nan, and it was 1 before"):
        ended([1.0, float("nan")])
    with pytest.raises(InputError, match="before the first step"):
        ended([float("inf")])


def test_note_when_minibatch_has_no_row_then_it_is_unknown():
    created, record = monitor("minibatch", 0.1)
    record.add_objective(created.objective(0, 0.0, 0.0, 0.5))
    record.add_objective(created.objective(1, 3.0, 1.0, 0.0))
    created.check_end()
