"""Coordinate descent agrees with the same in plain NumPy, in float64, over all cells."""

from itertools import pairwise

import numpy as np
import pytest
from descents import ITEMS, KINDS, USERS, Descent, Vectors, begun, ccd_plan, cells_of, raw_of

from ps2.algorithms.factors import ccd_descent, ccd_kernels, ops, warm
from ps2.algorithms.factors.ccd_descent import RatingRows, SideDescent, SideRatings, gram_matrix, padded_rank
from ps2.algorithms.factors.ccd_kernels import BLOCK, SWEEPS
from ps2.errors import OutOfRangeError


def dense_side(plan, p, q, a, b, ridge, mean):
    """Solve the vectors p of shape (n, ranks) once, of all cells, in float64."""
    rank = padded_rank(plan.settings.rank)

    def prediction():
        x = p[:, :rank] @ q[:, :rank].T + mean
        return x + p[:, [rank]] + q[:, rank] if plan.settings.biases else x

    if plan.settings.biases:
        rest = b - a * (prediction() - p[:, [rank]])
        p[:, rank] = rest.sum(axis=1) / np.maximum(a.sum(axis=1) + ridge, 1e-30)
    for first in range(0, rank, BLOCK):
        some = slice(first, first + BLOCK)
        rest = b - a * (prediction() - p[:, some] @ q[:, some].T)
        for _ in range(SWEEPS):
            for f in range(first, first + BLOCK):
                others = p[:, some] @ q[:, some].T - np.outer(p[:, f], q[:, f])
                above = (rest - a * others) @ q[:, f]
                below = a @ q[:, f] ** 2 + ridge
                p[:, f] = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
                p[:, f] = np.maximum(p[:, f], 0) if plan.settings.nonnegative else p[:, f]


