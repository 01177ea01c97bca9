"""The budget of a rotation's turns follows from measured turns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ps2.run.rotation import MIN_DONE, MIN_WORKER_DONE, WINDOW, TurnBudget


def told(wholes_s, transfer_s=0.0, rest_s=0.0, turns=4, budget_s=math.inf):
    """Let each worker end some turns on blocks that take it so long."""
    budget = TurnBudget(len(wholes_s))
    for _ in range(turns):
        for rank, whole_s in enumerate(wholes_s):
            work_s = min(whole_s, budget_s)
            budget.add(rank, work_s, 1 - work_s / whole_s, rest_s, transfer_s)
    return budget.seconds


def test_budget_when_a_worker_has_not_ended_a_turn_then_none():
    budget = TurnBudget(2)
    assert budget.seconds == math.inf
    budget.add(0, 1.0, 0.0, 0.0, 0.0)
    assert budget.seconds == math.inf
    budget.add(1, 1.0, 0.0, 0.0, 0.0)
    assert budget.seconds == pytest.approx(1.0)


def test_budget_when_workers_are_alike_then_blocks_are_done():
    assert told([1.0, 1.02, 0.98, 1.01]) == pytest.approx(1.02)


def test_budget_when_some_are_slow_then_near_the_fast_ones():
    assert told([1.0, 3.0, 3.0, 10.0]) == pytest.approx(1.0, rel=0.3)


@pytest.mark.parametrize("budget_s", [1.0, 0.5])
def test_budget_when_turns_were_cut_short_then_estimates_hold(budget_s):
    assert told([1.0, 3.0, 3.0, 10.0], budget_s=budget_s) == pytest.approx(told([1.0, 3.0, 3.0, 10.0]))


def test_budget_when_blocks_travel_long_then_computing_hides_it():
    assert told([1.0, 3.0, 3.0, 10.0], transfer_s=2.5) == pytest.approx(2.5)
    assert told([1.0, 2.6], transfer_s=2.5) == pytest.approx(2.6)


def test_budget_when_turns_cost_more_than_work_then_is_longer():
    assert told([1.0, 3.0], rest_s=2.0) == pytest.approx(3.0)
    assert told([1.0, 3.0], rest_s=9.0) == pytest.approx(12.0)


def test_budget_when_one_is_far_slower_then_bounds_what_is_left():
    assert told([0.1, 0.1, 0.1, 100.0]) >= 100.0 * MIN_WORKER_DONE
    slow = told([0.1, 100.0, 100.0, 100.0, 100.0, 100.0])
    assert (1 + 5 * min(slow / 100.0, 1.0)) / 6 >= MIN_DONE


def test_budget_when_speeds_change_then_forgets_old_turns():
    budget = TurnBudget(2)
    for whole_s in (1.0, 5.0):
        for _ in range(WINDOW):
            for rank in range(2):
                budget.add(rank, whole_s, 0.0, 0.0, 0.0)
        assert budget.seconds == pytest.approx(whole_s)


def test_budget_when_a_worker_has_no_work_then_others_count():
    budget = TurnBudget(2)
    budget.add(0, 0.0, 0.0, 0.0, 0.0)
    assert budget.seconds == math.inf
    budget.add(1, 2.0, 0.0, 0.0, 0.0)
    assert budget.seconds == pytest.approx(2.0)


def test_budget_when_turns_differ_then_none_wastes_much():
    """Compared with all budgets, by simulating turns."""
    rng = np.random.default_rng(1)
    wholes = rng.pareto(2.0, (4, WINDOW)) + 0.5
    budget = TurnBudget(4)
    for turn in range(WINDOW):
        for rank in range(4):
            budget.add(rank, wholes[rank, turn], 0.0, 0.1, 0.3)

    def done_a_second(budget_s):
        return (np.clip(budget_s - 0.1, 0, wholes) / wholes).mean() / max(budget_s, 0.3)

    best = max(done_a_second(one) for one in np.linspace(0.1, wholes.max(), 500))
    assert done_a_second(budget.seconds) > 0.92 * best
