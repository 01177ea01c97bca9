"""The topics of a worker's tokens, and the resulting changes of counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics import sampling_kernels as kernels
from ps2.algorithms.topics.corpus import Corpus, Prior, topic_dtype
from ps2.algorithms.topics.tallies import make_tally
from ps2.array_types import Int32s, Int64s
from ps2.ops.guards import readable

Array = npt.NDArray[Any]


class Assignments:
    """The topics of a corpus's tokens, and of its documents.

    Attributes:
        topics: shape (tokens,), unsigned: the topic of each token.
    """

    def __init__(self, corpus: Corpus, topics: int, token_topics: Array, sampler: str = "auto") -> None:
        """Args:
        topics: number of topics.
        token_topics: integers: the topic of each token; copied.
        sampler: the method of drawing topics.
        """
        self.corpus = corpus
        self.topics = token_topics.astype(topic_dtype(topics))
        self._count, self._tally = topics, make_tally(sampler, corpus, topics, self.topics)

    @staticmethod
    def random(corpus: Corpus, topics: int, key: np.uint64, sampler: str = "auto") -> Assignments:
        """Assign random topics to all tokens."""
        token_topics = np.empty(corpus.size, topic_dtype(topics))
        kernels.draw_topics(*corpus.for_kernels, topics, key, token_topics)
        return Assignments(corpus, topics, token_topics, sampler)

    def sample(self, begin: int, end: int, counts: Array, totals: Int64s, prior: Prior, key: np.uint64) -> None:
        """Draw new topics for the tokens of some words.

        Args:
            begin, end: positions among the corpus's words.
            counts: int32, shape (end - begin, topics): counts of these words, with other workers' tokens; updated.
            totals: int64, shape (topics,): counts of all words; updated.
            key: the key of seed and iteration.
        """
        self._tally.sample(begin, end, counts, totals, prior, key)

    def changed(self, begin: int, end: int, before: Array) -> Changes:
        """Return the changes of some words' counts since their tokens had the topics ``before``.

        Args:
            begin, end: see ``sample``.
            before: previous topics of the words' tokens.
        """
        begins = self.corpus.begins[begin : end + 1]
        after = self.topics[begins[0] : begins[-1]]
        limit = 2 * len(after)
        out = np.empty(end - begin, np.int32), np.empty(limit, self.topics.dtype), np.empty(limit, np.int32)
        shifted = readable(begins - begins[0])
        count = kernels.changes(shifted, readable(before), readable(after), self._counted(), out)
        return Changes(self.corpus.words[begin:end], out[0], out[1][:count], out[2][:count])

    def listed(self, begin: int, end: int) -> Changes:
        """Return some words' counts as changes: those of adding all their tokens.

        Args:
            begin, end: see ``sample``.
        """
        begins = self.corpus.begins[begin : end + 1]
        topics = self.topics[begins[0] : begins[-1]]
        out = np.empty(end - begin, np.int32), np.empty(len(topics), topics.dtype), np.empty(len(topics), np.int32)
        count = kernels.list_counts(readable(begins - begins[0]), readable(topics), self._counted(), out)
        return Changes(self.corpus.words[begin:end], out[0], out[1][:count], out[2][:count])

    def _counted(self) -> Int32s:
        """Return a buffer to count by topic."""
        return np.zeros(self._count, np.int32)

    def likelihood(self, prior: Prior) -> float:
        """Return log p(z), the documents' part of the joint likelihood."""
        return self._tally.likelihood(prior.alpha)

    def counts_of_counts(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return a histogram: topics, numbers of occurrences in a document, and how many documents have that number."""
        return self._tally.counts_of_counts()


@dataclass(frozen=True, eq=False)
class Changes:
    """Changes of words' counts.

    Attributes:
        words: int64: numbers of the words.
        sizes: int32: number of changed counts of each word.
        topics, by: topic and change of each changed count, word by word.
    """

    words: Int64s
    sizes: Int32s
    topics: Array
    by: Int32s
