"""What the servers have of a training by sampling: counts, their totals, and what workers report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics.hyperparameters import row_of
from ps2.algorithms.topics.problem import Recipe
from ps2.algorithms.topics.saved import Saved
from ps2.algorithms.training.checkpoint_names import CheckpointNames
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
    """Rows that each worker has for its last clocks: as many as others may ask for.

    Who is in clock t asks for what was so after clock t - staleness - 1; others may be in clock t + staleness.
    """

    workers: int
    staleness: int

    @property
    def depth(self) -> int:
        """Rows of a worker."""
        return 2 * self.staleness + 2

    @property
    def rows(self) -> int:
        return self.workers * self.depth

    def row(self, rank: int, clock: int) -> int:
        return rank * self.depth + clock % self.depth

    def of_clock(self, clock: int) -> list[int]:
        """Return the rows of all workers for a clock."""
        return [self.row(rank, clock) for rank in range(self.workers)]

    def of_worker(self, rank: int) -> list[int]:
        return list(range(rank * self.depth, (rank + 1) * self.depth))


@dataclass(frozen=True)
class Sizes:
    """What decides how large things are on the servers.

    Attributes:
        tokens: the sum of all counts.
    """

    recipe: Recipe
    tokens: int
    workers: int


@dataclass(frozen=True, eq=False)
class OnFleet:
    """Vectors and matrices; picklable.

    Attributes:
        counts: int32: a column for each word, with its tokens in each topic.
        totals: int64: tokens in each topic, as the driver saw it last.
        shares: int64: the same of each worker's tokens, after its last clocks, in the rows of ``shares_ring``.
        reports: float64, REPORTED columns: of each worker in its last clocks.
        marks: sparse, int64: not 0 for clocks at whose beginning all counts are made anew.
        frequencies: int64: how often each word comes; None: nobody asks.
        alphas: float64: two rows, as ``Fits`` says.
        histogram: sparse, int64: documents in which topics are so often; between two fits 0.
        saved: topics of tokens; None: nobody saves them.
    """

    counts: DCVMatrix
    totals: DCV
    shares: DCVMatrix
    reports: DCVMatrix
    marks: DCV
    frequencies: DCV | None
    alphas: DCVMatrix
    histogram: DCV
    saved: Saved | None
    shares_ring: Ring

    @staticmethod
    def make(sizes: Sizes, names: CheckpointNames) -> OnFleet:
        """Make them, or find those of a driver before.

        Raises:
            LimitError: they cannot fit.
        """
        recipe, ring = sizes.recipe, Ring(sizes.workers, sizes.recipe.lateness)
        k, words = recipe.topics, recipe.vocabulary
        with _explaining(recipe):
            counts = names.give(lambda name: DCV.dense(words, k, "int32", layout="column", name=name))
        frequencies = saved = None
        if recipe.sync == "rotation":
            frequencies = names.give(lambda name: DCV.dense(words, 1, "int64", name=name))
        if recipe.save_interval:
            saved = Saved.make(k, sizes.tokens, sizes.workers, names)
        fleet = OnFleet(
            counts.matrix(),
            names.give(lambda name: DCV.dense(k, 1, "int64", name=name)),
            names.give(lambda name: DCV.dense(k, ring.rows, "int64", name=name)).matrix(),
            names.give(lambda name: DCV.dense(REPORTED, ring.rows, "float64", name=name)).matrix(),
            names.give(lambda name: DCV.sparse(2**63, 1, "int64", name=name)),
            frequencies,
            names.give(lambda name: DCV.dense(k, 2, "float64", name=name)).matrix(),
            names.give(lambda name: DCV.sparse(2**63, 1, "int64", name=name)),
            saved,
            ring,
        )
        if not names.begun:
            fleet.alphas.push([0, 1], np.stack([recipe.alphas] * 2))
        return fleet

    def alpha(self, fit: int) -> Float64s:
        """Return what alpha is by a fit."""
        alpha: Float64s = self.alphas.pull([row_of(fit)])[0]
        return alpha

    def reported(self, clock: int) -> Float64s:
        """Return the sums of what workers have reported of a clock."""
        sums: Float64s = self.reports.pull(self.shares_ring.of_clock(clock)).sum(axis=0)
        return sums

    def look(self, beta: float) -> Look:
        """Look at all counts where they lie."""
        likelihood, sums, negative = self.counts.apply("topics.look", beta=[beta])
        return Look(float(likelihood[0]), sums, int(negative[0]))

    def is_made_anew(self, clock: int) -> bool:
        """Tell whether workers are to make counts anew in a clock, or in one that they may be in by then."""
        return bool(self.marks.pull(np.arange(clock, clock + self.shares_ring.staleness + 1)).any())

    def clear(self) -> None:
        """Make as if no token had ever been added."""
        self.counts.zero()
        if self.frequencies is not None:
            self.frequencies.zero()

    def free(self) -> None:
        for matrix in (self.counts, self.shares, self.reports, self.alphas):
            matrix.free()
        vectors = (self.totals, self.marks, self.histogram, self.frequencies)
        free_all([vector for vector in vectors if vector is not None])
        if self.saved is not None:
            self.saved.free()


@dataclass(frozen=True, eq=False)
class Look:
    """What the servers see in all counts.

    Attributes:
        likelihood: what counts are to log p(w | z).
        totals: int64: tokens in each topic.
        negative: how many counts are negative.
    """

    likelihood: float
    totals: Int64s
    negative: int


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
