"""Rows in files train the same model, and the history says where they are."""

from __future__ import annotations

import os

import numpy as np
import pytest
from training import change_plan, fit, make, plan_of

from ps2.algorithms.linear.plan import Problem

TRAININGS = {
    "l-bfgs": plan_of(maxIter=6),
    "minibatch": plan_of("minibatch", optimizer="ftrl", maxIter=6, miniBatchFraction=0.4, lazy=True),
    "ftsgd": plan_of("ftsgd", maxIter=2, miniBatchFraction=0.5),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_training_when_rows_are_in_files_then_same_weights(name):
    dim = 5 if name == "l-bfgs" else 40
    rows, stride = make(n=200, dim=dim, cuts=(90,), zeros=0.0 if dim == 5 else 0.9), None if dim == 5 else 7
    problem = Problem("logistic", dim if stride is None else (dim - 1) * stride + 1)
    spilled, expected = (
        fit(rows, problem, change_plan(TRAININGS[name], spill=spill), stride=stride) for spill in ("always", "never")
    )
    assert (spilled.w.tolist(), spilled.biases.tolist()) == (expected.w.tolist(), expected.biases.tolist())
    assert np.count_nonzero(spilled.w)
    files = spilled.history.spilled
    assert len(files) == 2
    assert all(file.bytes > 0 and os.path.isdir(file.folder) for file in files)
    assert expected.history.spilled == ()
