"""Small problems for coordinate descent, solved in one process, and what their objectives are made of."""

import numpy as np

from ps2.algorithms.factors import ops
from ps2.algorithms.factors.ccd_descent import Descent, padded
from ps2.algorithms.factors.ccd_ratings import RatingRows, UserRatings
from ps2.algorithms.factors.ops import SUMS
from ps2.algorithms.factors.options import FactorOptions

KINDS = [
    {},
    {"reg": 0.0},
    {"nonnegative": True},
    {"biases": True},
    {"implicit": True},
    {"implicit": True, "nonnegative": True},
    {"implicit": True, "reg": 0.0},
]
USERS, ITEMS, RANK = 30, 17, 5


class Local:
    """Items' coordinates, solved in this process by the servers' operation."""

    def __init__(self, options, descent, ridge):
        self.ranks, items = descent.q.shape
        self.m, self.sums = np.zeros((2 * self.ranks, items), np.float32), np.zeros((SUMS + 2, items), np.float32)
        self.sums[SUMS] = ridge
        self.descent, self.iteration, self.step = descent, 0, 0

    def iterate(self):
        self.old, self.new = self.iteration % 2 * self.ranks, (self.iteration + 1) % 2 * self.ranks
        self.m[self.old : self.old + self.ranks] = self.descent.q
        self.descent.iterate(self.solve)
        self.iteration += 1
        return self.descent.evaluate()

    def solve(self, one, sums, products):
        self.sums[: one.sums] = sums.T
        self.step += 1
        where = {"rank": one.first, "width": one.width, "ranks": self.ranks, "old": self.old, "new": self.new}
        rows = {"first": 0, "workers": 1, "ridge": SUMS, "done": SUMS + 1, "step": self.step}
        ops.solve(self.m, self.sums, products.reshape(-1), **where, **rows, nonnegative=one.nonnegative)
        return self.m[self.new + one.first : self.new + one.end].copy()


def options_of(**given):
    return FactorOptions(**{"rank": RANK, "reg": 0.1, "solver": "ccd", "alpha": 3.0, **given})


def ratings_of(options, weighted=False, seed=0):
    """Return users, items, ratings and weights of random cells, and the same as UserRatings."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(USERS * ITEMS)[:200]
    users, items = cells // ITEMS, cells % ITEMS
    users[users == 3] = 4  # repeated cells, and a user without ratings
    r = rng.integers(1, 6, len(cells)).astype(np.float32)
    w = rng.uniform(0.5, 2, len(cells)).astype(np.float32) if weighted else None
    return (users, items, r, w), UserRatings.of(RatingRows(users, items, r, w), USERS, options)


def begun(options, weighted=False, mean=0.0):
    raw, ratings = ratings_of(options, weighted)
    descent = Descent(options, ITEMS, ratings, mean=mean)
    rng = np.random.default_rng(1)
    descent.q[:] = rng.normal(size=descent.q.shape)
    descent.p[:] = rng.normal(size=descent.p.shape)
    # Coordinates beyond the rank.
    descent.p[options.rank : padded(options.rank)] = descent.q[options.rank : padded(options.rank)] = 0
    if options.nonnegative:
        descent.q[:], descent.p[:] = np.abs(descent.q), np.abs(descent.p)
    descent.evaluate()
    return raw, descent, Local(options, descent, cells_of(options, raw)[3])


def cells_of(options, raw):
    """Return curvatures and targets of all cells, and the ridges, in float64: what the objective is made of."""
    users, items, r, w = raw
    a, b = np.zeros((USERS, ITEMS)), np.zeros((USERS, ITEMS))
    counts_u, counts_i = np.zeros(USERS), np.zeros(ITEMS)
    for e in range(len(r)):
        weight = 1.0 if w is None else float(w[e])
        if options.implicit:
            confidence = options.alpha * r[e]
            terms, counted = (weight * confidence, weight * (1 + confidence)), weight
        else:
            terms, counted = (weight, weight * r[e]), weight
        a[users[e], items[e]] += terms[0]
        b[users[e], items[e]] += terms[1]
        counts_u[users[e]] += counted
        counts_i[items[e]] += counted
    return a + options.implicit, b, options.reg * counts_u, options.reg * counts_i
