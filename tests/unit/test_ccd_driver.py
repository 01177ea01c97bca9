"""Coordinate descent with servers and workers in this process: rollbacks, and the best iteration."""

from dataclasses import replace

import numpy as np
import pytest
from descents import positive, replayed_descent
from factors_training import COLUMNS, PLAN, fitted, ratings

from tests.in_process import training_context
from tests.plans import changed

CCD = changed(PLAN, solver="ccd", rank=6, stepSize=None)
KINDS = [{"biases": True}, {"implicitPrefs": True}]


def run(plan, columns=COLUMNS, rollback_seed=None):
    with training_context() as ps:
        ps.rollback_seed = rollback_seed
        return fitted(plan, columns, workers=1, given=positive(ratings()), ps=ps)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("rollback_seed", [None, 1], ids=["", "rolled back"])
def test_descent_when_worker_restarts_then_matches_serial(kind, rollback_seed):
    plan = changed(CCD, **kind)
    result = run(plan, rollback_seed=rollback_seed)
    users, items = replayed_descent(plan, workers=1)
    np.testing.assert_array_equal(result.user_factors, users)
    np.testing.assert_array_equal(result.item_factors, items)
    assert result.history.steps == plan.settings.maxIter


def test_descent_when_validation_is_stuck_then_best_vectors():
    plan, columns = changed(CCD, maxIter=60, patience=2, regParam=0.0, rank=12), replace(COLUMNS, validation="held")
    result = run(plan, columns)
    best, losses = result.history.best, result.history.validation
    assert best < result.history.steps == len(losses) < 60
    assert losses[best - 1] == min(losses)
    assert f"the vectors are those of iteration {best}" in result.history.reason
    users, items = replayed_descent(changed(plan, maxIter=best), columns, workers=1)
    np.testing.assert_array_equal(result.user_factors, users)
    np.testing.assert_array_equal(result.item_factors, items)
