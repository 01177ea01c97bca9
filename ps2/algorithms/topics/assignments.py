"""The topics of a worker's tokens, and its documents' counts of topics in the two forms that the samplers use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics import dense_kernels, sampling_kernels, sparse_kernels
from ps2.algorithms.topics.corpus import Corpus, Prior, topic_dtype
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.guards import readable

Array = npt.NDArray[Any]

# Lists of documents with fewer tokens hold 16-bit counts.
SHORT = 1 << 16
# The number of counts of a topic in a document whose logarithms are computed once.
TABLE = 32
# Most counts of a topic in a document are below this.
SMALL = 64
# Beyond this many topics lists are faster, measured on documents of 136 tokens.
MAX_DENSE = 256
# Rows may take this many times the memory of lists.
MAX_RATIO = 2


class Assignments:
    """The topics of a corpus's tokens, and of its documents; ``topics`` has the topic of each token."""

    def __init__(self, corpus: Corpus, topics: int, token_topics: Array, sampler: str = "auto") -> None:
        """Copy the topic of each token; ``topics`` is the number of topics."""
        self.corpus = corpus
        self.topics = token_topics.astype(topic_dtype(topics))
        self._count = topics
        is_dense = sampler == "dense" or (sampler == "auto" and _is_dense(corpus, topics))
        self._tally = (DenseTally if is_dense else SparseTally)(corpus, topics, self.topics)

    @staticmethod
    def random(corpus: Corpus, topics: int, key: np.uint64, sampler: str = "auto") -> Assignments:
        """Assign random topics to all tokens."""
        token_topics = np.empty(corpus.size, topic_dtype(topics))
        sampling_kernels.draw_topics(*corpus.for_kernels, topics, key, token_topics)
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
        """Return the changes of some words' counts since their tokens had the topics ``before``."""
        begins = self.corpus.begins[begin : end + 1]
        after = self.topics[begins[0] : begins[-1]]
        limit = 2 * len(after)
        out = np.empty(end - begin, np.int32), np.empty(limit, self.topics.dtype), np.empty(limit, np.int32)
        shifted, zeros = readable(begins - begins[0]), np.zeros(self._count, np.int32)
        count = sampling_kernels.changes(shifted, readable(before), readable(after), zeros, out)
        return Changes(self.corpus.words[begin:end], out[0], out[1][:count], out[2][:count])

    def listed(self, begin: int, end: int) -> Changes:
        """Return some words' counts as changes: those of adding all their tokens."""
        begins = self.corpus.begins[begin : end + 1]
        topics = self.topics[begins[0] : begins[-1]]
        out = np.empty(end - begin, np.int32), np.empty(len(topics), topics.dtype), np.empty(len(topics), np.int32)
        shifted, zeros = readable(begins - begins[0]), np.zeros(self._count, np.int32)
        count = sampling_kernels.list_counts(shifted, readable(topics), zeros, out)
        return Changes(self.corpus.words[begin:end], out[0], out[1][:count], out[2][:count])

    def likelihood(self, prior: Prior) -> float:
        """Return log p(z), the documents' part of the joint likelihood."""
        return self._tally.likelihood(prior.alpha)

    def counts_of_counts(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return a histogram: topics, numbers of occurrences in a document, and how many documents have that number."""
        return self._tally.counts_of_counts()


@dataclass(frozen=True, eq=False)
class Changes:
    """Changes of words' counts: ``sizes`` has the number of each word's, the next two have their topics and sizes."""

    words: Int64s
    sizes: Int32s
    topics: Array
    by: Int32s


class Tally(ABC):
    """The topic counts of documents, kept up to date with the topics of tokens; exact in either ``form``."""

    _KERNELS: ClassVar[Any]

    def __init__(self, corpus: Corpus, count: int, topics: Array, form: Any, buffers: Any) -> None:
        """``topics`` has the topic of each token; sampling changes them."""
        self._corpus, self._count, self._topics = corpus, count, topics
        self.form, self._buffers = form, buffers
        # The logarithms that the likelihood adds up, kept while alpha stays the same.
        self._alpha, self._rises = np.empty(0), np.empty((0, TABLE))

    def sample(self, begin: int, end: int, counts: Array, totals: Int64s, prior: Prior, key: np.uint64) -> None:
        corpus = self._corpus
        self._KERNELS.sample_words(
            corpus.words[begin:end],
            corpus.begins[begin : end + 1],
            (corpus.documents, self._topics),
            corpus.numbers,
            self.form,
            counts,
            totals,
            (readable(self._kernel_alpha(prior.alpha)), prior.beta, prior.all_beta),
            key,
            self._buffers,
        )

    def likelihood(self, alpha: Float64s) -> float:
        if not np.array_equal(alpha, self._alpha):
            self._alpha, self._rises = alpha.copy(), np.empty((len(alpha), TABLE))
            sampling_kernels.tabulate_rises(readable(alpha), self._rises)
        lengths = readable(self._corpus.lengths)
        return float(self._KERNELS.documents_likelihood(lengths, self.form, readable(alpha), readable(self._rises)))

    def counts_of_counts(self) -> tuple[Int64s, Int64s, Int64s]:
        small, rest = np.zeros((self._count, SMALL), np.int64), np.empty(self._corpus.size // SMALL, np.int64)
        positions = rest[: self._KERNELS.count_counts(self.form, small, rest)]
        large = np.stack(self._large_counts(positions))
        (large_topics, large_counts), large_times = np.unique(large, axis=1, return_counts=True)
        topics, counts = np.nonzero(small)
        return (
            np.concatenate([topics, large_topics]),
            np.concatenate([counts, large_counts]),
            np.concatenate([small[topics, counts], large_times]),
        )

    @abstractmethod
    def _kernel_alpha(self, alpha: Float64s) -> Array:
        """Return alpha as the kernels take it."""

    @abstractmethod
    def _large_counts(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Return the topics and counts at these positions of the form."""


class DenseTally(Tally):
    """One number per document and topic: 4 bytes each."""

    _KERNELS: ClassVar[Any] = dense_kernels

    def __init__(self, corpus: Corpus, count: int, topics: Array) -> None:
        padded = -(-count // dense_kernels.GROUP) * dense_kernels.GROUP
        # Columns beyond the topics stay 0.
        rows = np.zeros((len(corpus.numbers), padded), np.float32)
        dense_kernels.count_topics(corpus.documents, readable(topics), rows)
        super().__init__(corpus, count, topics, rows, tuple(np.zeros(padded, np.float32) for _ in range(3)))

    def _kernel_alpha(self, alpha: Float64s) -> Array:
        padded = np.zeros(self.form.shape[1], np.float32)
        padded[: self._count] = alpha
        return padded

    def _large_counts(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        return positions % self.form.shape[1], self.form.reshape(-1)[positions].astype(np.int64)


class SparseTally(Tally):
    """Lists of the topics that occur in each document, with counts: at most one entry per token."""

    _KERNELS: ClassVar[Any] = sparse_kernels

    def __init__(self, corpus: Corpus, count: int, topics: Array) -> None:
        lengths = corpus.lengths
        first = np.append(0, np.cumsum(np.minimum(lengths, count)))
        count_dtype = np.uint16 if lengths.max(initial=0) < SHORT else np.int32
        lists: sparse_kernels.Lists = (
            readable(first),
            np.zeros(len(lengths), np.int32),
            np.empty(first[-1], topic_dtype(count)),
            np.empty(first[-1], count_dtype),
        )
        sparse_kernels.list_topics(corpus.documents, readable(topics), lists)
        groups, longest = -(-count // sparse_kernels.GROUP), int(np.diff(first).max(initial=0))
        buffers = np.empty(count), np.empty(groups), np.empty(count), np.empty(longest)
        super().__init__(corpus, count, topics, lists, buffers)

    def _kernel_alpha(self, alpha: Float64s) -> Array:
        return alpha

    def _large_counts(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        _, _, topics, counts = self.form
        return topics[positions].astype(np.int64), counts[positions].astype(np.int64)


def _is_dense(corpus: Corpus, count: int) -> bool:
    lengths = corpus.lengths
    if count > MAX_DENSE or lengths.max(initial=0) >= dense_kernels.MAX_TOKENS:
        return False
    return len(lengths) * count <= MAX_RATIO * int(np.minimum(lengths, count).sum())
