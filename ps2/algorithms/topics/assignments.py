"""The topics that a worker's tokens have been given, and by what counts change when they get others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics import sampling_kernels as kernels
from ps2.algorithms.topics.corpus import Corpus, Prior, dtype_of
from ps2.algorithms.topics.problem import SamplerName
from ps2.algorithms.topics.tallies import tally_of
from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s

Array = npt.NDArray[Any]
Int32s = npt.NDArray[np.int32]


class Assignments:
    """The topics of a corpus's tokens, and of its documents.

    Attributes:
        topics: shape (tokens,), unsigned: of each token.
    """

    def __init__(self, corpus: Corpus, topics: int, given: Array, sampler: SamplerName = "auto") -> None:
        """Args:
        topics: how many there are.
        given: integers: of each token its topic; it is copied.
        sampler: how topics are drawn.
        """
        self.corpus = corpus
        self.topics = given.astype(dtype_of(topics))
        self._count, self._tally = topics, tally_of(sampler, corpus, topics, self.topics)

    @staticmethod
    def random(corpus: Corpus, topics: int, key: np.uint64, sampler: SamplerName = "auto") -> Assignments:
        """Give each token any topic."""
        given = np.empty(corpus.size, dtype_of(topics))
        kernels.draw_topics(*corpus.for_kernels, topics, key, given)
        return Assignments(corpus, topics, given, sampler)

    def sample(self, begin: int, end: int, counts: Array, totals: Int64s, prior: Prior, key: np.uint64) -> None:
        """Give the tokens of some words topics anew.

        Args:
            begin, end: places in the corpus's words.
            counts: int32, shape (end - begin, topics): of these words' topics, those of other workers' tokens too.
            totals: int64, shape (topics,): of all words; both follow what changes.
            key: of seed and iteration.
        """
        self._tally.sample(begin, end, counts, totals, prior, key)

    def changed(self, begin: int, end: int, before: Array) -> Changes:
        """Return by what the counts of some words have changed since their tokens had other topics.

        Args:
            begin, end: as of ``sample``.
            before: the topics that the words' tokens had.
        """
        begins = self.corpus.begins[begin : end + 1]
        after = self.topics[begins[0] : begins[-1]]
        most = 2 * len(after)
        found = np.empty(end - begin, np.int32), np.empty(most, self.topics.dtype), np.empty(most, np.int32)
        shifted = readable(begins - begins[0])
        count = kernels.changes(shifted, readable(before), readable(after), self._counted(), found)
        return Changes(self.corpus.words[begin:end], found[0], found[1][:count], found[2][:count])

    def listed(self, begin: int, end: int) -> Changes:
        """Return the counts of some words: by what they change when these tokens are added.

        Args:
            begin, end: as of ``sample``.
        """
        begins = self.corpus.begins[begin : end + 1]
        topics = self.topics[begins[0] : begins[-1]]
        found = np.empty(end - begin, np.int32), np.empty(len(topics), topics.dtype), np.empty(len(topics), np.int32)
        count = kernels.list_counts(readable(begins - begins[0]), readable(topics), self._counted(), found)
        return Changes(self.corpus.words[begin:end], found[0], found[1][:count], found[2][:count])

    def _counted(self) -> Int32s:
        """Return room to count by topic."""
        return np.zeros(self._count, np.int32)

    def likelihood(self, prior: Prior) -> float:
        """Return log p(z), the documents' part of the joint likelihood."""
        return self._tally.likelihood(prior.alpha)

    def counts_of_counts(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return topics, how often they are in a document, and in how many documents they are so often."""
        return self._tally.counts_of_counts()


@dataclass(frozen=True, eq=False)
class Changes:
    """By what counts of words in topics change.

    Attributes:
        words: int64: numbers among all.
        sizes: int32: of each word, how many counts change.
        topics, by: of each of these, one word's side by side.
    """

    words: Int64s
    sizes: Int32s
    topics: Array
    by: Int32s
