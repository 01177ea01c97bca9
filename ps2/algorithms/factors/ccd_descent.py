"""Coordinate descent over a worker's vectors of one side. Those of the other side come from elsewhere, in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from ps2.algorithms.factors.ccd_kernels import BLOCK, descend, measure, multiply
from ps2.algorithms.factors.ccd_ratings import SideRatings
from ps2.algorithms.factors.plan import FactorizationPlan
from ps2.array_types import Float32s, Float64s, Int64s

# The maximum count of numbers of the other side's vectors that a worker holds at a time; of one user, or item, all.
MAX_FLOATS = 1 << 25


class VectorsFuture(Protocol):
    """Requested vectors."""

    def result(self) -> Float32s: ...


# Requests vectors by their positions on the other side, in ascending order.
Request = Callable[[Int64s], VectorsFuture]


@dataclass(frozen=True, eq=False)
class Part:
    """Some users, or items, whose ratings are solved with the vectors of the other side that occur in them.

    Attributes:
        first, end: the first of them, and the end.
        columns: the positions on the other side, ascending.
        ratings, held_out: their ``others`` are indices into ``columns``.
    """

    first: int
    end: int
    columns: Int64s
    ratings: SideRatings
    held_out: SideRatings | None


def padded(rank: int) -> int:
    """Return the number of coordinates without biases: whole blocks. Those beyond the rank are and stay 0."""
    return -(-rank // BLOCK) * BLOCK


def num_coordinates(plan: FactorizationPlan) -> int:
    """Return the number of coordinates of a vector: whole blocks, and then the bias, if there are biases."""
    return padded(plan.settings.rank) + plan.settings.biases


def gram_matrix(vectors: Float32s) -> Float64s:
    """Return ``vectors.T @ vectors``; the order of additions is fixed, which BLAS does not promise."""
    rows = np.ascontiguousarray(vectors.T)
    gram = np.empty((len(rows), len(rows)))
    for first in range(0, len(rows), BLOCK):
        multiply(rows, first, gram[first : first + BLOCK])
    return gram


class SideDescent:
    """The vectors of some users, or of some items, and their ratings.

    Attributes:
        own: the vectors, shape (n, ranks): whole blocks of ranks, and then the bias, if there are biases.
        ratings: the number of ratings.
        bytes: the bytes of vectors that travel in an iteration.
        weight, held_weight: ``SideRatings.weight`` of the ratings, and of the held-out ones.
    """

    def __init__(
        self,
        plan: FactorizationPlan,
        ratings: SideRatings,
        mean: float = 0.0,
        held_out: SideRatings | None = None,
        threads: int = 1,
    ) -> None:
        settings, ranks = plan.settings, num_coordinates(plan)
        self._mean, self._reg, self._threads = mean, settings.regParam, threads
        self._kind = settings.biases, settings.nonnegative, settings.implicitPrefs
        self.own = np.zeros((ratings.own, ranks), np.float32)
        self.ratings = len(ratings)
        self.weight = ratings.weight
        self.held_weight = held_out.weight if held_out is not None else 0.0
        self._penalties = ratings.penalties
        limit = max(1, MAX_FLOATS // ranks)
        self._parts = list(_parts(ratings, held_out, 0, ratings.own, limit)) if ratings.own else []
        self.bytes = self.own.nbytes + sum(len(part.columns) for part in self._parts) * ranks * 4

    def solve(self, request: Request, gram: Float64s) -> tuple[float, float]:
        """Solve all coordinates once; return the loss of the ratings and of the held-out ones with the new vectors.

        ``gram`` is the ``gram_matrix`` of all vectors of the other side if all cells count, else empty.
        """
        loss = held = 0.0
        future = request(self._parts[0].columns) if self._parts else None
        for number, part in enumerate(self._parts):
            assert future is not None
            others = future.result()
            if number + 1 < len(self._parts):  # the next part's vectors travel while this part is solved
                future = request(self._parts[number + 1].columns)
            own = self.own[part.first : part.end]
            loss += self._descend(part.ratings, own, others, gram)
            if part.held_out is not None:
                held += measure(part.held_out.arrays, own, others, self._mean, self._kind)
        return loss, held

    def penalty(self) -> float:
        """Return these vectors' share in the penalty."""
        return self._reg * float(self._penalties @ np.sum(np.square(self.own, dtype=np.float64), axis=1))

    def _descend(self, ratings: SideRatings, own: Float32s, others: Float32s, gram: Float64s) -> float:
        """Solve the vectors of a part in threads; return the loss of their ratings."""
        marks = ratings.ends[-1] * np.arange(1, self._threads) // self._threads
        bounds = [0, *np.searchsorted(ratings.ends, marks).tolist(), ratings.own]
        losses = np.empty(ratings.own)

        def solve(some: tuple[int, int]) -> None:
            ridge = self._reg * ratings.penalties
            descend(ratings.arrays, some, own, others, gram, ridge, self._mean, self._kind, losses)

        if self._threads == 1:
            solve((0, ratings.own))
        else:
            with ThreadPoolExecutor(self._threads, "ps2-factors") as pool:
                list(pool.map(solve, pairwise(bounds)))
        return float(losses.sum())


def _parts(ratings: SideRatings, held_out: SideRatings | None, first: int, end: int, limit: int) -> Iterator[Part]:
    """Cut ratings into parts in which at most ``limit`` positions of the other side occur."""
    mine = ratings.part(first, end)
    held = None if held_out is None else held_out.part(first, end)
    both = mine.others if held is None else np.append(mine.others, held.others)
    occurs = np.zeros(int(both.max(initial=-1)) + 1, np.bool_)
    occurs[both] = True
    columns = np.flatnonzero(occurs)
    if len(columns) > limit and end - first > 1:
        middle = int(np.searchsorted(mine.ends, mine.ends[-1] // 2))
        middle = first + min(max(middle, 1), end - first - 1)
        yield from _parts(ratings, held_out, first, middle, limit)
        yield from _parts(ratings, held_out, middle, end, limit)
        return
    indices = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
    yield Part(first, end, columns, mine.renumbered(indices), None if held is None else held.renumbered(indices))
