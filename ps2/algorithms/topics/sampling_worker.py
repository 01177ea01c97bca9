"""A worker's state in a training by sampling: its tokens, and its contribution to the counts on the servers."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics.alpha import AlphaSchedule, keys_of
from ps2.algorithms.topics.assignments import Assignments, Changes
from ps2.algorithms.topics.corpus import Corpus, Prior, key_of
from ps2.algorithms.topics.options import SamplingOptions
from ps2.algorithms.topics.saved_topics import hash_of
from ps2.algorithms.topics.shared_counts import SharedCounts
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.array_types import Int64s
from ps2.ops.blocks import fold, narrow_unsigned

Array = npt.NDArray[Any]

log = logging.getLogger(__name__)

# In this clock tokens get their first topics; the iterations follow.
START = FIRST_CLOCK
# Fields of the driver's messages. ANEW: the clock in which all workers rebuild the counts, with the EPOCH of the
# request. FIT: the number of a fit of alpha, with ALPHA.
ANEW, EPOCH, FIT, ALPHA = "anew", "epoch", "fit", "alpha"
# Fields of a worker's report on an iteration.
LIKELIHOOD, TOKENS, BYTES = "likelihood", "tokens", "bytes"
KEYS, DOCUMENTS = "keys", "documents"
# A worker that needs no rebuilt counts reports this instead of its epoch.
NOT_ASKED = -1


class SamplingWorker:
    """The part of a worker's program that all ways of sharing counts have in common.

    A request moves the counts of some words from this worker's previous topics to its current ones, and this worker
    reads words after all of its own changes. So counts that it reads include at least its own tokens, whatever other
    workers do, and no count is negative.

    A crash breaks that: the next attempt does not know the topics that its predecessor reached. So does a rollback of
    the fleet to a checkpoint. Then the worker stops sampling and asks the driver to have all counts rebuilt. The
    driver's message names the first clock that no worker enters before reading it. In that clock the workers meet, set
    the counts to 0, and add all their tokens.

    Attributes:
        totals: int64, shape (topics,): tokens of each topic; sampling updates it.
    """

    def __init__(self, worker: Any, options: SamplingOptions, fleet: SharedCounts, corpus: Corpus) -> None:
        self.corpus, self.options = corpus, options
        self._worker, self._fleet, self._ring = worker, fleet, fleet.shares_ring
        self._fits = AlphaSchedule(options.optimize_alpha, self._ring.staleness)
        self._alphas, self._alpha = {self._fits.first - 1: options.alphas}, options.alphas
        self._assignments = Assignments.random(corpus, options.topics, key_of(options.seed, 0), options.sampler)
        self._own, self._others = self._count_own(), np.zeros(options.topics, np.int64)
        self.totals = self._own.copy()
        self._is_in_step, self._due, self._epoch = False, -1, worker.epoch
        self._anew: dict[int, int] = {}  # clocks in which counts are made anew, and the epoch in which that was decided
        self._asked: tuple[int, Any] = (-1, None)
        self._tokens = self._bytes = 0  # of this iteration so far

    @property
    def topics(self) -> Array:
        """Topic of each token."""
        return self._assignments.topics

    # -- clocks --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Add all tokens to the counts in the first clock; another attempt may repeat it."""
        self._is_in_step = True
        self._add_all()
        self._tell_shares([self._ring.row(self._worker.rank, START)])

    def enter(self, clock: int, iteration: int) -> bool:
        """Begin a clock; return whether to sample in it."""
        self._check_step(clock)
        self._read_messages()
        if self._asked[0] != clock:
            self._ask(clock, 0)
        # A clock that was chosen before a rollback may be partly done.
        if self._anew.get(clock) == self._epoch:
            self._make_anew(clock)
        _, shares = self._asked
        self._others = np.zeros_like(self._own) if shares is None else shares.result().sum(axis=0)
        self.totals = self._others + self._own
        self._ask(clock + 1, 1)
        self._use_alpha(iteration)
        return self._is_in_step

    def leave(self, clock: int) -> None:
        """End a clock: publish this worker's totals."""
        if self._is_in_step and not self._worker.goesBack:
            self._own = self.totals - self._others
            self._tell_shares([self._ring.row(self._worker.rank, clock)])

    def end_iteration(self, iteration: int) -> None:
        """End an iteration in its last clock: report on it, and save topics when due."""
        likelihood = self._assignments.likelihood(self._prior)
        self._worker.report({LIKELIHOOD: likelihood, TOKENS: int(self._tokens), BYTES: int(self._bytes)})
        self._tokens = self._bytes = 0
        if self._fits.made_after(iteration) is not None:
            self._report_histogram()
        saved = self._fleet.saved
        if saved is not None and iteration % self.options.save_interval == 0:
            saved.save(self._worker.rank, hash_of(self.corpus), self.topics)

    # -- words ---------------------------------------------------------------------------------------------------------

    def ask(self, begin: int, end: int, ahead: int = 0) -> Any:
        """Prefetch the counts of some words, by position, for this clock or a later one."""
        return self._worker.prefetch(self._fleet.counts, columns=self.corpus.words[begin:end], ahead=ahead)

    def topics_of(self, begin: int, end: int) -> Array:
        """Return a copy of the topics of some words' tokens."""
        return self.topics[self.corpus.begins[begin] : self.corpus.begins[end]].copy()

    def sample(self, begin: int, end: int, counts: Array, iteration: int) -> None:
        """Draw new topics for the tokens of some words.

        Args:
            begin, end: positions of the words.
            counts: int32: counts of these words as on the servers; updated.
        """
        if self._worker.goesBack:  # they are of a checkpoint, and know little of these tokens
            return
        key = key_of(self.options.seed, iteration)
        self._assignments.sample(begin, end, counts, self.totals, self._prior, key)
        self._tokens += self.corpus.begins[end] - self.corpus.begins[begin]
        self._bytes += counts.nbytes

    def tell(self, begin: int, end: int, before: Array) -> None:
        """Send the changes of some words' counts to the servers.

        Args:
            before: previous topics of these words' tokens.
        """
        self._add(self._assignments.changed(begin, end, before))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _check_step(self, clock: int) -> None:
        """Ask the driver to have all counts rebuilt if they do not match this worker's tokens."""
        if self._worker.epoch != self._epoch:
            self._epoch, self._due, self._is_in_step = self._worker.epoch, -1, False
        asks = not self._is_in_step and self._due < 0
        if asks:
            self._due = due_after(clock, self._ring.staleness)
        self._worker.report(self._epoch if asks else NOT_ASKED, "max")

    def _read_messages(self) -> None:
        for message in self._worker.messages:
            if ANEW in message:
                self._anew[message[ANEW]] = message[EPOCH]
            if FIT in message:
                self._alphas[message[FIT]] = message[ALPHA]

    def go_on(self) -> None:
        """Continue after an earlier attempt or driver, with the last saved topics if there are any."""
        saved = self._fleet.saved
        found = None if saved is None else saved.load(self._worker.rank, hash_of(self.corpus), self.corpus.size)
        if found is None:
            log.warning("rank %d: topics of its tokens were not saved, and are drawn anew", self._worker.rank)
        else:
            self._assignments = Assignments(self.corpus, self.options.topics, found, self.options.sampler)
            self._own = self._count_own()

    def _make_anew(self, clock: int) -> None:
        """Rebuild all counts, together with all other workers."""
        worker, words = self._worker, self.options.vocabulary
        self._own = self._count_own()
        worker.barrier()
        begin, end = (words * rank // worker.workers for rank in (worker.rank, worker.rank + 1))
        self._fleet.counts.apply("topics.clear", begin=begin, end=end)
        worker.barrier()
        self._add_all()
        self._tell_shares(self._ring.of_worker(worker.rank))
        worker.barrier()
        if clock == self._due:
            self._is_in_step, self._due = True, -1

    def _count_own(self) -> Int64s:
        return np.bincount(self.topics, minlength=self.options.topics)

    # -- the servers ---------------------------------------------------------------------------------------------------

    def _add_all(self) -> None:
        for begin, end in self.corpus.slices(self.options.width):
            self._add(self._assignments.listed(begin, end))

    def _add(self, changes: Changes) -> None:
        some = changes.sizes > 0
        words, most = changes.words[some], int(changes.sizes.max(initial=0))
        sizes, by = narrow_unsigned(changes.sizes[some], most), fold(changes.by)
        topics = narrow_unsigned(changes.topics, self.options.topics - 1)
        if len(words):
            self._fleet.counts.apply(
                "columns_add_some", wait=False, slots=words, sizes=sizes, places=topics, changes=by
            )
        self._bytes += words.nbytes + sizes.nbytes + topics.nbytes + by.nbytes

    def _tell_shares(self, rows: list[int]) -> None:
        self._fleet.shares.push(rows, np.broadcast_to(self._own, (len(rows), len(self._own))), wait=False)

    def _ask(self, clock: int, ahead: int) -> None:
        """Prefetch the newest totals of the other workers that all workers see alike in a clock."""
        worker = self._worker
        known = self._ring.of_clock(max(clock - self._ring.staleness - 1, START))
        rows = [row for rank, row in enumerate(known) if rank != worker.rank]
        self._asked = clock, worker.prefetch(self._fleet.shares, rows, ahead=ahead) if rows else None

    def _use_alpha(self, iteration: int) -> None:
        if self._fits.is_asked:
            self._alpha = self._alphas[self._fits.used_in(iteration)]

    @property
    def _prior(self) -> Prior:
        return Prior(self._alpha, self.options.beta, self.options.vocabulary)

    def _report_histogram(self) -> None:
        counted = self._assignments.counts_of_counts()
        report_histogram(self._worker, self.options.topics, *counted, self.corpus.lengths)


def report_histogram(
    worker: Any, count: int, topics: Int64s, counts: Int64s, documents: Int64s, lengths: Int64s
) -> None:
    """Report what alpha is fitted to.

    Args:
        count: number of topics.
        topics, counts, documents: as ``Assignments.counts_of_counts`` returns them.
        lengths: int64: tokens of each document.
    """
    lengths, long = np.unique(lengths, return_counts=True)
    keys = np.concatenate([keys_of(topics, counts), keys_of(np.full_like(lengths, count), lengths)])
    worker.report({KEYS: keys, DOCUMENTS: np.concatenate([documents, long])}, "concat")


def due_after(clock: int, staleness: int) -> int:
    """Return the first clock that no worker enters before it has read the driver's message of ``clock``."""
    return clock + staleness + 1
