"""Small problems for coordinate descent, solved in one process, and what their objectives are made of."""

from dataclasses import replace

import numpy as np
from factors_training import COLUMNS, chunk_of, plan_of, ratings, surveyed

from ps2.algorithms.factors.ccd_descent import (
    RatingRows,
    SideDescent,
    SideRatings,
    gram_matrix,
    padded_rank,
    read_ratings,
)
from ps2.algorithms.factors.ccd_program import first_vectors
from ps2.algorithms.factors.dealing import Assignment, pack_chunk, partition_keys

KINDS = [
    {},
    {"regParam": 0.0},
    {"nonnegative": True},
    {"biases": True},
    {"implicitPrefs": True},
    {"implicitPrefs": True, "nonnegative": True},
    {"implicitPrefs": True, "regParam": 0.0},
]
USERS, ITEMS, RANK = 30, 17, 5


class Vectors:
    """Vectors that answer at once."""

    def __init__(self, rows):
        self.rows = rows

    def __call__(self, columns):
        return Vectors(self.rows[columns])

    def result(self):
        return self.rows


class Descent:
    """Both sides in this process."""

    def __init__(self, plan, raw, mean=0.0, held_out=None, threads=1):
        users, items, r, w = raw
        self.plan = plan
        of_users, of_items = RatingRows(users, items, r, w), RatingRows(items, users, r, w)
        self.users = SideDescent(plan, SideRatings.from_rows(of_users, USERS, plan), mean, None, threads)
        self.items = SideDescent(plan, SideRatings.from_rows(of_items, ITEMS, plan), mean, held_out, threads)

    def iterate(self):
        """Return the loss, the objective and the loss of held-out ratings."""
        p, q = self.users, self.items
        p.solve(Vectors(q.vectors), self._gram(q.vectors))
        loss, held = q.solve(Vectors(p.vectors), self._gram(p.vectors))
        if self.plan.settings.implicitPrefs:
            loss += np.sum(gram_matrix(p.vectors) * gram_matrix(q.vectors))
        return loss, loss + p.penalty() + q.penalty(), held

    def _gram(self, vectors):
        return gram_matrix(vectors) if self.plan.settings.implicitPrefs else np.zeros((0, 0))


def ccd_plan(**values):
    return plan_of(**{"rank": RANK, "regParam": 0.1, "solver": "ccd", "alpha": 3.0, **values})


def raw_of(weighted=False, seed=0):
    """Return users, items, ratings and weights of random cells."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(USERS * ITEMS)[:200]
    users, items = cells // ITEMS, cells % ITEMS
    users[users == 3] = 4  # repeated cells, and a user without ratings
    r = rng.integers(1, 6, len(cells)).astype(np.float32)
    w = rng.uniform(0.5, 2, len(cells)).astype(np.float32) if weighted else None
    return users, items, r, w


def begun(plan, weighted=False, mean=0.0, **more):
    raw = raw_of(weighted)
    descent, rng = Descent(plan, raw, mean, **more), np.random.default_rng(1)
    for side in (descent.items, descent.users):
        side.vectors = rng.normal(size=side.vectors.shape[::-1]).astype(np.float32).T.copy()
        side.vectors[:, plan.settings.rank : padded_rank(plan.settings.rank)] = 0
        if plan.settings.nonnegative:
            np.abs(side.vectors, out=side.vectors)
    return raw, descent


def cells_of(plan, raw):
    """Return curvatures and targets of all cells, and the ridges, in float64: what the objective is made of."""
    users, items, r, w = raw
    a, b = np.zeros((USERS, ITEMS)), np.zeros((USERS, ITEMS))
    counts_u, counts_i = np.zeros(USERS), np.zeros(ITEMS)
    for e in range(len(r)):
        weight = 1.0 if w is None else float(w[e])
        if plan.settings.implicitPrefs:
            confidence = plan.settings.alpha * r[e]
            terms, counted = (weight * confidence, weight * (1 + confidence)), weight
        else:
            terms, counted = (weight, weight * r[e]), weight
        a[users[e], items[e]] += terms[0]
        b[users[e], items[e]] += terms[1]
        counts_u[users[e]] += counted
        counts_i[items[e]] += counted
    return a + plan.settings.implicitPrefs, b, plan.settings.regParam * counts_u, plan.settings.regParam * counts_i


def positive(given):
    """Return ratings as feedback."""
    return replace(given, values=np.abs(given.values))


def dealt(plan, columns=COLUMNS, workers=1):
    """Survey the planted problem of positive ratings, and deal it; return also each worker's packed rows."""
    inputs = positive(ratings())
    survey = surveyed(inputs, plan, columns)
    deal = replace(
        Assignment.from_counts(survey.user_counts, survey.item_counts, workers, 1, 4 * (plan.settings.rank + 4)),
        by_item=True,
    )
    chunk = chunk_of(inputs.table(columns))
    rows = pack_chunk(chunk, survey.users, survey.items, deal, partition_keys(workers), (0, 0))
    return survey, deal, [[rows.slice(rank, 1), rows.slice(workers + rank, 1)] for rank in range(workers)]


def replayed_descent(plan, columns=COLUMNS, workers=2):
    """Solve the planted problem in one process, worker after worker, with arrays for servers.

    Returns:
        Vectors of users and of items, by id.
    """
    survey, deal, rows = dealt(plan, columns, workers)
    mean = survey.mean if plan.settings.biases else 0.0
    p, q = (np.empty_like(sample) for sample in first_vectors(plan, len(survey.users), len(survey.items)))
    p[deal.user_positions], q[deal.item_positions] = first_vectors(plan, len(survey.users), len(survey.items))
    gram, sides = gram_matrix(q) if plan.settings.implicitPrefs else np.zeros((0, 0)), ([], [])
    for rank in range(workers):
        bounds = tuple(deal.layout.user_bounds(rank)[[0, -1]].tolist()), deal.layout.items_owned_by(rank)
        read = read_ratings(rows[rank], *bounds, plan)
        for side, of, vectors, some in zip(sides, (read.users, read.items), (p, q), bounds, strict=True):
            side.append((SideDescent(plan, of, mean), slice(*some)))
            side[-1][0].vectors = vectors[slice(*some)].copy()
    for _ in range(plan.settings.maxIter):
        for side, own, others in ((sides[0], p, q), (sides[1], q, p)):
            for descent, some in side:
                descent.solve(Vectors(others), gram)
                own[some] = descent.vectors
            if plan.settings.implicitPrefs:
                gram = sum(gram_matrix(descent.vectors) for descent, _ in side)
    return p[deal.user_positions][:, : plan.settings.rank], q[deal.item_positions][:, : plan.settings.rank]
