"""Steps of factorizations agree with NumPy's, rating by rating."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from factors_training import COLUMNS, PLAN, ratings, replayed, surveyed

from ps2.algorithms.factors import sgd_kernels, warm
from ps2.algorithms.factors.grid import Layout, build_grid
from ps2.algorithms.factors.rows import Scaling, SgdPlan
from ps2.algorithms.factors.settings import FactorizationSettings
from ps2.algorithms.factors.sgd import BlockDescent
from ps2.algorithms.factors.sgd_kernels import BIAS, BIAS_SUM, FAST, FIRST, SLOW, WIDTH, draw_rows, squared_errors
from ps2.run.rotation import RotationSchedule
from tests.plans import changed

RATES = np.array([0.1, 0.05, 0.02], np.float32)


def rows(count, rank, seed=0):
    result = np.empty((count, rank + WIDTH), np.float32)
    draw_rows(np.arange(count), np.uint64(seed), rank, 0.0, 0.7, result)
    return result


def step(p, q, value, weight, rank, learns_all, biases, nonnegative):
    """One step in float64: Chin et al., equations 3 to 9."""
    error = value - p[:rank] @ q[:rank] - biases * (p[rank + BIAS] + q[rank + BIAS])
    before = p[:rank].copy(), q[:rank].copy()
    parts = [(slice(0, min(FIRST, rank)), SLOW)]
    if learns_all and rank > FIRST:
        parts.append((slice(FIRST, rank), FAST))
    for row, mine, other in ((p, *before), (q, *before[::-1])):
        for part, sum_ in parts:
            gradient = weight * (error * other[part] - RATES[1] * mine[part])
            row[part] += RATES[0] / np.sqrt(row[rank + sum_]) * gradient
            row[rank + sum_] += np.mean(gradient**2)
        if biases:
            gradient = weight * (error - RATES[2] * row[rank + BIAS])
            row[rank + BIAS] += RATES[0] / np.sqrt(row[rank + BIAS_SUM]) * gradient
            row[rank + BIAS_SUM] += gradient**2
        if nonnegative:
            row[:rank] = np.maximum(row[:rank], 0)
    return weight * error**2


@pytest.mark.parametrize("rank", [1, 3, 8, 9, 33])
@pytest.mark.parametrize(("biases", "nonnegative", "weighted"), list(product([False, True], repeat=3)))
def test_steps_when_taken_then_agree_with_numpy(rank, biases, nonnegative, weighted):
    rng = np.random.default_rng(rank)
    begins, items = np.array([0, 3, 3, 5]), np.array([1, 0, 3, 3, 2], np.int32)
    values = rng.normal(size=5).astype(np.float32)
    weights = rng.random(5).astype(np.float32) if weighted else np.empty(0, np.float32)
    for learns_all in (False, True):
        p, q = rows(3, rank), rows(4, rank, 1)
        p64, q64 = p.astype(np.float64), q.astype(np.float64)
        flags = learns_all, biases, nonnegative
        loss = sgd_kernels.descend(begins, 0, 3, items, values, weights, p, q, rank, RATES, *flags)
        expected = 0.0
        for user, at in [(0, 0), (0, 1), (0, 2), (2, 3), (2, 4)]:
            weight = weights[at] if weighted else 1.0
            expected += step(p64[user], q64[items[at]], float(values[at]), float(weight), rank, *flags)
        assert loss == pytest.approx(expected, rel=1e-5)
        np.testing.assert_allclose(p, p64, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(q, q64, rtol=2e-5, atol=1e-6)


def test_errors_when_computed_then_agree_with_numpy():
    rng = np.random.default_rng(0)
    p, q = rows(5, 4), rows(6, 4, 1)
    p[:, 4 + BIAS], q[:, 4 + BIAS] = rng.random(5), rng.random(6)
    users, items = rng.integers(0, 5, 20).astype(np.int32), rng.integers(0, 6, 20).astype(np.int32)
    values, weights = rng.random(20).astype(np.float32), rng.random(20).astype(np.float32)
    product_ = np.einsum("nk,nk->n", p[users, :4].astype(float), q[items, :4].astype(float))
    errors = values - product_ - p[users, 4 + BIAS] - q[items, 4 + BIAS]
    result = squared_errors(users, items, values, weights, p, q, 4, True)
    assert result == pytest.approx(float(weights @ errors**2), rel=1e-5)


def test_draws_when_ids_are_the_same_then_so_are_their_rows():
    result = rows(6, 4)
    some = np.empty((2, 4 + WIDTH), np.float32)
    draw_rows(np.array([4, 1]), np.uint64(0), 4, 0.0, 0.7, some)
    np.testing.assert_array_equal(some, result[[4, 1]])
    assert len(np.unique(result[:, :4])) == 24
    assert 0 <= result[:, :4].min() <= result[:, :4].max() < 0.7


@pytest.mark.parametrize("weighted", [False, True])
def test_grid_when_rows_come_in_any_order_then_is_the_same(weighted):
    rng = np.random.default_rng(0)
    layout = Layout(RotationSchedule(1, 2, 2), 2, np.array([0, 3, 5]), np.array([0, 2, 4, 5, 7]))
    users, items = rng.integers(0, 5, 300).astype(np.int32), rng.integers(0, 7, 300).astype(np.int32)
    values = rng.integers(0, 3, 300).astype(np.float32)
    weights = rng.integers(1, 3, 300).astype(np.float32) if weighted else np.empty(0, np.float32)
    one = build_grid(layout, (0, 5), (users, items, values, weights))
    order = rng.permutation(300)
    other = build_grid(
        layout, (0, 5), (users[order], items[order], values[order], weights[order] if weighted else weights)
    )
    for name in ("begins", "items", "values", "weights"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    begins = one.cells(1, 0)
    mine = (users == 2) & (items == 4)
    result = one.values[begins[2] : begins[3]]
    np.testing.assert_array_equal(result, np.sort(values[mine]))
    assert one.ratings_in(0) == (items < 4).sum()


@pytest.mark.parametrize("groups", [2, 3])
def test_threads_when_there_are_more_then_result_is_the_same(groups):
    rng = np.random.default_rng(0)
    bounds = np.linspace(0, 60, groups + 1).astype(np.int64)
    layout = Layout(RotationSchedule(1, 1, 1), groups, bounds, bounds)
    users, items = rng.integers(0, 60, 9000).astype(np.int32), rng.integers(0, 60, 9000).astype(np.int32)
    values = rng.normal(size=9000).astype(np.float32)
    grid = build_grid(layout, (0, 60), (users, items, values, np.empty(0, np.float32)))
    result = []
    with ThreadPoolExecutor(groups) as pool:
        for threads in (None, pool):
            p, q = rows(60, 5), rows(60, 5, 1)
            descent = BlockDescent(grid, SgdPlan(settings=FactorizationSettings(rank=5), scale=1.0), 0, p)
            finished = [descent.train_stratum(0, piece, 2, q, threads) for piece in descent.shuffled_strata(0, 2)]
            result.append((p, q, finished))
    assert sum(one["ratings"] for one in result[0][2]) == 9000
    np.testing.assert_array_equal(result[0][0], result[1][0])
    np.testing.assert_array_equal(result[0][1], result[1][1])
    assert result[0][2] == result[1][2]


def test_pieces_when_turns_have_a_budget_then_they_are_smaller():
    layout = Layout(RotationSchedule(1, 1, 1), 1, np.array([0, 60]), np.array([0, 60]))
    users, items = np.divmod(np.arange(9000, dtype=np.int32) % 3600, np.int32(60))
    grid = build_grid(layout, (0, 60), (users, items, np.ones(9000, np.float32), np.empty(0, np.float32)))
    result = []
    for budget_s in (None, 1.0):
        plan = SgdPlan(settings=FactorizationSettings(rank=5, budgetS=budget_s), scale=1.0)
        descent = BlockDescent(grid, plan, 0, rows(60, 5))
        finished = [descent.train_stratum(0, piece, 2, rows(60, 5, 1), None) for piece in descent.strata(0)]
        result.append([one["ratings"] for one in finished])
    assert [len(one) for one in result] == [1, 2]
    assert [sum(one) for one in result] == [9000, 9000]


def test_kernels_when_warm_then_training_compiles_nothing():
    outer = sgd_kernels.descend, sgd_kernels.squared_errors, sgd_kernels.draw_rows
    outer += sgd_kernels.fill_cells, sgd_kernels.sort_cells
    warm.warm()

    def compiled():
        return [len(kernel.signatures) for kernel in outer]

    before = compiled()
    assert all(before)
    replayed(changed(PLAN, biases=True, maxIter=1), replace(COLUMNS, weight="weight", validation="held"))
    assert compiled() == before


def test_scaling_when_all_ratings_are_equal_then_is_finite():
    inputs = ratings()
    survey = surveyed(replace(inputs, values=np.full(len(inputs.values), 4.0)), PLAN)
    assert Scaling.from_survey(survey, PLAN) == Scaling(0.0, 4.0, 1.0)
    assert Scaling.from_survey(replace(survey, mean=0.0, std=0.0), PLAN).scale == 1.0


def test_weights_when_all_are_larger_then_training_is_the_same():
    inputs, columns = ratings(), replace(COLUMNS, weight="weight")
    plain = replayed(PLAN, columns, given=inputs)
    heavy = replayed(PLAN, columns, given=replace(inputs, weights=inputs.weights * 4096))
    np.testing.assert_array_equal(heavy[0][0], plain[0][0])
    assert heavy[2] == plain[2]


def test_unit_of_ratings_when_changed_then_training_is_the_same():
    inputs = ratings()
    _, _, plain = replayed(PLAN, given=inputs)
    scaled = replace(inputs, values=inputs.values * 1024)
    _, _, large = replayed(changed(PLAN, regParam=PLAN.settings.regParam * 1024), given=scaled)
    np.testing.assert_allclose(large, 1024 * np.array(plain), rtol=1e-4)
