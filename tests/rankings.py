"""Queries to rank the rows of, and how well they are ranked."""

from __future__ import annotations

from typing import Any

import numpy as np


def queries() -> tuple[Any, Any, Any]:
    """Return features, relevances and queries of the rows of 30 queries, each of 1 to 25 rows.

    The relevance depends on two features, and on the query.
    """
    rng = np.random.default_rng(0)
    query = np.repeat(np.arange(30), rng.integers(2, 25, 30))
    query[0] = 99
    x = np.round(rng.normal(size=(len(query), 5)) + (query % 7)[:, None] / 3, 1)
    score = x[:, 0] * 2 + x[:, 1] * (x[:, 2] > 1) + 0.5 * rng.normal(size=len(query))
    return x, np.clip(np.floor(score / 2), 0, 4), query


def mean_ndcg(margins: Any, y: Any, query: Any, k: int = 10) -> float:
    """Return the mean NDCG of the first k rows of each query; rows of equal margins are in their own order."""
    ratios = []
    for q in np.unique(query):
        gains, scores = 2.0 ** y[query == q] - 1, margins[query == q]
        discounts = 1 / np.log2(np.arange(2, 2 + min(k, len(gains))))
        best = np.sort(gains)[::-1][:k] @ discounts
        ratios.append(gains[np.argsort(-scores, kind="stable")][:k] @ discounts / best if best else 1.0)
    return float(np.mean(ratios))
