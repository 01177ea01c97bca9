"""The line search ends where the Wolfe conditions hold, with few evaluations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ps2.algorithms.linear.solvers.descent import CURVATURE, MAX_EVALUATIONS, SUFFICIENT, LineSearch

FUNCTIONS = {
    "parabola": (lambda t: (t - 1) ** 2, lambda t: 2 * (t - 1)),
    "far": (lambda t: (t - 300) ** 2, lambda t: 2 * (t - 300)),
    "near": (lambda t: (1e3 * t - 1) ** 2, lambda t: 2e3 * (1e3 * t - 1)),
    "quartic": (lambda t: (t - 2) ** 4 - t, lambda t: 4 * (t - 2) ** 3 - 1),
    "logistic": (lambda t: np.logaddexp(0, -t) + 0.01 * t, lambda t: -1 / (1 + np.exp(t)) + 0.01),
    "kink": (lambda t: abs(t - 0.3), lambda t: 1.0 if t > 0.3 else -1.0),
}


def searched(f, slope, first=1.0, **how):
    search = LineSearch(f(0.0), slope(0.0), first, **how)
    while not search.accepts(f(search.step), slope(search.step)):
        pass
    return search


@pytest.mark.parametrize("name", FUNCTIONS)
def test_search_when_it_ends_then_the_weak_wolfe_conditions_hold(name):
    f, slope = FUNCTIONS[name]
    search = searched(f, slope)
    assert f(search.step) <= f(0) + SUFFICIENT * search.step * slope(0)
    assert slope(search.step) >= CURVATURE * slope(0)
    assert search.evaluations <= 12


def test_search_when_first_point_is_good_then_tries_no_other():
    assert searched(*FUNCTIONS["parabola"]).evaluations == 1


def test_search_when_point_is_too_far_then_uses_parabola_minimum():
    search = searched(*FUNCTIONS["parabola"], first=4.0)
    assert (search.step, search.evaluations) == (pytest.approx(1.0), 2)


@pytest.mark.parametrize("wild", [math.inf, math.nan])
def test_search_when_objective_is_nan_then_goes_halfway_back(wild):
    search = LineSearch(1.0, -1.0, 1.0)
    assert not search.accepts(wild, math.nan)
    assert search.step == 0.5


def test_search_when_curvature_is_not_required_then_takes_steep():
    assert searched(*FUNCTIONS["far"], curvature=False).evaluations == 1


def test_search_when_told_what_to_expect_then_compares_with_that():
    search = LineSearch(1.0, -1.0, 1.0, curvature=False)
    assert not search.accepts(0.9, 0.0, decrease=-2000.0)
    assert search.accepts(0.9, 0.0, decrease=-0.5)


def test_search_when_a_rise_is_expected_then_accepts_none():
    assert not LineSearch(1.0, -1.0, 1.0, curvature=False).accepts(1.0 + 1e-9, 0.0, decrease=1.0)


def test_search_when_nothing_is_smaller_then_reports_evaluations():
    search = LineSearch(0.0, -1.0, 1.0)
    for _ in range(MAX_EVALUATIONS - 1):
        assert not search.accepts(1.0, 1.0)
    with pytest.raises(ArithmeticError, match=f"within {MAX_EVALUATIONS} evaluations"):
        search.accepts(1.0, 1.0)
