"""Factors of ratings in files are those of ratings in memory, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ps2.algorithms.factors.plan import FactorizationPlan
from ps2.algorithms.factors.ratings import RatingColumns
from ps2.data.spilling import Spill
from tests.factors_training import PLAN, fitted, plan_of, ratings
from tests.plans import changed

CCD = plan_of(rank=5, maxIter=3, solver="ccd", seed=3)
COLUMNS = RatingColumns(), RatingColumns(weight="weight", validation="held")


@pytest.fixture(autouse=True)
def tiny_blocks(monkeypatch):
    """Let each worker have many runs of ratings, and many ranges of users."""
    monkeypatch.setattr(FactorizationPlan, "spilling", property(lambda plan: Spill(plan.settings.spill, 2048, 512)))


def assert_same_vectors(plan, columns, **options):
    """Train on ratings of positive values, in files and in memory."""
    inputs = ratings()
    inputs = replace(inputs, values=abs(inputs.values))
    spilled, expected = (fitted(changed(plan, spill=mode), columns, given=inputs, **options) for mode in MODES)
    assert spilled.user_factors.tolist() == expected.user_factors.tolist()
    assert spilled.item_factors.tolist() == expected.item_factors.tolist()
    assert spilled.history.objective == expected.history.objective
    assert spilled.history.validation == expected.history.validation
    assert [len(spilled.history.spilled), len(expected.history.spilled)] == [2, 0]


MODES = "always", "never"


@pytest.mark.parametrize("columns", COLUMNS, ids=["plain", "weighted"])
@pytest.mark.parametrize("groups", [1, 2])
def test_sgd_when_ratings_are_in_files_then_same_vectors(columns, groups):
    assert_same_vectors(changed(PLAN, biases=True), columns, groups=groups)


@pytest.mark.parametrize("columns", COLUMNS, ids=["plain", "weighted"])
@pytest.mark.parametrize("implicit", [False, True])
def test_ccd_when_ratings_are_in_files_then_same_vectors(columns, implicit):
    assert_same_vectors(changed(CCD, implicitPrefs=implicit, biases=not implicit), columns)


@pytest.mark.parametrize("plan", [PLAN, CCD], ids=["sgd", "ccd"])
def test_spill_when_auto_and_ratings_are_many_then_uses_files(plan):
    assert len(fitted(changed(plan, spill="auto")).history.spilled) == 2
