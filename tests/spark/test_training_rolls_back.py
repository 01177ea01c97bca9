"""Training goes on, and ends as it would have, when the fleet rolls back to a checkpoint."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from faults import processes
from training import make

from ps2 import PS2Context
from ps2.algorithms.linear.problem import Problem, SolverOptions
from ps2.algorithms.linear.trainer import train
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table

PROBLEM = Problem("logistic", 5, l2=0.001)


@pytest.fixture(scope="module")
def ps(spark, tmp_path_factory):
    with PS2Context.getOrCreate(
        spark,
        servers=2,
        checkpointDir=str(tmp_path_factory.mktemp("checkpoints")),
        checkpointEverySteps=4,
    ) as context:
        yield context


@pytest.mark.parametrize(
    "recipe",
    [SolverOptions(steps=8, tol=0.0), SolverOptions(solver="ftsgd", steps=8, step_size=12.0, local_steps=4)],
    ids=["l-bfgs", "ftsgd"],
)
def test_training_when_fleet_rolls_back_then_same_model(ps, spark, recipe):
    rows = replace(make(cuts=(20,)), c=np.ones(60))
    table, facts, killed = Table(rows.frame(spark), ColumnNames(), 2), rows.facts(2), []

    def kill(report):
        if report.number == 7 and not killed:
            killed.append(report.number)
            processes.kill(processes.servers_of(ps)[0])

    expected = train(ps, table, PROBLEM, recipe, facts)
    made = train(ps, table, PROBLEM, recipe, facts, kill)
    assert killed
    assert ps.recoveries[-1].rolledBack
    np.testing.assert_allclose(made.weight.pull(), expected.weight.pull(), rtol=1e-12)
    np.testing.assert_allclose(made.biases, expected.biases, rtol=1e-12)
    assert made.history.objective == pytest.approx(expected.history.objective, rel=1e-12)
    assert (made.history.steps, made.history.rows) == (expected.history.steps, expected.history.rows)
    for model in (made, expected):
        model.weight.free()