def dense_descent(plan, raw, p, q, mean):
    """Return the vectors after one iteration."""
    a, b, ridge_u, ridge_i = cells_of(plan, raw)
    without = p[3].copy()
    dense_side(plan, p, q, a, b, ridge_u, mean)
    p[3] = without  # a user without ratings keeps its vector
    dense_side(plan, q, p, a.T, b.T, ridge_i, mean)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_descent_when_iterated_then_as_dense(kind, weighted):
    plan = ccd_plan(**kind)
    mean = 3.0 if plan.settings.biases else 0.0
    raw, descent = begun(plan, weighted, mean)
    p, q = (side.vectors.astype(np.float64) for side in (descent.users, descent.items))
    for _ in range(3):
        descent.iterate()
        dense_descent(plan, raw, p, q, mean)
    np.testing.assert_allclose(descent.users.vectors, p, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(descent.items.vectors, q, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_descent_when_iterated_then_objective_falls(kind, weighted):
    _, descent = begun(ccd_plan(**kind), weighted)
    objectives = [descent.iterate()[1] for _ in range(10)]
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(objectives))


@pytest.mark.parametrize("kind", [{"biases": True}, {"implicitPrefs": True}], ids=str)
@pytest.mark.parametrize("changed", ["parts", "threads"])
def test_descent_when_cut_then_same_bits(kind, changed, monkeypatch):
    _, expected = begun(ccd_plan(**kind))
    if changed == "parts":
        monkeypatch.setattr(ccd_descent, "MAX_FLOATS", 9 * 6)
    _, result = begun(ccd_plan(**kind), threads=3 if changed == "threads" else 1)
    assert len(result.items._batches) > 1 or changed == "threads"
    for descent in (expected, result):
        descent.iterate()
    assert result.users.vectors.tobytes() == expected.users.vectors.tobytes()
    assert result.items.vectors.tobytes() == expected.items.vectors.tobytes()


@pytest.mark.parametrize("weighted", [False, True])
def test_loss_when_explicit_then_squared_errors(weighted):
    raw, descent = begun(ccd_plan(), weighted)
    users, items, r, w = raw
    loss, _, _ = descent.iterate()
    errors = (r - (descent.users.vectors @ descent.items.vectors.T)[users, items]) ** 2
    assert loss == pytest.approx(float(errors @ (np.ones(len(r)) if w is None else w)), rel=1e-5)
    assert descent.items.weight == pytest.approx(len(r) if w is None else w.sum())


def test_loss_when_implicit_then_as_brute_force():
    users, items, r, _ = raw_of()
    first = np.unique(users * ITEMS + items, return_index=True)[1]  # of repeated cells, ALS has another loss
    raw = users[first], items[first], r[first], None
    descent = Descent(ccd_plan(implicitPrefs=True), raw)
    descent.items.vectors[:, :5] = np.random.default_rng(2).normal(size=(ITEMS, 5))
    loss, _, _ = descent.iterate()
    preference = np.zeros((USERS, ITEMS))
    preference[raw[0], raw[1]] = raw[2]
    errors = (preference > 0) - descent.users.vectors @ descent.items.vectors.T
    assert loss == pytest.approx(np.sum((1 + 3.0 * preference) * errors**2), rel=1e-5)


def test_ratings_when_negative_implicit_then_not_liked():
    rows = RatingRows(np.array([0, 0]), np.array([0, 1]), np.float32([-2, 3]))
    ratings = SideRatings.from_rows(rows, 1, ccd_plan(implicitPrefs=True))
    assert ratings.curvatures.tolist() == [6, 9]
    assert ratings.targets.tolist() == [0, 10]
    assert ratings.penalties.tolist() == [1]


def test_ratings_when_shuffled_then_same():
    users, items, r, w = raw_of(weighted=True)
    order = np.random.default_rng(3).permutation(len(r))
    ratings = SideRatings.from_rows(RatingRows(users, items, r, w), USERS, ccd_plan())
    again = SideRatings.from_rows(RatingRows(users[order], items[order], r[order], w[order]), USERS, ccd_plan())
    for name in ("ends", "other_positions", "curvatures", "targets", "penalties"):
        assert np.array_equal(getattr(ratings, name), getattr(again, name)), name


def test_held_out_when_given_then_its_loss():
    plan = ccd_plan()
    held = SideRatings.from_rows(RatingRows(np.array([3, 5]), np.array([0, 2]), np.float32([4, 2])), ITEMS, plan)
    _, descent = begun(plan, held_out=held)
    _, _, loss = descent.iterate()
    errors = np.array([4, 2]) - np.sum(descent.items.vectors[[3, 5]] * descent.users.vectors[[0, 2]], axis=1)
    assert (loss, descent.items.held_weight) == (pytest.approx(errors @ errors, rel=1e-5), 2)


def test_user_when_without_ratings_then_keeps_vector():
    _, descent = begun(ccd_plan(regParam=0.0))
    before = descent.users.vectors[3].copy()
    descent.iterate()
    assert np.array_equal(descent.users.vectors[3], before)


def test_gram_when_computed_then_is_product():
    x = np.random.default_rng(0).normal(size=(700, 8)).astype(np.float32)
    np.testing.assert_allclose(gram_matrix(x), x.T.astype(np.float64) @ x, rtol=1e-4, atol=1e-3)


def test_kernels_when_warm_then_descent_compiles_nothing():
    kernels = ccd_kernels.descend, ccd_kernels.sum_losses, ccd_kernels.multiply_rows
    warm.warm()
    before = [len(kernel.signatures) for kernel in kernels]
    for kind in ({"biases": True}, {"implicitPrefs": True}):
        plan = ccd_plan(**kind)
        ratings = SideRatings.from_rows(RatingRows(*raw_of()), USERS, plan)
        side = SideDescent(plan, ratings, held_out=ratings)
        others = np.zeros((ITEMS, side.vectors.shape[1]), np.float32)
        side.solve(Vectors(others), gram_matrix(others) if plan.settings.implicitPrefs else np.zeros((0, 0)))
    assert [len(kernel.signatures) for kernel in kernels] == before


def test_add_rows_when_called_again_then_same_sum():
    m = np.arange(12.0).reshape(4, 3)
    for _ in range(2):
        ops.add_rows(m, first=0, count=3, into=3)
        assert m[3].tolist() == [9, 12, 15]


@pytest.mark.parametrize("wrong", [{"first": -1}, {"count": 0}, {"count": 5}, {"into": 4}])
def test_add_rows_when_rows_are_outside_then_error(wrong):
    with pytest.raises(OutOfRangeError):
        ops.add_rows(np.zeros((4, 3)), **{"first": 0, "count": 3, "into": 3, **wrong})
