"""The state of a training by sampling on the servers: counts, and each worker's totals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ps2.algorithms.frame.memory import fitting_servers
from ps2.algorithms.topics.plan import SamplingPlan
from ps2.algorithms.topics.saved_topics import SavedTopics
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.array_types import Int64s
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.errors import PS2Error


@dataclass(frozen=True)
class ClockRows:
    """Rows with the totals of each worker's last clocks: as many as other workers may need.

    A worker in clock t reads the totals of clock t - staleness - 1; others may be in clock t + staleness.
    """

    workers: int
    staleness: int

    @property
    def depth(self) -> int:
        """Rows per worker."""
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
    """Everything that determines sizes on the servers.

    Attributes:
        tokens: the sum of all counts.
    """

    plan: SamplingPlan
    tokens: int
    workers: int


@dataclass(frozen=True, eq=False)
class SharedCounts:
    """Vectors and matrices; picklable.

    Attributes:
        counts: int32: a column for each word, with its tokens in each topic.
        shares: int64: tokens of each worker in each topic, after its last clocks, in the rows of ``shares_ring``.
        frequencies: int64: occurrences of each word; None: the synchronization does not need them.
        saved: topics of tokens; None: they are not saved.
    """

    counts: DCVMatrix
    shares: DCVMatrix
    frequencies: DCV | None
    saved: SavedTopics | None
    shares_ring: ClockRows

    @staticmethod
    def make(sizes: Sizes, names: CheckpointNames) -> SharedCounts:
        """Make the vectors and matrices, or find those of an earlier driver.

        Raises:
            LimitError: they do not fit the servers.
        """
        plan, ring = sizes.plan, ClockRows(sizes.workers, sizes.plan.lateness)
        k, words = plan.topics, plan.vocabulary
        size = k * words * np.dtype(np.int32).itemsize
        with fitting_servers(f"{k:,} topics of {words:,} words have counts of {size:,} bytes, which"):
            counts = names.give(lambda name: DCV.dense(words, k, "int32", layout="column", name=name))
        frequencies = saved = None
        if plan.settings.sync == "rotation" and not plan.is_local:
            frequencies = names.give(lambda name: DCV.dense(words, 1, "int64", name=name))
        if plan.save_interval:
            saved = SavedTopics.make(k, sizes.tokens, sizes.workers, names)
        shares = names.give(lambda name: DCV.dense(k, ring.rows, "int64", name=name)).matrix()
        return SharedCounts(counts.matrix(), shares, frequencies, saved, ring)

    def summarize(self, beta: float) -> CountsSummary:
        """Summarize all counts on the servers."""
        likelihood, totals, negative = self.counts.apply("topics.look", beta=[beta])
        return CountsSummary(float(likelihood[0]), totals, int(negative[0]))

    def clear(self) -> None:
        """Reset the counts to the state before any token was added."""
        self.counts.zero()
        if self.frequencies is not None:
            self.frequencies.zero()

    def free(self) -> None:
        self.counts.free()
        self.shares.free()
        if self.frequencies is not None:
            self.frequencies.free()
        if self.saved is not None:
            self.saved.free()


@dataclass(frozen=True, eq=False)
class CountsSummary:
    """A summary of all counts.

    Attributes:
        likelihood: the counts' part of log p(w | z).
        totals: int64: tokens in each topic.
        negative: number of negative counts.
    """

    likelihood: float
    totals: Int64s
    negative: int

    def words_likelihood(self, plan: SamplingPlan) -> float:
        """Return log p(w | z): Griffiths and Steyvers (2004), equation 2."""
        all_beta = plan.beta * plan.vocabulary
        total_terms = (math.lgamma(all_beta) - math.lgamma(n + all_beta) for n in self.totals.tolist())
        return self.likelihood + sum(total_terms)

    def check(self, tokens: int, iteration: int) -> None:
        """Raise PS2Error unless the counts are those of this number of tokens."""
        if self.negative or self.totals.sum() != tokens:
            raise PS2Error(
                f"iteration {iteration}: expected counts of {tokens:,} tokens, none negative, got "
                f"{self.totals.sum():,} tokens, and {self.negative:,} negative counts"
            )
