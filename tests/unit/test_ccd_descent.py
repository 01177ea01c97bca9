"""Coordinate descent agrees with the same in plain NumPy, in float64, over all cells."""

from itertools import pairwise

import numpy as np
import pytest
from descents import ITEMS, KINDS, USERS, begun, cells_of, options_of, ratings_of

from ps2.algorithms.factors import ops
from ps2.algorithms.factors.ccd_descent import HELD_LOSS, LOSS, PENALTY, WEIGHT, Descent, padded
from ps2.algorithms.factors.ccd_ratings import RatingRows, UserRatings
from ps2.algorithms.factors.ops import BLOCK, SUMS, SWEEPS
from ps2.errors import OutOfRangeError


def dense_descent(options, raw, p, q, mean=0.0):
    """Return the vectors after one iteration; p of shape (ranks, users)."""
    a, b, ridge_u, ridge_i = cells_of(options, raw)
    p, q = p.astype(np.float64), q.astype(np.float64)
    rank = padded(options.rank)

    def prediction():
        x = p[:rank].T @ q[:rank] + mean
        return x + p[rank][:, None] + q[rank] if options.biases else x

    def block_solved(old, vectors, curvatures, rest, ridge):
        """Return x of shape (BLOCK, n) that minimises each column's objective, by sweeps."""
        x = old.copy()
        for _ in range(SWEEPS):
            for f in range(BLOCK):
                others = x.T @ vectors - np.outer(x[f], vectors[f])
                above = (rest - curvatures * others) @ vectors[f]
                below = curvatures @ vectors[f] ** 2 + ridge
                x[f] = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
                x[f] = np.maximum(x[f], 0) if options.nonnegative else x[f]
        return x

    if options.biases:
        p[rank] = (b - a * (prediction() - p[rank][:, None])).sum(axis=1) / np.maximum(a.sum(axis=1) + ridge_u, 1e-30)
        q[rank] = (b - a * (prediction() - q[rank])).sum(axis=0) / np.maximum(a.sum(axis=0) + ridge_i, 1e-30)
    for first in range(0, rank, BLOCK):
        some = slice(first, first + BLOCK)
        rest = b - a * (prediction() - p[some].T @ q[some])
        p[some] = block_solved(p[some], q[some], a, rest, ridge_u)
        q[some] = block_solved(q[some], p[some], a.T, rest.T, ridge_i)
    return p, q


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_descent_when_iterated_then_as_dense(kind, weighted):
    options = options_of(**kind)
    mean = 3.0 if options.biases else 0.0
    raw, descent, local = begun(options, weighted, mean)
    p, q = descent.p.copy(), descent.q.copy()
    for _ in range(3):
        local.iterate()
        p, q = dense_descent(options, raw, p, q, mean)
    np.testing.assert_allclose(descent.p, p, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(descent.q, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_descent_when_iterated_then_objective_falls(kind, weighted):
    options = options_of(**kind)
    _, descent, local = begun(options, weighted)
    told = [descent.evaluate(), *(local.iterate() for _ in range(10))]
    objectives = [one[LOSS] + one[PENALTY] for one in told]
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(objectives))


@pytest.mark.parametrize("weighted", [False, True])
def test_loss_when_explicit_then_squared_errors(weighted):
    raw, descent, _ = begun(options_of(), weighted)
    users, items, r, w = raw
    errors = (r - (descent.p.T @ descent.q)[users, items]) ** 2
    told = descent.evaluate()
    assert told[LOSS] == pytest.approx(float(errors @ (np.ones(len(r)) if w is None else w)), rel=1e-5)
    assert told[WEIGHT] == pytest.approx(len(r) if w is None else w.sum())


def test_loss_when_implicit_then_as_brute_force():
    (users, items, r, _), _ = ratings_of(options_of(implicit=True))
    first = np.unique(users * ITEMS + items, return_index=True)[1]  # of repeated cells, ALS has another loss
    options = options_of(implicit=True)
    ratings = UserRatings.of(RatingRows(users[first], items[first], r[first]), USERS, options)
    descent = Descent(options, ITEMS, ratings)
    rng = np.random.default_rng(2)
    descent.p[:], descent.q[:] = rng.normal(size=descent.p.shape), rng.normal(size=descent.q.shape)
    preference = np.zeros((USERS, ITEMS))
    preference[users[first], items[first]] = r[first]
    confidence = 1 + 3.0 * preference
    expected = np.sum(confidence * ((preference > 0) - descent.p.T @ descent.q) ** 2)
    assert descent.evaluate()[LOSS] == pytest.approx(expected, rel=1e-5)


def test_ratings_when_negative_implicit_then_not_liked():
    rows = RatingRows(np.array([0, 0]), np.array([0, 1]), np.float32([-2, 3]))
    ratings = UserRatings.of(rows, 1, options_of(implicit=True))
    assert ratings.curvatures.tolist() == [6, 9]
    assert ratings.targets.tolist() == [0, 10]
    assert ratings.counted.tolist() == [0, 1]


def test_ratings_when_shuffled_then_same():
    (users, items, r, w), ratings = ratings_of(options_of(), weighted=True)
    order = np.random.default_rng(3).permutation(len(r))
    again = UserRatings.of(RatingRows(users[order], items[order], r[order], w[order]), USERS, options_of())
    for name in ("ends", "items", "curvatures", "targets"):
        assert np.array_equal(getattr(ratings, name), getattr(again, name)), name


def test_held_out_when_given_then_its_loss():
    options = options_of()
    _, ratings = ratings_of(options)
    held = UserRatings.of(RatingRows(np.array([3, 5]), np.array([0, 2]), np.float32([4, 2])), USERS, options)
    descent = Descent(options, ITEMS, ratings, held)
    assert descent.evaluate()[HELD_LOSS] == 20


def test_user_when_without_ratings_then_zero():
    _, descent, local = begun(options_of(reg=0.0))
    local.iterate()
    assert not descent.p[:, 3].any()


PLACES = {"rank": 0, "width": 1, "ranks": 1, "old": 0, "new": 1, "first": 0, "workers": 1, "ridge": 14, "done": 15}


def test_solve_when_step_was_done_then_unchanged():
    m, sums = np.zeros((2, 3), np.float32), np.ones((16, 3), np.float32)
    ops.solve(m, sums, np.zeros(0), **PLACES, step=1, nonnegative=False)
    assert not m.any()
    ops.solve(m, sums, np.zeros(0), **PLACES, step=2, nonnegative=False)
    assert m[1].tolist() == [0.5] * 3


@pytest.mark.parametrize(
    "wrong", [{"old": 2}, {"new": -1}, {"first": 3}, {"ridge": 16}, {"done": 16}, {"rank": 1}, {"width": 5}]
)
def test_solve_when_rows_are_outside_then_error(wrong):
    m, sums = np.zeros((2, 3), np.float32), np.zeros((16, 3), np.float32)
    with pytest.raises(OutOfRangeError):
        ops.solve(m, sums, np.zeros(0), **{**PLACES, **wrong}, step=1, nonnegative=False)


def test_solve_when_several_workers_then_their_sum():
    m, sums = np.zeros((2, 2), np.float32), np.zeros((3 * SUMS + 2, 2), np.float32)
    sums[0::SUMS][:3], sums[1::SUMS][:3] = [[1], [3], [5]], [[2], [4], [6]]  # numerators, denominators
    places = {**PLACES, "workers": 3, "ridge": 3 * SUMS, "done": 3 * SUMS + 1}
    ops.solve(m, sums, np.zeros(0), **places, step=1, nonnegative=False)
    assert m[1].tolist() == [0.75] * 2
