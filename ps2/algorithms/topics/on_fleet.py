"""What the servers have of a training by sampling: counts, their totals, and what workers report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics.problem import Recipe
from ps2.algorithms.training.names import Names
from ps2.client.dcv import DCV
from ps2.client.handle import free_all
from ps2.client.matrix import DCVMatrix
from ps2.errors import LimitError

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

# What a worker reports of a clock: log-likelihood of its documents, tokens that it has sampled, bytes that have moved.
LIKELIHOOD, TOKENS, BYTES = range(3)
REPORTED = 3


@dataclass(frozen=True)
class Ring:
    """Rows that each worker has for its last clocks: no more, and no less than others may ask for.

    Who is in clock t asks for what was so after clock t - staleness - 1; others may be in clock t + staleness.

    Attributes:
        first: row of the matrix.
    """

    workers: int
    staleness: int
    first: int = 0

    @property
    def depth(self) -> int:
        """Rows of a worker."""
        return 2 * self.staleness + 2

    @property
    def end(self) -> int:
        """The row after all of these."""
        return self.first + self.workers * self.depth

    def row(self, rank: int, clock: int) -> int:
        return self.first + rank * self.depth + clock % self.depth

    def rows(self, clock: int) -> list[int]:
        """Return the rows of all workers for a clock."""
        return [self.row(rank, clock) for rank in range(self.workers)]


@dataclass(frozen=True, eq=False)
class OnFleet:
    """Vectors and matrices; picklable.

    Attributes:
        counts: int32: a column for each word, with its tokens in each topic.
        totals: int64: tokens in each topic; first of all words, as of the clocks that are over, then, in the rows of
            ``totals_ring``, of each worker after its last clocks.
        reports: float64, REPORTED columns: of each worker in its last clocks.
        marks: sparse, int64: not 0 for clocks at whose beginning all counts are made anew.
    """

    counts: DCVMatrix
    totals: DCVMatrix
    reports: DCVMatrix
    marks: DCV
    totals_ring: Ring
    reports_ring: Ring

    @staticmethod
    def make(recipe: Recipe, workers: int, staleness: int, names: Names) -> OnFleet:
        """Make them, or find those of a driver before.

        Raises:
            LimitError: they cannot fit.
        """
        shares, reported = Ring(workers, staleness, 1), Ring(workers, staleness)
        k, words = recipe.topics, recipe.vocabulary
        with _explaining(recipe):
            counts = names.give(lambda name: DCV.dense(words, k, "int32", layout="column", name=name))
        return OnFleet(
            counts.matrix(),
            names.give(lambda name: DCV.dense(k, shares.end, "int64", name=name)).matrix(),
            names.give(lambda name: DCV.dense(REPORTED, reported.end, "float64", name=name)).matrix(),
            names.give(lambda name: DCV.sparse(2**63, 1, "int64", name=name)),
            shares,
            reported,
        )

    def all_totals(self) -> Int64s:
        """Return how many tokens each topic has, as of the clocks that are over."""
        totals: Int64s = self.totals.pull([0])[0]
        return totals

    def take_reports(self, clock: int) -> Float64s:
        """Return the sums of what workers have reported of a clock."""
        sums: Float64s = self.reports.pull(self.reports_ring.rows(clock)).sum(axis=0)
        return sums

    def free(self) -> None:
        for matrix in (self.counts, self.totals, self.reports):
            matrix.free()
        free_all([self.marks])


@contextmanager
def _explaining(recipe: Recipe) -> Iterator[None]:
    """Say what it is that cannot fit."""
    try:
        yield
    except LimitError as error:
        size = recipe.topics * recipe.vocabulary * np.dtype(np.int32).itemsize
        raise LimitError(
            f"{recipe.topics:,} topics of {recipe.vocabulary:,} words have counts of {size:,} bytes, and they do not "
            f"fit the servers: {error}; start more servers, or with a larger memory limit"
        ) from error
