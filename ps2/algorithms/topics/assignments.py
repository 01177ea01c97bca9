"""The topics of a worker's tokens, and its documents' topic counts, dense or as lists, which sampling updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics import dense_kernels, sampling_kernels, sparse_kernels
from ps2.algorithms.topics.corpus import Corpus, Prior, topic_dtype
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.data.block_file import StoredArray
from ps2.ops.guards import readable

Array = npt.NDArray[Any]

# If all documents have fewer tokens than this, counts in lists have 16 bits.
SHORT = 1 << 16
# The terms of the likelihood are tabulated for counts of a topic in a document below this limit.
TABLE = 32
# Histograms have a dense table for counts of a topic in a document below this limit; few counts are larger.
SMALL = 64
# With more topics, lists are faster than dense counts (measured with documents of 136 tokens).
MAX_DENSE_TOPICS = 256
# Dense counts are used if they have at most this many times the entries of lists.
MAX_DENSE_RATIO = 2


@dataclass(frozen=True, eq=False)
class Changes:
    """Changes of words' topic counts, word by word.

    Attributes:
        sizes: the number of changed counts of each word.
        topics: the topic of each changed count.
        deltas: the change of each of these counts.
    """

    words: Int64s
    sizes: Int32s
    topics: Array
    deltas: Int32s


class Assignments(ABC):
    """The topics of a corpus's tokens, and each document's topic counts, which sampling updates.

    Attributes:
        topics: the topic of each token, in memory or in a file.
        document_counts: the topic counts of the documents, a matrix or lists, depending on the subclass.
    """

    _KERNELS: ClassVar[Any]

    def __init__(
        self, corpus: Corpus, num_topics: int, topics: StoredArray, document_counts: Any, buffers: Any
    ) -> None:
        self.corpus, self.topics, self.document_counts = corpus, topics, document_counts
        self._num_topics, self._buffers = num_topics, buffers
        # Terms of the likelihood by topic and count, and the alpha for which they were computed.
        self._alpha, self._terms = np.empty(0), np.empty((0, TABLE))

    @staticmethod
    def of(corpus: Corpus, num_topics: int, topics: StoredArray, sampler: str = "auto") -> Assignments:
        """Return assignments of tokens with a copy of ``topics``."""
        own_topics = corpus.new_array(corpus.size, topic_dtype(num_topics))
        for tokens in corpus.windows():
            own_topics[tokens][:] = topics[tokens]
        return _class_for(corpus, num_topics, sampler)(corpus, num_topics, own_topics)

    @staticmethod
    def random(corpus: Corpus, num_topics: int, key: np.uint64, sampler: str = "auto") -> Assignments:
        """Return assignments of tokens with random topics, which depend on ``key`` and the tokens."""
        topics = corpus.new_array(corpus.size, topic_dtype(num_topics))
        for begin, end in corpus.slices(len(corpus.words)):
            tokens, begins = corpus.tokens(begin, end), corpus.begins[begin : end + 1]
            begins, documents = readable(begins - begins[0]), readable(corpus.documents[tokens])
            words = corpus.words[begin:end], begins, documents, corpus.numbers
            sampling_kernels.draw_topics(*words, num_topics, key, topics[tokens])
        return _class_for(corpus, num_topics, sampler)(corpus, num_topics, topics)

    def sample(self, begin: int, end: int, counts: Array, totals: Int64s, prior: Prior, key: np.uint64) -> None:
        """Draw new topics for the tokens of some words.

        Args:
            begin, end: the range of the words, as positions among the corpus's words.
            counts: int32, shape (end - begin, topics): topic counts of these words over all workers' tokens; updated.
            totals: int64, shape (topics,): topic counts over all words; updated.
            key: the key of seed and iteration.
        """
        corpus = self.corpus
        priors = readable(self._kernel_alpha(prior.alpha)), prior.beta, prior.all_beta
        for first, last in corpus.slices(end - begin, begin, end) or [(begin, end)]:
            tokens = corpus.tokens(first, last)
            self._KERNELS.sample_words(
                corpus.words[first:last],
                readable(corpus.begins[first : last + 1] - tokens.start),
                (readable(corpus.documents[tokens]), self.topics[tokens]),
                corpus.numbers,
                self.document_counts,
                counts[first - begin : last - begin],
                totals,
                priors,
                key,
                self._buffers,
            )

    def changes_since(self, begin: int, end: int, before: Array | None = None) -> Changes:
        """Return the changes of some words' counts since their tokens had the topics ``before``; None: no topics."""
        begins = self.corpus.begins[begin : end + 1]
        after = self.topics[self.corpus.tokens(begin, end)]
        limit = len(after) * (1 if before is None else 2)
        out = np.empty(end - begin, np.int32), np.empty(limit, self.topics.dtype), np.empty(limit, np.int32)
        offsets, zeros = readable(begins - begins[0]), np.zeros(self._num_topics, np.int32)
        old = readable(after[:0] if before is None else before)
        count = sampling_kernels.changes(offsets, old, readable(after), zeros, out)
        return Changes(self.corpus.words[begin:end], out[0], out[1][:count], out[2][:count])

    def topic_totals(self) -> Int64s:
        """Return the number of tokens of each topic."""
        totals = np.zeros(self._num_topics, np.int64)
        for tokens in self.corpus.windows():
            totals += np.bincount(self.topics[tokens], minlength=self._num_topics)
        return totals

    def likelihood(self, prior: Prior) -> float:
        """Return log p(z), the documents' term of the joint likelihood."""
        alpha = readable(prior.alpha)
        if not np.array_equal(alpha, self._alpha):
            self._alpha, self._terms = alpha.copy(), np.empty((len(alpha), TABLE))
            sampling_kernels.tabulate_terms(alpha, self._terms)
        lengths, terms = readable(self.corpus.lengths), readable(self._terms)
        return float(self._KERNELS.documents_likelihood(lengths, self.document_counts, alpha, terms))

    def counts_of_counts(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return a histogram of topic counts: topics, counts n > 0, and the number of documents with n of the topic."""
        small, buffer = np.zeros((self._num_topics, SMALL), np.int64), np.empty(self.corpus.size // SMALL, np.int64)
        positions = buffer[: self._KERNELS.count_counts(self.document_counts, small, buffer)]
        large = np.stack(self._counts_at(positions))
        (large_topics, large_counts), large_documents = np.unique(large, axis=1, return_counts=True)
        topics, counts = np.nonzero(small)
        return (
            np.concatenate([topics, large_topics]),
            np.concatenate([counts, large_counts]),
            np.concatenate([small[topics, counts], large_documents]),
        )

    @abstractmethod
    def _kernel_alpha(self, alpha: Float64s) -> Array:
        """Return alpha as an argument for the kernels."""

    @abstractmethod
    def _counts_at(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Return the topics and counts at some positions in ``document_counts``."""


class DenseAssignments(Assignments):
    """Assignments with a matrix of topic counts, float32, shape (documents, topics padded with zeros)."""

    _KERNELS: ClassVar[Any] = dense_kernels

    def __init__(self, corpus: Corpus, num_topics: int, topics: StoredArray) -> None:
        width = -(-num_topics // dense_kernels.GROUP) * dense_kernels.GROUP
        counts = corpus.new_array(len(corpus.numbers) * width, np.float32)[:].reshape(-1, width)
        for tokens in corpus.windows():
            dense_kernels.count_topics(readable(corpus.documents[tokens]), readable(topics[tokens]), counts)
        super().__init__(corpus, num_topics, topics, counts, tuple(np.zeros(width, np.float32) for _ in range(3)))

    def _kernel_alpha(self, alpha: Float64s) -> Array:
        padded = np.zeros(self.document_counts.shape[1], np.float32)
        padded[: self._num_topics] = alpha
        return padded

    def _counts_at(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        counts = self.document_counts
        return positions % counts.shape[1], counts.reshape(-1)[positions].astype(np.int64)


class SparseAssignments(Assignments):
    """Assignments with, for each document, a list of the topics that occur in the document, and their counts."""

    _KERNELS: ClassVar[Any] = sparse_kernels

    def __init__(self, corpus: Corpus, num_topics: int, topics: StoredArray) -> None:
        lengths = corpus.lengths
        begins = np.append(0, np.cumsum(np.minimum(lengths, num_topics)))
        count_dtype = np.uint16 if lengths.max(initial=0) < SHORT else np.int32
        lists: sparse_kernels.Lists = (
            readable(begins),
            np.zeros(len(lengths), np.int32),
            corpus.new_array(int(begins[-1]), topic_dtype(num_topics))[:],
            corpus.new_array(int(begins[-1]), count_dtype)[:],
        )
        for tokens in corpus.windows():
            sparse_kernels.list_topics(readable(corpus.documents[tokens]), readable(topics[tokens]), lists)
        groups, max_length = -(-num_topics // sparse_kernels.GROUP), int(np.diff(begins).max(initial=0))
        buffers = np.empty(num_topics), np.empty(groups), np.empty(num_topics), np.empty(max_length)
        super().__init__(corpus, num_topics, topics, lists, buffers)

    def _kernel_alpha(self, alpha: Float64s) -> Array:
        return alpha

    def _counts_at(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        _, _, topics, counts = self.document_counts
        return topics[positions].astype(np.int64), counts[positions].astype(np.int64)


def _class_for(corpus: Corpus, num_topics: int, sampler: str) -> type[DenseAssignments] | type[SparseAssignments]:
    is_dense = sampler == "dense" or (sampler == "auto" and _is_dense(corpus, num_topics))
    return DenseAssignments if is_dense else SparseAssignments


def _is_dense(corpus: Corpus, num_topics: int) -> bool:
    """Return whether dense counts are faster than lists, and not much larger."""
    lengths = corpus.lengths
    if num_topics > MAX_DENSE_TOPICS or lengths.max(initial=0) >= dense_kernels.MAX_TOKENS:
        return False
    return len(lengths) * num_topics <= MAX_DENSE_RATIO * int(np.minimum(lengths, num_topics).sum())
