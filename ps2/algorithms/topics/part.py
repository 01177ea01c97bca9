"""A worker's part in a training: its tokens, and what the servers' counts have of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics import ops
from ps2.algorithms.topics.corpus import Assignments, Changes, Corpus, Prior, key_of
from ps2.algorithms.topics.on_fleet import BYTES, LIKELIHOOD, REPORTED, TOKENS, OnFleet
from ps2.algorithms.topics.problem import Recipe
from ps2.algorithms.training.run import FIRST_CLOCK

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]

# The clock in which tokens get their first topics; iterations come after it.
START = FIRST_CLOCK


class Part:
    """What a worker does in any clock, however counts are shared.

    A request changes counts of words from what this worker's tokens were to what they are. So the servers' counts are
    never less than what its tokens are, whatever others do, and none is negative.
    """

    def __init__(self, worker: Any, recipe: Recipe, fleet: OnFleet, corpus: Corpus) -> None:
        self.corpus, self.recipe = corpus, recipe
        self._worker, self._fleet = worker, fleet
        self._prior = Prior(recipe.alphas, recipe.beta, recipe.vocabulary)
        self._assignments = Assignments.random(corpus, recipe.topics, key_of(recipe.seed, 0))
        # How many of its tokens each topic has; those that all know of; and the same as the rows on the servers say.
        self._own = np.bincount(self._assignments.topics, minlength=recipe.topics)
        self._added = np.zeros(recipe.topics, np.int64)
        self._told = np.zeros((fleet.totals_ring.depth, recipe.topics), np.int64)
        # What was asked for of the others' totals, their sum, and that with the own ones.
        self._asked: tuple[int, Any] = (-1, None)
        self._others = np.zeros(recipe.topics, np.int64)
        self.totals = self._own.copy()
        self._report = np.zeros(REPORTED)

    def start(self) -> None:
        """Add all tokens to the counts."""
        for begin, end in self.corpus.slices(self.recipe.width):
            self._add(self._assignments.listed(begin, end))
        self._tell_totals(START)

    def enter(self, clock: int) -> None:
        """Begin a clock: learn how many tokens topics have."""
        self._others = self._read_totals(clock)
        self.totals = self._others + self._own
        self._ask_totals(clock + 1)

    def ask(self, begin: int, end: int, ahead: int = 0) -> Any:
        """Ask for the counts of some words, by their places; return what will have them, in this clock or the next."""
        return self._worker.prefetch(self._fleet.counts, columns=self.corpus.words[begin:end], ahead=ahead)

    def sample(self, begin: int, end: int, counts: Array, iteration: int) -> None:
        """Give tokens of some words topics anew, and tell the servers what that changes.

        Args:
            begin, end: places of words.
            counts: int32: of these words, as on the servers.
        """
        tokens = slice(int(self.corpus.begins[begin]), int(self.corpus.begins[end]))
        before = self._assignments.topics[tokens].copy()
        key = key_of(self.recipe.seed, iteration)
        self._assignments.sample(begin, end, counts, self.totals, self._prior, key)
        self._add(self._assignments.changed(begin, end, before))
        self._report[TOKENS] += len(before)
        self._report[BYTES] += counts.nbytes

    def leave(self, clock: int, with_likelihood: bool) -> None:
        """End a clock: tell how many tokens topics have, and how it went."""
        self._own = self.totals - self._others
        self._tell_totals(clock)
        if with_likelihood:
            self._report[LIKELIHOOD] = self._assignments.likelihood(self._prior)
        row = self._fleet.reports_ring.row(self._worker.rank, clock)
        self._fleet.reports.push([row], self._report[None], wait=False)
        self._report = np.zeros(REPORTED)

    def _add(self, changes: Changes) -> None:
        some = changes.sizes > 0
        words, sizes = changes.words[some], ops.narrow(changes.sizes[some], int(changes.sizes.max(initial=0)))
        topics, by = ops.narrow(changes.topics, self.recipe.topics - 1), ops.fold(changes.by)
        if len(words):
            self._fleet.counts.apply(
                "topics.add_counts", wait=False, words=words, sizes=sizes, topics=topics, changes=by
            )
        self._report[BYTES] += words.nbytes + sizes.nbytes + topics.nbytes + by.nbytes

    def _tell_totals(self, clock: int) -> None:
        ring, rank = self._fleet.totals_ring, self._worker.rank
        told = self._told[clock % ring.depth]
        values = np.stack([self._own - self._added, self._own - told])
        self._fleet.totals.add([0, ring.row(rank, clock)], values, wait=False)
        told[:] = self._added = self._own

    def _ask_totals(self, clock: int) -> None:
        """Ask for the other workers' totals: the newest that all know in a clock, for sure."""
        ring, worker = self._fleet.totals_ring, self._worker
        known = max(clock - ring.staleness - 1, START)
        rows = [row for rank, row in enumerate(ring.rows(known)) if rank != worker.rank]
        asked = worker.prefetch(self._fleet.totals, rows, ahead=clock - worker.clock) if rows else None
        self._asked = clock, asked

    def _read_totals(self, clock: int) -> Int64s:
        if self._asked[0] != clock:
            self._ask_totals(clock)
        asked = self._asked[1]
        sums: Int64s = np.zeros_like(self._own) if asked is None else asked.result().sum(axis=0)
        return sums
