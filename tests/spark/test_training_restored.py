"""A driver is lost while a linear model is trained with rows held out: another one ends with the same best model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from training import make

from ps2 import PS2Context
from ps2.algorithms.linear.problem import Problem, SolverOptions
from ps2.algorithms.linear.trainer import train
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table

PROBLEM = Problem("logistic", 5, l1=0.001, l2=0.01)
OPTIONS = SolverOptions(solver="minibatch", optimizer="ftrl", steps=60, step_size=0.5, validate=True, name="linear")


class DriverDies(Exception):
    """The driver is lost after a step."""


def fit(ps, frame, facts, dies_after=None):
    def on_step(report):
        if report.number == dies_after:
            raise DriverDies

    return train(ps, Table(frame, ColumnNames(validation="held"), 2), PROBLEM, OPTIONS, facts, on_step)


@pytest.fixture(scope="module")
def rows():
    """Rows held out have random labels: after some steps, the model gets worse for them."""
    rows, held = make(cuts=(20,)), np.arange(60) % 3 == 0
    noisy = held & (np.random.default_rng(3).random(60) < 0.4)
    return replace(rows, y=np.where(noisy, 1 - rows.y, rows.y), c=np.ones(60), held=held)


def test_fit_when_its_driver_is_lost_then_another_has_the_best(spark, tmp_path, rows):
    """One dies before the end, another after STOP: of the latter's checkpoint no clock is left to do."""
    frame, facts, folder = rows.frame(spark), rows.facts(2), str(tmp_path)
    often = {"checkpointDir": folder, "checkpointEverySteps": 1}
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        whole = fit(ps, frame, facts)
        expected, steps = whole.weight.pull(), whole.history.steps
    assert "held out" in whole.history.reason
    assert 2 < steps < OPTIONS.steps
    with PS2Context.getOrCreate(spark, servers=2, **often) as ps, pytest.raises(DriverDies):
        fit(ps, frame, facts, dies_after=steps)
    for clocks in (2, 0):
        with PS2Context.getOrCreate(spark, servers=1, restore=folder, **often) as ps:
            made = fit(ps, frame, facts)
            np.testing.assert_allclose(made.weight.pull(), expected, rtol=1e-12)
            assert len(made.history.validation) == clocks
