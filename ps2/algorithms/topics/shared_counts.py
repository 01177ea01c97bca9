"""The state on the servers of a training by sampling: counts, each worker's totals, and saved topics of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.frame.memory import fitting_servers
from ps2.algorithms.topics.corpus import topic_dtype
from ps2.algorithms.topics.plan import SamplingPlan
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.array_types import Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.errors import PS2Error

Array = npt.NDArray[Any]

# The number of int32 values of a page of saved topics. Each worker has its own pages.
PAGE = 1 << 14
# The fields of each worker in ``SavedTopics.known``: the number of its pages; the hash of the tokens whose topics it
# has saved (0: it has not saved).
PAGES, TOKENS_HASH = range(2)
FIELDS = 2


@dataclass(frozen=True)
class ClockRows:
    """The rows of a matrix that has, for each worker, the totals after each of its last ``depth`` clocks.

    A worker in clock t reads the totals of clock t - staleness - 1, while other workers may be in clock t + staleness.
    """

    workers: int
    staleness: int

    @property
    def depth(self) -> int:
        """The number of rows per worker."""
        return 2 * self.staleness + 2

    @property
    def rows(self) -> int:
        return self.workers * self.depth

    def row(self, rank: int, clock: int) -> int:
        return rank * self.depth + clock % self.depth

    def clock_rows(self, clock: int) -> list[int]:
        return [self.row(rank, clock) for rank in range(self.workers)]

    def worker_rows(self, rank: int) -> list[int]:
        return list(range(rank * self.depth, (rank + 1) * self.depth))


@dataclass(frozen=True, eq=False)
class SharedCounts:
    """Handles to the vectors and matrices on the servers; picklable.

    Attributes:
        counts: a column for each word, with the number of its tokens in each topic.
        worker_totals: the number of each worker's tokens in each topic, after each of its last clocks.
        frequencies: the number of tokens of each word; None: this ``sync`` does not need it.
        saved: the saved topics of tokens; None: they are not saved.
    """

    counts: DCVMatrix
    worker_totals: DCVMatrix
    frequencies: DCV | None
    saved: SavedTopics | None
    totals_ring: ClockRows

    @staticmethod
    def make(plan: SamplingPlan, names: CheckpointNames) -> SharedCounts:
        """Allocate the vectors, or find an earlier driver's; raise LimitError if they do not fit the servers."""
        ring = ClockRows(plan.workers, plan.lateness)
        k, words = plan.topics, plan.vocabulary
        count_bytes = k * words * np.dtype(np.int32).itemsize
        with fitting_servers(f"{k:,} topics of {words:,} words have counts of {count_bytes:,} bytes, which"):
            counts = names.vector(lambda name: DCV.dense(words, k, "int32", layout="column", name=name))
        frequencies = saved = None
        if plan.settings.sync == "rotation" and not plan.is_local:
            frequencies = names.vector(lambda name: DCV.dense(words, 1, "int64", name=name))
        if plan.save_interval:
            saved = SavedTopics.make(k, plan.tokens, plan.workers, names)
        worker_totals = names.vector(lambda name: DCV.dense(k, ring.rows, "int64", name=name)).matrix()
        return SharedCounts(counts.matrix(), worker_totals, frequencies, saved, ring)

    def summarize(self, beta: float) -> CountsSummary:
        return CountsSummary.from_reply(self.counts.apply("topics.look", beta=[beta]))

    def clear(self) -> None:
        """Reset the counts to the state before any token was added."""
        self.counts.zero()
        if self.frequencies is not None:
            self.frequencies.zero()

    def free(self) -> None:
        for part in (self.counts, self.worker_totals, self.frequencies, self.saved):
            if part is not None:
                part.free()


@dataclass(frozen=True, eq=False)
class CountsSummary:
    """A summary of all counts: their terms of log p(w | z), each topic's sum, and the number of negative counts."""

    likelihood: float
    totals: Int64s
    negative: int

    @staticmethod
    def from_reply(reply: Any) -> CountsSummary:
        """Read the reply of ``ops.look``."""
        likelihood, totals, negative = reply
        return CountsSummary(float(likelihood[0]), totals, int(negative[0]))

    def words_likelihood(self, plan: SamplingPlan) -> float:
        """Return log p(w | z): Griffiths and Steyvers (2004), equation 2."""
        all_beta = plan.beta * plan.vocabulary
        total_terms = (math.lgamma(all_beta) - math.lgamma(n + all_beta) for n in self.totals.tolist())
        return self.likelihood + sum(total_terms)

    def check(self, tokens: int, iteration: int) -> None:
        """Raise PS2Error unless no count is negative and their sum is ``tokens``."""
        if self.negative or self.totals.sum() != tokens:
            raise PS2Error(
                f"iteration {iteration}: expected counts of {tokens:,} tokens, none negative, got "
                f"{self.totals.sum():,} tokens, and {self.negative:,} negative counts"
            )


@dataclass(frozen=True, eq=False)
class SavedTopics:
    """The saved topics of all workers' tokens, with which a restarted worker continues; picklable.

    Attributes:
        pages: the topics, in rows of PAGE int32 values; each worker has its own rows.
        known: the fields of each worker, int64, shape (workers * FIELDS,).
        topics: the number of topics.
    """

    pages: DCVMatrix
    known: DCV
    topics: int

    @staticmethod
    def make(topics: int, tokens: int, workers: int, names: CheckpointNames) -> SavedTopics:
        rows = _pages(tokens, topics) + workers
        pages = names.vector(lambda name: DCV.dense(PAGE, rows, "int32", name=name)).matrix()
        return SavedTopics(pages, names.vector(lambda name: DCV.dense(workers * FIELDS, 1, "int64", name=name)), topics)

    def announce_size(self, rank: int, tokens: int) -> None:
        """Announce a worker's number of tokens. All workers announce it before a worker saves topics."""
        self.known.push(np.array([_pages(tokens, self.topics)]), np.array([rank * FIELDS + PAGES]))

    def save(self, rank: int, tokens_hash: int, topics: Array) -> None:
        """Save the topics of a worker's tokens. If the worker dies during this, some pages keep their old content."""
        rows = self._rows(rank)
        values = np.zeros(len(rows) * PAGE, np.int32)
        values.view(np.uint8)[: topics.nbytes] = topics.view(np.uint8)
        with batch():
            self.pages.push(rows, values.reshape(-1, PAGE))
            self.known.push(np.array([tokens_hash]), np.array([rank * FIELDS + TOKENS_HASH]))

    def load(self, rank: int, tokens_hash: int, tokens: int) -> Array | None:
        """Return the saved topics of a worker's tokens; None: it has not saved, or has saved topics of other tokens."""
        if int(self.known.pull(np.array([rank * FIELDS + TOKENS_HASH]))[0]) != tokens_hash:
            return None
        values: Array = self.pages.pull(self._rows(rank)).reshape(-1).view(topic_dtype(self.topics))
        return values[:tokens]

    def free(self) -> None:
        self.pages.free()
        self.known.free()

    def _rows(self, rank: int) -> Int64s:
        counts = self.known.pull().reshape(-1, FIELDS)[:, PAGES]
        return np.arange(counts[rank]) + counts[:rank].sum()


def _pages(tokens: int, topics: int) -> int:
    """Return the number of pages that the topics of tokens take."""
    return -(-tokens * topic_dtype(topics).itemsize // (PAGE * np.dtype(np.int32).itemsize))
