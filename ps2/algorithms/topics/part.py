"""A worker's part in a training: its tokens, and what the servers' counts have of them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics import ops
from ps2.algorithms.topics.assignments import Assignments, Changes
from ps2.algorithms.topics.corpus import Corpus, Prior, key_of
from ps2.algorithms.topics.hyperparameters import Fits, keys_of
from ps2.algorithms.topics.on_fleet import BYTES, LIKELIHOOD, REPORTED, TOKENS, OnFleet
from ps2.algorithms.topics.problem import Recipe
from ps2.algorithms.training.run import FIRST_CLOCK

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]

log = logging.getLogger(__name__)

# The clock in which tokens get their first topics; iterations come after it.
START = FIRST_CLOCK


class Part:
    """What a worker does in any clock, however counts are shared.

    A request changes counts of words from what this worker's tokens were to what they are; and words are read here
    after all that was changed here before. So counts that are read are never less than what this worker's tokens are,
    whatever others do, and none is negative.

    That breaks when a worker dies, as its next attempt cannot know what it had come to, and when the fleet goes back to
    a checkpoint. Then this worker gives no token another topic, and asks for all counts to be made anew in the next
    clock which all workers are sure to enter with that knowledge. There they meet, set the counts to 0, and add all
    their tokens.

    Attributes:
        totals: int64: how many tokens each topic has; follows what is sampled here.
    """

    def __init__(self, worker: Any, recipe: Recipe, fleet: OnFleet, corpus: Corpus) -> None:
        self.corpus, self.recipe = corpus, recipe
        self._worker, self._fleet, self._ring = worker, fleet, fleet.shares_ring
        self._fits = Fits(recipe.optimize_alpha, self._ring.staleness)
        self._fit, self._alpha = -1, recipe.alphas
        self._assignments = Assignments.random(corpus, recipe.topics, key_of(recipe.seed, 0), recipe.sampler)
        self._own, self._others = self._count_own(), np.zeros(recipe.topics, np.int64)
        self.totals = self._own.copy()
        self._is_in_step, self._due, self._epoch = False, -1, worker.epoch
        self._asked: tuple[int, Any, Any] = (-1, None, None)
        self._report = np.zeros(REPORTED)

    @property
    def topics(self) -> Array:
        """Of each token."""
        return self._assignments.topics

    # -- clocks --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Add all tokens to the counts, in the first clock; it may be done again by another attempt."""
        self._is_in_step = True
        self._add_all()
        self._tell_shares([self._ring.row(self._worker.rank, START)])

    def enter(self, clock: int, iteration: int) -> bool:
        """Begin a clock; return whether to sample in it."""
        self._check_step(clock)
        if self._asked[0] != clock:
            self._ask(clock, 0)
        _, marks, shares = self._asked
        # What was marked before the fleet went back is of a clock that some may have done in part.
        if marks.result()[0] == self._mark:
            self._make_anew(clock)
        self._others = np.zeros_like(self._own) if shares is None else shares.result().sum(axis=0)
        self.totals = self._others + self._own
        self._ask(clock + 1, 1)
        self._use_alpha(iteration)
        return self._is_in_step

    def leave(self, clock: int) -> None:
        """End a clock: tell how many tokens topics have here."""
        if self._is_in_step and not self._worker.goesBack:
            self._own = self.totals - self._others
            self._tell_shares([self._ring.row(self._worker.rank, clock)])

    def end_iteration(self, clock: int, iteration: int) -> None:
        """End an iteration, in its last clock: tell how it went, and save topics if it is time."""
        rank, fleet = self._worker.rank, self._fleet
        self._report[LIKELIHOOD] = self._assignments.likelihood(self._prior)
        fleet.reports.push([self._ring.row(rank, clock)], self._report[None], wait=False)
        self._report = np.zeros(REPORTED)
        if self._fits.made_after(iteration) is not None:
            self._add_histogram()
        if fleet.saved is not None and iteration % self.recipe.save_interval == 0:
            fleet.saved.save(rank, self.corpus, self.topics)

    # -- words ---------------------------------------------------------------------------------------------------------

    def ask(self, begin: int, end: int, ahead: int = 0) -> Any:
        """Ask for the counts of some words, by their places, for this clock or a later one; they come meanwhile."""
        return self._worker.prefetch(self._fleet.counts, columns=self.corpus.words[begin:end], ahead=ahead)

    def topics_of(self, begin: int, end: int) -> Array:
        """Return a copy of the topics that the tokens of some words have."""
        return self.topics[self.corpus.begins[begin] : self.corpus.begins[end]].copy()

    def sample(self, begin: int, end: int, counts: Array, iteration: int) -> None:
        """Give tokens of some words topics anew.

        Args:
            begin, end: places of words.
            counts: int32: of these words, as on the servers; follow.
        """
        if self._worker.goesBack:  # they are of a checkpoint, and know little of these tokens
            return
        key = key_of(self.recipe.seed, iteration)
        self._assignments.sample(begin, end, counts, self.totals, self._prior, key)
        self._report[TOKENS] += self.corpus.begins[end] - self.corpus.begins[begin]
        self._report[BYTES] += counts.nbytes

    def tell(self, begin: int, end: int, before: Array) -> None:
        """Tell the servers by what counts of some words have changed.

        Args:
            before: topics that these words' tokens had.
        """
        self._add(self._assignments.changed(begin, end, before))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _check_step(self, clock: int) -> None:
        """See that counts are made anew if they are not what this worker's tokens are."""
        if self._worker.epoch != self._epoch:
            self._epoch, self._due, self._is_in_step = self._worker.epoch, -1, False
        if self._is_in_step or self._due >= 0:
            return
        # Who enters that clock has seen what was marked in this one; and of that clock no request was ever applied.
        self._due = clock + self._ring.staleness + 1
        due = np.array([self._due])
        # A checkpoint may hold the id of what was marked in this clock before, and then a push counts for nothing.
        while not self._worker.goesBack and self._fleet.marks.pull(due)[0] != self._mark:
            self._fleet.marks.push(np.array([self._mark]), due)

    @property
    def _mark(self) -> int:
        """What marks a clock now: another number each time that the fleet has gone back."""
        return int(self._worker.epoch) + 1

    def go_on(self) -> None:
        """Go on for an attempt before this one, or a driver: with the topics that were saved last, if there are any."""
        saved = self._fleet.saved
        found = None if saved is None else saved.load(self._worker.rank, self.corpus)
        if found is None:
            log.warning("rank %d: topics of its tokens were not saved, and are drawn anew", self._worker.rank)
        else:
            self._assignments = Assignments(self.corpus, self.recipe.topics, found, self.recipe.sampler)
            self._own = self._count_own()

    def _make_anew(self, clock: int) -> None:
        """Make all counts anew, together with all other workers."""
        worker, words = self._worker, self.recipe.vocabulary
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
        return np.bincount(self.topics, minlength=self.recipe.topics)

    # -- the servers ---------------------------------------------------------------------------------------------------

    def _add_all(self) -> None:
        for begin, end in self.corpus.slices(self.recipe.width):
            self._add(self._assignments.listed(begin, end))

    def _add(self, changes: Changes) -> None:
        some = changes.sizes > 0
        words, sizes = changes.words[some], ops.narrow(changes.sizes[some], int(changes.sizes.max(initial=0)))
        topics, by = ops.narrow(changes.topics, self.recipe.topics - 1), ops.fold(changes.by)
        if len(words):
            self._fleet.counts.apply(
                "topics.add_counts", wait=False, words=words, sizes=sizes, topics=topics, changes=by
            )
        self._report[BYTES] += words.nbytes + sizes.nbytes + topics.nbytes + by.nbytes

    def _tell_shares(self, rows: list[int]) -> None:
        self._fleet.shares.push(rows, np.broadcast_to(self._own, (len(rows), len(self._own))), wait=False)

    def _ask(self, clock: int, ahead: int) -> None:
        """Ask what there is to know in a clock: whether counts are made anew; the newest shares that all see alike."""
        fleet, worker = self._fleet, self._worker
        known = self._ring.of_clock(max(clock - self._ring.staleness - 1, START))
        rows = [row for rank, row in enumerate(known) if rank != worker.rank]
        shares = worker.prefetch(fleet.shares, rows, ahead=ahead) if rows else None
        self._asked = clock, worker.prefetch(fleet.marks, np.array([clock]), ahead=ahead), shares

    def _use_alpha(self, iteration: int) -> None:
        fit = self._fits.used_in(iteration)
        if fit != self._fit and self._fits.is_asked:
            self._fit, self._alpha = fit, self._fleet.alpha(fit)

    @property
    def _prior(self) -> Prior:
        return Prior(self._alpha, self.recipe.beta, self.recipe.vocabulary)

    def _add_histogram(self) -> None:
        topics, counts, documents = self._assignments.counts_of_counts()
        lengths, long = np.unique(self.corpus.lengths, return_counts=True)
        keys = np.concatenate([keys_of(topics, counts), keys_of(np.full_like(lengths, self.recipe.topics), lengths)])
        self._fleet.histogram.add(np.concatenate([documents, long]), keys, wait=False)
